"""`feedline report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from feedline.cli.configs import load_config, parse_sizes, size_options
from feedline.cli.printing import print_json
from feedline.errors import InvalidValueError


@click.command()
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CONFIG|LOGS..."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The HTML file to write.",
)
@size_options(resize=True)
@click.option("--epoch", type=int, metavar="E", help="The epoch of the plan; by default 0.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The config of the runs that wrote the logs: what was planned.",
)
@click.option("--samples", type=int, metavar="N", help="Samples of the data, if no log says it.")
@click.option("--title", metavar="TEXT", help="The headline.")
@click.option("--json", "as_json", is_flag=True, help="Print what the report shows as JSON too.")
def report(
    paths: tuple[Path, ...],
    output: Path,
    ranks: int | None,
    batch_size: int | None,
    epoch: int | None,
    resize: str | None,
    config: Path | None,
    samples: int | None,
    title: str | None,
    as_json: bool,
) -> None:
    """Draw a plan or a run as one HTML file that needs no network.

    Give a run config in YAML for what a run will consume; with --resize, on several numbers of
    ranks in turn. Or give the logs that runs wrote, or folders of them, for what really happened.

    \b
    Examples:
      feedline report run.yaml
      feedline report run.yaml --resize 512,480,64 -o resized.html
      feedline report logs --config run.yaml --title "Run 7"
    """
    from feedline.report import report_config, report_logs, write_report
    from feedline.report.page import check_target

    of_plan = {"--ranks": ranks, "--batch-size": batch_size, "--epoch": epoch, "--resize": resize}
    of_logs = {"--config": config, "--samples": samples}
    # Before the work, which may take long.
    check_target(output)
    if _are_logs(paths):
        _refuse(of_plan, "a run config", "logs")
        logged = None if config is None else load_config(config)
        name = title or f"{paths[0].resolve().name}, as it happened"
        with _progress() as tell:
            made = report_logs(paths, config=logged, num_samples=samples, title=name, progress=tell)
    else:
        _refuse(of_logs, "logs", "a run config")
        run = load_config(paths[0]).resized(ranks=ranks, batch_size=batch_size)
        sizes = parse_sizes(resize)
        name = title or f"{paths[0].name}, epoch {epoch or 0}"
        made = report_config(run, epoch=epoch or 0, resize=sizes, title=name)
    written = write_report(made, output)
    if as_json:
        print_json({"output": str(written), **made.to_dict()})
    else:
        click.echo(f"{written}: {made.verdict.text}")


def _are_logs(paths: tuple[Path, ...]) -> bool:
    from feedline.runs.log_records import is_log

    are_logs = [path.is_dir() or (path.is_file() and is_log(path)) for path in paths]
    if len(paths) > 1 and not all(are_logs):
        other = paths[are_logs.index(False)]
        raise InvalidValueError(
            f"{other}: must be a log or a folder of logs beside {len(paths) - 1} other paths; give "
            "one config, or logs only"
        )
    return are_logs[0]


def _refuse(options: Mapping[str, object], wanted: str, given: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidValueError(f"{name} must be left out with {given}; it is for {wanted}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], object]]:
    """Show on stderr how much of the logs is read, if somebody is looking and rich is there."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda done, total: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading logs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
