"""The trace of a plan: what some ranks would get in some steps of one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from feedline.errors import EmptyEpochError
from feedline.plan import Share
from feedline.report.trace import (
    MOST_COLUMNS,
    MOST_ROWS,
    Cell,
    Column,
    Covered,
    Stretch,
    Trace,
    share_columns,
    spread_ranks,
)
from feedline.runs.dry_run import PlannedStretch, stretches_of
from feedline.runs.plan_report import spread
from feedline.runs.run_config import RunConfig
from feedline.runs.words import shortened

_MOST_IDS, _MOST_IN_CELL = 2**23, 4096
_MANY_RANKS = 64


def trace_of_config(
    config: RunConfig, epoch: int, parts: Sequence[PlannedStretch] | None = None
) -> Trace:
    """Return what a run would consume in an epoch, in these parts if it is resized."""
    if parts is None:
        named = {"the epoch": stretches_of(config, [config.ranks], epoch)[0]}
    else:
        named = {f"part {number}": own for number, own in enumerate(parts, 1) if own.num_batches}
    stretches = list(named.values())
    if not stretches:
        sizes = [own.segment.world_size for own in parts or ()]
        raise EmptyEpochError(
            f"resize={sizes} gives 0 steps but must give at least 1; use fewer ranks, a smaller "
            "batch size, or tail='pad' or 'even'"
        )
    world_sizes = [own.segment.world_size for own in stretches]
    # What one rank of many gets of a mixture takes long to compute.
    is_costly = config.mixture is not None and max(world_sizes) > _MANY_RANKS
    num_rows, num_columns = (12, 60) if is_costly else (MOST_ROWS, MOST_COLUMNS)
    ranks = spread_ranks(world_sizes, num_rows)
    shares = share_columns([own.end_step - own.first_step for own in stretches], num_columns)
    columns = [
        Column(number, epoch, step)
        for number, (own, share) in enumerate(zip(stretches, shares, strict=True))
        for step in spread(own.first_step, own.end_step, share)
    ]
    most_ids = min(_MOST_IN_CELL, max(16, _MOST_IDS // (len(columns) * len(ranks))))
    cells: dict[tuple[int, int], Cell] = {}
    for number, own in enumerate(stretches):
        steps = {place: c.step for place, c in enumerate(columns) if c.stretch == number}
        present = [rank for rank in ranks if rank < own.segment.world_size]
        cells_of = _cells_by_entry if config.plan.ignores_batch_size else _cells_by_batch
        cells |= cells_of(own, steps, present, most_ids)
    return Trace(
        sources=tuple(s._replace(name=shortened(s.name)) for s in config.sources),
        stretches=tuple(
            Stretch(name, own.segment.world_size, own.first_step, own.end_step, own.end_step)
            for name, own in named.items()
        ),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells=cells,
        coverage=tuple(_coverage(stretches, columns)),
        num_positions=stretches[0].segment.num_left,
        is_whole=len(columns) == stretches[-1].end_step and len(ranks) == max(world_sizes),
    )


def _coverage(stretches: list[PlannedStretch], columns: list[Column]) -> Iterator[Covered]:
    """Yield what is consumed before each column, and at the end."""
    total, last = stretches[0].segment.num_left, stretches[-1]
    for column in columns:
        own = stretches[column.stretch]
        left = own.segment.num_left_after(own.batches_of(column.step)[0])
        yield Covered(column.epoch, column.step, total - left)
    left = last.segment.num_left_after(last.end)
    yield Covered(last.segment.epoch, last.end_step, total - left)


def _cells_by_entry(
    stretch: PlannedStretch, steps: Mapping[int, int], ranks: Sequence[int], most_ids: int
) -> Iterator[tuple[tuple[int, int], Cell]]:
    """Yield what ranks get in steps, which have the place of a column; of much, the first.

    Which entries a rank gets does not depend on where batches end. So they are asked for in batches
    of one, and no more than a few of a very large batch need be computed.
    """
    segment = stretch.segment
    sizes = {"world_size": segment.world_size, "batch_size": segment.batch_size}
    share = Share(num_positions=segment.num_left, tail=segment.plan.tail, **sizes)
    entries = replace(segment, batch_size=1, num_done=0, begun=segment.remaining)
    for (place, step), rank in product(steps.items(), ranks):
        first, stop = stretch.batches_of(step)
        low, high = share.span(rank, first, stop)
        num_real = share.num_real(rank, low, high)
        ids = entries.block(rank, low, low + min(num_real, most_ids)).indices
        yield (place, rank), Cell(ids, num_real, high - low - num_real, num_batches=stop - first)


def _cells_by_batch(
    stretch: PlannedStretch, steps: Mapping[int, int], ranks: Sequence[int], most_ids: int
) -> Iterator[tuple[tuple[int, int], Cell]]:
    """Yield what ranks get in steps; of very many batches, the first."""
    segment = stretch.segment
    num_asked = max(1, most_ids // segment.plan.largest_batch(segment.batch_size))
    for (place, step), rank in product(steps.items(), ranks):
        first, stop = stretch.batches_of(step)
        block = segment.block(rank, first, min(stop, first + num_asked))
        ids = block.real_indices
        cell = Cell(
            ids=ids[:most_ids].copy(),
            num_real=len(ids) if len(block) == stop - first else None,
            num_padded=len(block.indices) - len(ids),
            num_batches=len(block),
            bucket=None if block.buckets is None else int(block.buckets[0]),
        )
        yield (place, rank), cell
