"""`feedline inspect`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.printing import bad_input_is_usage, print_json, print_table
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from feedline.runs.inspection import Fit

__all__ = ["inspect"]

_MOST_ENTRIES = 20


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="A run config: say whether the run could go on from the checkpoint.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect(path: Path, against: Path | None, as_json: bool) -> None:
    """Show what a checkpoint, a packed folder or a zarr matrix holds.

    FILE is JSON with a cursor, the state of a loader or of a StepScheduler; a .pt file with one
    in it, which is read without running its pickle; or a folder. With --against the exit code is
    1 if the cursor does not fit, and every field that differs is listed.

    \b
    Examples:
      feedline inspect checkpoint.json
      feedline inspect step-1000.pt --against run.yaml
      feedline inspect packed --json
    """
    from feedline.runs.inspection import compare, inspect_path
    from feedline.runs.run_config import RunConfig

    with bad_input_is_usage():
        found = inspect_path(path)
        fit: Fit | None = None
        if against is not None:
            if found.cursor is None:
                raise InvalidValueError(f"{path}: holds no cursor, so it cannot be compared")
            fit = compare(found.cursor, RunConfig.load(against))
    if as_json:
        described: dict[str, Any] = {"path": str(path), "kind": found.kind, **found.facts}
        if fit is not None:
            described["fit"] = dataclasses.asdict(fit)
        print_json(described)
    else:
        click.echo(f"{path}: {found.kind}")
        _print_facts(found.facts, "  ")
        if fit is not None:
            _print_fit(fit, against)
    if fit is not None and not fit.is_fit:
        sys.exit(1)


def _print_facts(facts: Mapping[str, Any], indent: str) -> None:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            click.echo(f"{indent}{name}:")
            _print_facts(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            click.echo(f"{indent}{name}:")
            for entry in value[:_MOST_ENTRIES]:
                shown = ", ".join(f"{key} {inner}" for key, inner in entry.items())
                click.echo(f"{indent}  {shown}")
            if len(value) > _MOST_ENTRIES:
                click.echo(f"{indent}  and {len(value) - _MOST_ENTRIES:,} more")
        else:
            is_count = isinstance(value, int) and name.startswith("num_")
            click.echo(f"{indent}{name}: {f'{value:,}' if is_count else f'{value!s:.200}'}")


def _print_fit(fit: Fit, against: Path | None) -> None:
    if fit.is_fit:
        click.echo(f"fits {against}: {fit.num_batches_left:,} batches of the epoch are left")
        return
    click.echo(f"does not fit {against}")
    if not fit.differences:
        click.echo(f"  {fit.reason}")
        return
    rows = [(name, f"{old!s:.60}", f"{new!s:.60}") for name, (old, new) in fit.differences.items()]
    print_table("", ("field", "in the checkpoint", "in the config"), rows)
