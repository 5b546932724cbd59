"""`feedline demo`."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.audit import describe, is_good, print_result
from feedline.cli.printing import echo, make_console
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help=("Folder to write to; by default a temporary one."),
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="File for the report; by default report.html in --folder, or feedline-demo.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the audit, as JSON.")
@click.option("--drop-one", is_flag=True, hidden=True)
def demo(
    folder: Path | None, keep: bool, report: Path | None, as_json: bool, drop_one: bool
) -> None:
    """Train a small model, stop it, kill it, resize it, and audit what it received.

    Real processes under torchrun train on a mixture of two packed sources. Two are stopped by
    SIGTERM, three resume and are killed by kill -9, and one finishes the epoch. Then all logs are
    audited, and drawn as one HTML file. It takes about a minute. The exit code is 1 if the audit
    fails.

    \b
    Examples:
      feedline demo
      feedline demo --folder demo && feedline audit demo/logs
    """
    _check_torch()
    # Not before torch was looked for: what is imported here takes its time.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from feedline.cli.demo_story import Story
    from feedline.report import report_logs, write_report
    from feedline.report.page import check_target

    default = Path("feedline-demo.html") if folder is None else folder / "report.html"
    target = report or default
    check_target(target)
    console = make_console(is_quiet=as_json)
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}")
    progress = Progress(*columns, note, console=console, disable=as_json, transient=True)
    try:
        with _ends_with_sigterm(), _folder(folder, keep, console) as place:
            start = time.monotonic()
            with progress:
                result = Story(place, console, progress, drop_one=drop_one).tell()
            title = "A training that was stopped, resized, killed and resumed"
            write_report(report_logs([place / "logs"], title=title), target)
            seconds = time.monotonic() - start
    except KeyboardInterrupt:
        echo("Interrupted; all processes of the demo have ended.", err=True)
        sys.exit(130)
    if as_json:
        more = {"seconds": round(seconds, 1), "report": str(target)}
        echo(json.dumps({**describe(result), **more}))
    else:
        print_result(result)
        text = f"The demo took {seconds:.0f} seconds. Open its report: {target}"
        console.print(text, markup=False, soft_wrap=True)
    if not is_good(result, complete=True):
        sys.exit(1)


def _check_torch() -> None:
    try:
        is_there = importlib.util.find_spec("torch") is not None
    except ValueError:
        is_there = False
    if not is_there:
        raise ModuleNotFoundError(
            "the demo needs torch, which is not installed; install feedline[torch]", name="torch"
        )


@contextmanager
def _folder(given: Path | None, keep: bool, console: Console) -> Iterator[Path]:
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise InvalidValueError(f"folder={given} must be new or empty; choose another one")
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
    elif keep:
        made = Path(tempfile.mkdtemp(prefix="feedline-demo-"))
        yield made
        console.print(f"Everything is in {made}", markup=False)
    else:
        with tempfile.TemporaryDirectory(prefix="feedline-demo-") as name:
            yield Path(name)


@contextmanager
def _ends_with_sigterm() -> Iterator[None]:
    """Handle SIGTERM like an interrupt, so that the demo also ends its processes."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
