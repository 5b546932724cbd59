"""The trace of a plan: what some ranks would get in some steps of one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from feedline.errors import EmptyEpochError
from feedline.plan import Segment, Share
from feedline.report.trace import (
    MOST_COLUMNS,
    MOST_ROWS,
    Cell,
    Column,
    Covered,
    Stretch,
    Trace,
    share_columns,
    spread,
    spread_ranks,
)
from feedline.runs.dry_run import segments_of
from feedline.runs.run_config import RunConfig
from feedline.runs.words import shortened

_MOST_IDS, _MOST_IN_CELL = 2**23, 4096
_MANY_RANKS = 64


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The batches of a segment before `end`, which are steps from `first_step` on."""

    name: str
    segment: Segment
    end: int
    first_step: int
    batches_per_step: int

    @property
    def num_steps(self) -> int:
        return -(-(self.end - self.segment.num_done) // self.batches_per_step)

    @property
    def end_step(self) -> int:
        return self.first_step + self.num_steps

    def batches_of(self, step: int) -> tuple[int, int]:
        """Return which batches a step has."""
        first = self.segment.num_done + (step - self.first_step) * self.batches_per_step
        return first, min(first + self.batches_per_step, self.end)

    def cell(self, rank: int, step: int, most_ids: int) -> Cell:
        """Return what a rank gets in a step; of very many samples, the first."""
        if not self.segment.plan.ignores_batch_size:
            return self._cell_of_buckets(rank, step, most_ids)
        first, stop = self.batches_of(step)
        low, high = self._share.span(rank, first, stop)
        num_real = self._share.num_real(rank, low, high)
        ids = self._entries.block(rank, low, low + min(num_real, most_ids)).indices
        return Cell(ids, num_real, high - low - num_real, num_batches=stop - first)

    def _cell_of_buckets(self, rank: int, step: int, most_ids: int) -> Cell:
        first, stop = self.batches_of(step)
        largest = self.segment.plan.largest_batch(self.segment.batch_size)
        block = self.segment.block(rank, first, min(stop, first + max(1, most_ids // largest)))
        ids = block.real_indices
        return Cell(
            ids=ids[:most_ids].copy(),
            num_real=len(ids) if len(block) == stop - first else None,
            num_padded=len(block.indices) - len(ids),
            num_batches=len(block),
            bucket=None if block.buckets is None else int(block.buckets[0]),
        )

    @cached_property
    def _share(self) -> Share:
        return Share(
            num_positions=self.segment.num_left,
            world_size=self.segment.world_size,
            batch_size=self.segment.batch_size,
            tail=self.segment.plan.tail,
        )

    @cached_property
    def _entries(self) -> Segment:
        """The same stream in batches of one, because which entries a rank gets does not depend on
        where batches end; so no more than a few of a very large batch need be computed."""
        return replace(self.segment, batch_size=1, num_done=0)


def trace_of_config(config: RunConfig, epoch: int, sizes: Sequence[int] | None) -> Trace:
    """Return what a run would consume in an epoch; with `sizes`, on these ranks in turn."""
    parts = _parts_of(config, epoch, sizes)
    world_sizes = [part.segment.world_size for part in parts]
    # What one rank of many gets of a mixture takes long to compute.
    is_costly = config.mixture is not None and max(world_sizes) > _MANY_RANKS
    num_rows, num_columns = (12, 60) if is_costly else (MOST_ROWS, MOST_COLUMNS)
    ranks = spread_ranks(world_sizes, num_rows)
    shares = share_columns([part.num_steps for part in parts], num_columns)
    columns = [
        Column(number, epoch, step)
        for number, (part, share) in enumerate(zip(parts, shares, strict=True))
        for step in spread(part.first_step, part.end_step, share)
    ]
    most_ids = min(_MOST_IN_CELL, max(16, _MOST_IDS // (len(columns) * len(ranks))))
    return Trace(
        sources=tuple(s._replace(name=shortened(s.name)) for s in config.sources),
        stretches=tuple(
            Stretch(part.name, size, part.first_step, part.end_step, part.end_step)
            for part, size in zip(parts, world_sizes, strict=True)
        ),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells={
            (place, rank): parts[column.stretch].cell(rank, column.step, most_ids)
            for place, column in enumerate(columns)
            for rank in ranks
            if rank < world_sizes[column.stretch]
        },
        coverage=tuple(_coverage(parts, columns)),
        num_positions=parts[0].segment.num_left,
        is_whole=len(columns) == parts[-1].end_step and len(ranks) == max(world_sizes),
    )


def _parts_of(config: RunConfig, epoch: int, sizes: Sequence[int] | None) -> list[_Part]:
    """Return the parts that have steps, or raise if none has."""
    if sizes is None:
        segment = config.segment(epoch)
        segments = [(segment, segment.num_batches)]
    else:
        segments = segments_of(config, sizes, epoch)
    parts: list[_Part] = []
    step = 0
    for number, (segment, end) in enumerate(segments, 1):
        part = _Part(
            name="the epoch" if len(segments) == 1 else f"part {number}",
            segment=segment,
            end=end,
            first_step=step,
            batches_per_step=config.grad_acc_steps,
        )
        step = part.end_step
        if part.num_steps:
            parts.append(part)
    if not parts:
        raise EmptyEpochError(
            f"resize={list(sizes or ())} gives 0 steps but must give at least 1; use fewer ranks, "
            "a smaller batch size, or tail='pad' or 'even'"
        )
    return parts


def _coverage(parts: list[_Part], columns: list[Column]) -> Iterator[Covered]:
    """Yield what is consumed before each column, and at the end."""
    total = parts[0].segment.num_left
    for column in columns:
        part = parts[column.stretch]
        left = part.segment.num_left_after(part.batches_of(column.step)[0])
        yield Covered(column.epoch, column.step, total - left)
    last = parts[-1]
    left = last.segment.num_left_after(last.end)
    yield Covered(last.segment.epoch, last.end_step, total - left)
