"""The trace of a plan: what some ranks would get in some steps of one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from feedline.plan import Block, Segment
from feedline.report.trace import (
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
from feedline.runs.run_steps import segment_of

__all__ = ["trace_of_config"]

_MOST_AT_ONCE = 2**17
_MOST_IN_CELL = 4096


@dataclass(frozen=True)
class _Part:
    """Batches `[start, end)` of a segment, which are steps from `first_step` on."""

    segment: Segment
    start: int
    end: int
    first_step: int
    batches_per_step: int

    @property
    def num_steps(self) -> int:
        return -(-(self.end - self.start) // self.batches_per_step)

    def batches_of(self, step: int) -> tuple[int, int]:
        """Return which batches a step has; of very large ones, the first that fit into a cell."""
        first = self.start + (step - self.first_step) * self.batches_per_step
        most = max(1, _MOST_IN_CELL // self.segment.plan.largest_batch(self.segment.batch_size))
        return first, min(first + min(self.batches_per_step, most), self.end)


def trace_of_config(config: RunConfig, epoch: int, sizes: Sequence[int] | None) -> Trace:
    """Return what a run would consume in an epoch; with `sizes`, on these ranks in turn."""
    parts = _parts_of(config, epoch, sizes)
    ranks = spread_ranks(part.segment.world_size for part in parts)
    columns: list[Column] = []
    cells: dict[tuple[int, int], Cell] = {}
    shares = share_columns([part.num_steps for part in parts])
    for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
        steps = spread(part.first_step, part.first_step + part.num_steps, share)
        for rank in ranks:
            if rank < part.segment.world_size:
                for place, cell in enumerate(_cells_of(part, rank, steps), len(columns)):
                    cells[place, rank] = cell
        columns += [Column(number, epoch, step) for step in steps]
    last = parts[-1]
    return Trace(
        sources=config.sources,
        stretches=tuple(_stretches_of(parts)),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells=cells,
        coverage=tuple(_coverage(parts, columns)),
        num_positions=parts[0].segment.num_left,
        is_whole=len(columns) == last.first_step + last.num_steps
        and len(ranks) == max(part.segment.world_size for part in parts),
    )


def _parts_of(config: RunConfig, epoch: int, sizes: Sequence[int] | None) -> list[_Part]:
    if sizes is None:
        segment = segment_of(config, epoch)
        segments = [(segment, segment.num_batches)]
    else:
        segments = segments_of(config, sizes, epoch)
    parts: list[_Part] = []
    step = 0
    for segment, end in segments:
        part = _Part(segment, segment.num_done, end, step, config.grad_acc_steps)
        step += part.num_steps
        parts.append(part)
    return [part for part in parts if part.num_steps] or parts[:1]


def _stretches_of(parts: list[_Part]) -> Iterator[Stretch]:
    for number, part in enumerate(parts, 1):
        end = part.first_step + part.num_steps
        name = "the epoch" if len(parts) == 1 else f"part {number}"
        yield Stretch(name, part.segment.world_size, part.first_step, end, end)


def _cells_of(part: _Part, rank: int, steps: list[int]) -> Iterator[Cell]:
    """Yield what a rank gets in each of these steps."""
    largest = part.segment.plan.largest_batch(part.segment.batch_size)
    is_small = (part.end - part.start) * largest <= _MOST_AT_ONCE
    whole = part.segment.block(rank, part.start, part.end) if is_small else None
    for step in steps:
        start, stop = part.batches_of(step)
        if whole is not None:
            block = whole.part(start, stop)
        else:
            block = part.segment.block(rank, start, stop)
        is_all = stop == part.end or stop - start == part.batches_per_step
        yield _cell(block, is_all=is_all)


def _cell(block: Block, *, is_all: bool) -> Cell:
    ids = block.indices if block.is_real is None else block.indices[block.is_real]
    return Cell(
        ids=ids,
        num_real=len(ids) if is_all else None,
        num_padded=len(block.indices) - len(ids),
        num_batches=max(1, len(block)),
        bucket=None if block.buckets is None or not len(block) else int(block.buckets[0]),
    )


def _coverage(parts: list[_Part], columns: list[Column]) -> Iterator[Covered]:
    """Yield what is consumed before each column, and at the end."""
    total = parts[0].segment.num_left
    for column in columns:
        part = parts[column.stretch]
        left = part.segment.num_left_after(part.batches_of(column.step)[0])
        yield Covered(column.epoch, column.step, total - left)
    last = parts[-1]
    left = last.segment.num_left_after(last.end)
    yield Covered(last.segment.epoch, last.first_step + last.num_steps, total - left)
