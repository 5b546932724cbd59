"""A dry run of one epoch with resizes: no data is read, every sample is counted.

The epoch is cut into as many parts as there are world sizes. Each part ends at a step, where a
cursor is saved as JSON; the next part is resumed from it on the next world size. Very many parts
follow each other directly, because each cursor holds the whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import Cursor, PastSegment, Segment
from feedline.runs.naive_sharding import NaiveSharding
from feedline.runs.plan_report import ChunkReads, can_enumerate, count_reads, naive_of
from feedline.runs.run_config import RunConfig
from feedline.words import one_line

_MOST_CURSORS = 64


@one_line
@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of the epoch on one world size.

    `imbalance` is the difference in samples between ranks, or its bound if not counted.
    """

    ranks: int
    num_batches: int
    num_steps: int
    num_consumed: int
    num_padded: int
    imbalance: int
    reads: ChunkReads | None


@one_line
@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Whether all parts together consumed the plan; `is_counted` if every sample was counted."""

    num_positions: int
    num_consumed: int
    num_repeated: int
    num_missing: int
    num_dropped: int
    num_padded: int
    is_counted: bool


@one_line
@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The parts of an epoch, what they covered, and what naive sharding would have done.

    Args:
        parts: The parts of the epoch, one for each world size.
        coverage: What they covered.
        naive: What naive sharding would have done, where it can be told.
    """

    parts: tuple[Part, ...]
    coverage: Coverage
    naive: NaiveSharding | None


@dataclass(frozen=True)
class PlannedStretch:
    """The batches of a segment before `end`, which are steps from `first_step` on."""

    segment: Segment
    end: int
    first_step: int
    batches_per_step: int

    @property
    def num_batches(self) -> int:
        """The number of its batches on each rank."""
        return self.end - self.segment.num_done

    @property
    def end_step(self) -> int:
        """The step after its last."""
        return self.first_step + -(-self.num_batches // self.batches_per_step)

    def batches_of(self, step: int) -> tuple[int, int]:
        """Return the first batch of a step, and the one after its last."""
        first = self.segment.num_done + (step - self.first_step) * self.batches_per_step
        return first, min(first + self.batches_per_step, self.end)


def dry_run(config: RunConfig, world_sizes: Sequence[int], epoch: int = 0) -> DryRun:
    """Return the counts of one epoch on several world sizes, one after another.

    Args:
        config: What the run consumes, and on how many ranks.
        world_sizes: The number of ranks of each part of the epoch.
        epoch: The number of the epoch.

    Examples:
        >>> config = RunConfig.from_dict({"batch_size": 8, "data": {"samples": 1000}})
        >>> run = dry_run(config, [4, 3, 5])
        >>> run.coverage.num_repeated, run.coverage.num_missing, run.naive.num_repeated
        (0, 0, 80)
    """
    return dry_run_of(config, stretches_of(config, check_sizes(world_sizes), epoch))


def check_sizes(world_sizes: Sequence[int]) -> list[int]:
    """Return the numbers of ranks of an epoch that is resized, or raise."""
    sizes = [check_integer("ranks", size, 1, 2**31) for size in world_sizes]
    if len(sizes) < 2:
        raise InvalidValueError(
            f"resize={sizes} must have at least two world sizes, such as 512,480"
        )
    return sizes


def dry_run_of(config: RunConfig, stretches: Sequence[PlannedStretch]) -> DryRun:
    """Return the counts of an epoch that is consumed in these stretches."""
    whole = stretches[0].segment
    counts = None
    if can_enumerate(whole.num_left, sum(own.segment.world_size for own in stretches)):
        counts = np.zeros(config.plan.num_indices, dtype=np.int64)
    last = stretches[-1]
    parts = [_part(config, own, own is last, counts) for own in stretches]
    past = tuple(
        PastSegment(own.segment.world_size, config.batch_size, own.end) for own in stretches
    )
    num_consumed = sum(part.num_consumed for part in parts)
    num_dropped = last.segment.num_dropped
    if counts is None:
        gap = whole.num_left - num_dropped - num_consumed
        num_missing, num_repeated = max(0, gap), max(0, -gap)
    else:
        planned = _planned_counts(config, whole)
        # What the tail drops is known by its number, so it is not lost.
        num_missing = int(np.maximum(planned - counts, 0).sum()) - num_dropped
        num_repeated = int(np.maximum(counts - planned, 0).sum())
    coverage = Coverage(
        num_positions=whole.num_left,
        num_consumed=num_consumed,
        num_repeated=num_repeated,
        num_missing=num_missing,
        num_dropped=num_dropped,
        num_padded=sum(part.num_padded for part in parts),
        is_counted=counts is not None,
    )
    return DryRun(parts=tuple(parts), coverage=coverage, naive=naive_of(config, whole, past))


def stretches_of(config: RunConfig, sizes: Sequence[int], epoch: int) -> list[PlannedStretch]:
    """Return an epoch that is consumed on these numbers of ranks in turn, in equal parts."""
    plan, batch_size = config.plan, config.batch_size
    segment = plan.segment(world_size=sizes[0], batch_size=batch_size, epoch=epoch)
    stretches: list[PlannedStretch] = []
    for number, world_size in enumerate(sizes):
        step = 0
        if number:
            before = stretches[-1]
            step = before.end_step
            now = {"world_size": world_size, "batch_size": batch_size}
            if len(sizes) <= _MOST_CURSORS:
                cursor = Cursor.from_json(before.segment.cursor(before.end).to_json())
                segment = plan.resume(cursor, **now)
            else:
                segment = before.segment.resized(before.end, **now)
        end = segment.num_batches
        if num_later := len(sizes) - number - 1:
            share = (segment.num_batches - segment.num_done) // (num_later + 1)
            end = segment.num_done + share - share % config.grad_acc_steps
        stretches.append(PlannedStretch(segment, end, step, config.grad_acc_steps))
    return stretches


def _part(
    config: RunConfig,
    stretch: PlannedStretch,
    is_last: bool,
    counts: NDArray[np.int64] | None,
) -> Part:
    """Return a part, and add to `counts`, if given, how often each sample is consumed in it."""
    segment, end = stretch.segment, stretch.end
    if counts is not None:
        blocks = [segment.block(rank, segment.num_done, end) for rank in range(segment.world_size)]
        sizes = [len(block.real_indices) for block in blocks]
        np.add.at(counts, np.concatenate([block.real_indices for block in blocks]), 1)
        num_consumed, imbalance = sum(sizes), max(sizes) - min(sizes)
        num_padded = sum(len(block.indices) for block in blocks) - num_consumed
        reads = None
        if config.chunks is not None:
            reads = count_reads(config.chunks, [block.indices for block in blocks])
    else:
        num_left = segment.num_dropped if is_last else segment.num_left_after(end)
        num_consumed = segment.num_left_after(segment.num_done) - num_left
        num_padded, imbalance = segment.num_padded if is_last else 0, 0
        if is_last and config.plan.tail in ("pad", "even"):
            imbalance = min(max(1, len(config.plan.buckets)), num_consumed)
        reads = _estimate(config, segment.world_size, num_consumed)
    return Part(
        ranks=segment.world_size,
        num_batches=stretch.num_batches,
        num_steps=stretch.end_step - stretch.first_step,
        num_consumed=num_consumed,
        num_padded=num_padded,
        imbalance=imbalance,
        reads=reads,
    )


def _estimate(config: RunConfig, world_size: int, num_consumed: int) -> ChunkReads | None:
    """Return an estimate of the chunks that a part reads: its share, and a restarted window."""
    chunks = config.chunks
    if chunks is None:
        return None
    share = -(-num_consumed * chunks.num_chunks // (chunks.num_samples * world_size))
    most = min(share + config.plan.preload, chunks.num_chunks)
    return ChunkReads(fewest=min(share, most), most=most, total=most * world_size, is_estimate=True)


def _planned_counts(config: RunConfig, segment: Segment) -> NDArray[np.int64]:
    """Return how often the epoch has each sample: once, unless it is a mixture."""
    if config.mixture is None:
        return np.ones(config.plan.num_indices, dtype=np.int64)
    indices = config.mixture.indices(segment.epoch, np.arange(segment.num_left))
    return np.bincount(indices, minlength=config.plan.num_indices)
