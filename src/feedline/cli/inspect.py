"""`feedline inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.configs import DATA, PATH, load_config
from feedline.cli.printing import Outcome, command, echo, format_time, one_line, print_table
from feedline.errors import InvalidValueError
from feedline.words import several

if TYPE_CHECKING:
    from feedline.runs.inspection import Fit

_MOST_ROWS = 40


@command
@click.argument("path", type=DATA, metavar="FILE")
@click.option(
    "--against",
    type=PATH,
    metavar="CONFIG",
    help="A run config: check whether the run can resume from the checkpoint.",
)
def inspect(path: Path | str, against: Path | None) -> Outcome:
    """Show the contents of a checkpoint, a log, or anything that feedline.open opens.

    FILE is JSON with a cursor, the state of a loader or of a StepScheduler; a .pt file with one
    in it, which is read without running its pickle; a log of what a rank received, or a folder of
    them; or data, at a path or URL: its columns, chunks and compression, and what would make it
    faster to read.

    With --against the exit code is 1 if the cursor does not fit, and every field that differs is
    listed.

    \b
    Examples:
      feedline inspect checkpoint.json
      feedline inspect step-1000.pt --against run.yaml
      feedline inspect logs/run1/rank0.log
      feedline inspect packed --json
      feedline inspect s3://bucket/packed
    """
    from feedline.runs.inspection import compare, inspect_path

    found = inspect_path(path)
    fit: Fit | None = None
    if against is not None:
        if found.cursor is None:
            raise InvalidValueError(
                f"{path}: contains no cursor, which --against needs; pass a checkpoint, or compare "
                "logs with feedline audit --config"
            )
        fit = compare(found.cursor, load_config(against))

    def show() -> None:
        echo(f"{path}: {found.kind}")
        _print_facts(found.facts, indent=2)
        if fit is not None:
            _print_fit(fit, against)

    described = {"path": path, "kind": found.kind, **found.facts}
    if fit is not None:
        described["fit"] = fit
    return Outcome(described, show, fit is None or fit.is_fit)


def _print_facts(facts: Mapping[str, Any], indent: int) -> None:
    tables = {name: value for name, value in facts.items() if _is_table(value)}
    for name, value in islice(facts.items(), _MOST_ROWS):
        if isinstance(value, Mapping):
            echo(f"{'':{indent}}{one_line(name)}:{'' if value else ' nothing'}")
            _print_facts(value, indent + 2)
        elif name == "advice":
            _print_advice(value, indent)
        elif name == "skipped":
            del tables[name]
            for skip in value[:_MOST_ROWS]:
                echo(f"{'':{indent}}skipped: {_skip_shown(skip)}")
        elif name not in tables:
            echo(f"{'':{indent}}{one_line(name)}: {_shown(name, value)}")
    if len(facts) > _MOST_ROWS:
        echo(f"{'':{indent}}and {len(facts) - _MOST_ROWS:,} more; --json has all")
    for name, rows in tables.items():
        _print_rows(name, [_brief(row) for row in rows] if name == "logs" else rows, indent)


def _skip_shown(skip: Mapping[str, Any]) -> str:
    """Return a skip as a sentence."""
    first, last = skip["first_batch"], skip["last_batch"]
    which = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
    num_ranks = skip["world_size"]
    ranks = "1 rank" if num_ranks == 1 else f"each of {num_ranks:,} ranks"
    sizes = f"at most {several(skip['num_batches'] * skip['batch_size'], 'sample')} on {ranks}"
    where = "ahead of the run" if skip["is_ahead"] else "behind the run"
    if skip["is_ahead"] and skip["is_resized"]:
        where = "ahead when the run moved to other ranks or another batch size"
    return f"{which} of the epoch, {sizes}, {where}"


def _print_advice(advice: list[str], indent: int) -> None:
    if advice:
        echo(f"{'':{indent}}to read it faster:")
    for sentence in advice:
        echo(f"{'':{indent + 2}}{one_line(sentence)}")


def _print_rows(name: str, rows: list[Mapping[str, Any]], indent: int) -> None:
    """Print the first and the last rows, with a column for each key that any of them has."""
    half = _MOST_ROWS // 2
    shown = rows if len(rows) <= _MOST_ROWS else [*rows[:half], *rows[-half:]]
    keys = list(dict.fromkeys(key for row in shown for key in row))
    cells = [[_cell(key, row.get(key)) for key in keys] for row in shown]
    print_table(name, [key.replace("_", " ") for key in keys], cells, indent=indent)
    if len(rows) > len(shown):
        more = f"{len(rows) - len(shown):,} more between the first and the last {half}"
        echo(f"{'':{indent}}and {more}; --json has all")


def _brief(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a log that fit on a line."""
    names = ("run", "rank", "world_size", "num_batches", "num_samples", "first_step", "last_step")
    waits = {name: log["wait"][f"{name}_seconds"] for name in ("mean", "longest")}
    return {
        **{name: log[name] for name in names},
        **{f"{name}_wait": seconds for name, seconds in waits.items()},
        "last_event": log["events"][-1]["event"] if log["events"] else None,
        "is_cut_short": log["is_cut_short"],
        "path": log["path"],
    }


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def _cell(name: str, value: Any) -> object:
    if name == "time" and value is not None:
        return format_time(value)
    return value if isinstance(value, bool | int | float | None) else f"{value!s:.1000}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    is_count = isinstance(value, int) and name.startswith("num_")
    return f"{value:,}" if is_count else one_line(f"{value!s:.200}")


def _print_fit(fit: Fit, against: Path | None) -> None:
    if fit.is_fit:
        left = several(fit.num_batches_left or 0, "batch", "batches")
        echo(f"fits {against}: {left} of the epoch left")
        return
    echo(f"does not fit {against}")
    if not fit.differences:
        echo(f"  {fit.reason}")
        return
    rows = [(name, f"{old!s:.60}", f"{new!s:.60}") for name, (old, new) in fit.differences.items()]
    print_table("", ("field", "in the checkpoint", "in the config"), rows)
