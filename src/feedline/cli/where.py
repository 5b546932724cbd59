"""`feedline where`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli import configs
from feedline.cli.printing import Outcome, command, echo, print_table
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from feedline.plan import Cursor
    from feedline.runs.run_config import RunConfig
    from feedline.runs.sample_places import StepOfRank, TimeOfSample

_MOST_ROWS = 64


@command
@configs.config_argument
@click.option("--step", type=int, metavar="S", help="A step: show its samples.")
@click.option("--rank", type=int, metavar="R", help="The rank, with --step; by default 0.")
@click.option("--index", type=int, metavar="I", help="A sample: show when it is consumed.")
@click.option("--source", metavar="NAME", help="The source that --index counts in.")
@configs.ranks_option
@configs.batch_size_option
@click.option(
    "--epoch", type=int, metavar="E", help="One epoch; --step then counts from its start."
)
@click.option("--checkpoint", type=configs.PATH, help="A checkpoint: its epoch, with its resizes.")
def where(
    config: Path,
    step: int | None,
    rank: int | None,
    index: int | None,
    source: str | None,
    ranks: int | None,
    batch_size: int | None,
    epoch: int | None,
    checkpoint: Path | None,
) -> Outcome:
    """Show which samples a step consumes, or when a sample is consumed.

    CONFIG is a run config in YAML. Everything is computed from it, so no log is needed. A step is
    grad_acc_steps batches, and counts from the start of the run unless --epoch is given.

    \b
    Examples:
      feedline where run.yaml --step 340 --rank 5
      feedline where run.yaml --step 12 --epoch 3 --ranks 480 --json
      feedline where run.yaml --index 12345
      feedline where run.yaml --index 99 --source books
      feedline where run.yaml --index 12345 --checkpoint step-1000.json
    """
    if (step is None) == (index is None):
        raise InvalidValueError("pass exactly one of --step and --index")
    if index is None and source is not None:
        raise InvalidValueError(f"--source={source!r} needs --index; omit it")
    if step is None and rank is not None:
        raise InvalidValueError(f"--rank={rank} needs --step; omit it")
    if epoch is not None and checkpoint is not None:
        raise InvalidValueError("--checkpoint already decides the epoch; omit --epoch")

    from feedline.runs.sample_places import place_of, samples_of_step, times_of_sample

    run = configs.load_config(config).resized(ranks=ranks, batch_size=batch_size)
    cursor = None if checkpoint is None else _cursor_in(checkpoint, run)
    if step is not None:
        found = samples_of_step(run, step=step, rank=rank or 0, epoch=epoch, cursor=cursor)
        return Outcome(found, lambda: _show_step(found))
    assert index is not None
    if source is not None:
        index = run.index_in(source, index)
    times = times_of_sample(run, index=index, epoch=epoch, cursor=cursor)
    data, inside = run.source_of(index)
    known = {"index": index, "source": data.name, "source_index": inside, **place_of(run, index)}
    return Outcome({**known, "times": times}, lambda: _show_times(known, times))


def _cursor_in(checkpoint: Path, run: RunConfig) -> Cursor:
    """Return the cursor of a checkpoint, or raise if it has none that fits the run."""
    from feedline.runs.inspection import compare, read_checkpoint

    cursor = read_checkpoint(checkpoint).cursor
    if cursor is None:
        raise InvalidValueError(f"{checkpoint}: contains no cursor; pass another checkpoint")
    fit = compare(cursor, run)
    if not fit.is_fit:
        raise InvalidValueError(f"{checkpoint}: {fit.reason}")
    return cursor


def _show_step(found: StepOfRank) -> None:
    from feedline.words import several

    echo(
        f"epoch {found.epoch}, step {found.step:,} of {found.num_steps:,}, rank {found.rank:,} of "
        f"{found.ranks:,}: {several(len(found.samples), 'sample')}"
    )
    names = ["batch", "slot", "index", "source", "source_index"]
    optional = ["bucket", "chunk", "row", "file"]
    names += [n for n in optional if any(getattr(s, n) is not None for s in found.samples)]
    if not all(sample.is_real for sample in found.samples):
        names.append("is_real")
    _print_rows(names, found.samples)


def _show_times(known: dict[str, Any], times: list[TimeOfSample]) -> None:
    echo(f"index {known['index']:,}: {known['source']}, sample {known['source_index']:,}")
    if known["chunk"] is not None:
        file = "" if known["file"] is None else f"{known['file']}, "
        echo(f"  {file}chunk {known['chunk']:,}, row {known['row']:,}")
    if not times:
        echo("  not consumed: the tail drops it, or it is not drawn")
        return
    _print_rows(["epoch", "step", "batch", "rank", "ranks", "slot", "is_real"], times)


def _print_rows(names: Sequence[str], found: Sequence[object]) -> None:
    """Print these attributes of the first results."""
    rows = [[getattr(entry, name) for name in names] for entry in found[:_MOST_ROWS]]
    print_table("", [name.replace("_", " ") for name in names], rows)
    if len(found) > _MOST_ROWS:
        echo(f"  and {len(found) - _MOST_ROWS:,} more; --json has all")
