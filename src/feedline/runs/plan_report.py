"""What a run will consume: counts of one epoch on any number of ranks, without reading data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Chunking, Mixture, PastSegment, Phase, Segment, Share
from feedline.plan.apportion import apportion, longest_without_repeat, shares_of
from feedline.plan.window_deal import WindowedOrder
from feedline.runs.naive_sharding import NaiveSharding
from feedline.runs.run_config import RunConfig
from feedline.words import one_line

_MOST_SAMPLES = 10**6
_MOST_RANKS = 4096
_MOST_ROUNDS = 256
_COUNTS_OF_SHARE = ("num_batches", "num_dropped", "num_padded")


@dataclass(frozen=True, kw_only=True)
class BucketLine:
    """The counts of one bucket."""

    name: str
    num_samples: int
    batch_size: int
    num_batches: int
    num_dropped: int
    num_padded: int


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """How often one source of a mixture is drawn; `num_passes` above 1 repeats its samples."""

    name: str
    num_samples: int
    num_draws: int
    share: float
    num_passes: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes of one rank, and of the epoch; None if the bytes of a sample are unknown.

    `plan_bytes` is the memory of the plan itself: given lists, such as lengths.
    """

    plan_bytes: int
    bytes_per_sample: int | None
    batch_bytes: int | None
    window_bytes: int | None
    step_bytes: int | None
    epoch_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class ChunkReads:
    """The chunks that one rank reads: the fewest and the most, and those of all ranks together.

    An estimate assumes that every window that a rank touches is read whole.
    """

    fewest: int
    most: int
    total: int
    is_estimate: bool


@one_line
@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """The counts of one epoch.

    Args:
        kind: The kind of data.
        fingerprint: The fingerprint of the plan.
        num_samples: The number of samples.
        num_positions: The number of positions of the epoch.
        ranks: The number of ranks.
        batch_size: The number of samples of a batch on each of them.
        grad_acc_steps: The number of batches of a step.
        tail: What happens to the tail.
        epoch: The number of the epoch.
        epochs: The number of epochs of the run.
        num_batches: The number of batches on each rank.
        num_steps: The number of steps of the epoch.
        num_batches_in_last_step: The number of batches of its last step.
        num_steps_of_run: The number of steps of all epochs.
        num_dropped: How many positions no rank gets.
        num_padded: How many entries are padding.
        sources: How often each source is drawn.
        buckets: What the ranks make of each bucket.
        num_chunks: The number of chunks, where there are any.
        preload: How many chunks make a window, where there are any.
        reads: How many chunks ranks read, where there are any.
        cost: How many bytes it takes.
        naive: What naive sharding would do, where it can be told.
    """

    kind: str
    fingerprint: str
    num_samples: int
    num_positions: int
    ranks: int
    batch_size: int
    grad_acc_steps: int
    tail: str
    epoch: int
    epochs: int
    num_batches: int
    num_steps: int
    num_batches_in_last_step: int
    num_steps_of_run: int
    num_dropped: int
    num_padded: int
    sources: tuple[SourceLine, ...]
    buckets: tuple[BucketLine, ...]
    num_chunks: int | None
    preload: int | None
    reads: ChunkReads | None
    cost: Cost
    naive: NaiveSharding | None


def report_plan(config: RunConfig, epoch: int = 0) -> PlanReport:
    """Return the counts of one epoch of a run.

    Args:
        config: What the run consumes, and on how many ranks.
        epoch: The number of the epoch.

    Examples:
        >>> config = RunConfig.from_dict(
        ...     {"ranks": 16384, "batch_size": 32, "data": {"samples": 10**12}}
        ... )
        >>> report_plan(config).num_batches
        1907348
    """
    segment = config.segment(epoch)
    num_steps = -(-segment.num_batches // config.grad_acc_steps)
    chunks = config.chunks
    return PlanReport(
        kind=config.kind,
        fingerprint=config.plan.fingerprint,
        num_samples=sum(source.num_samples for source in config.sources),
        num_positions=segment.num_left,
        ranks=config.ranks,
        batch_size=config.batch_size,
        grad_acc_steps=config.grad_acc_steps,
        tail=config.plan.tail,
        epoch=epoch,
        epochs=config.epochs,
        num_batches=segment.num_batches,
        num_steps=num_steps,
        num_batches_in_last_step=segment.num_batches - (num_steps - 1) * config.grad_acc_steps,
        num_steps_of_run=config.num_steps,
        num_dropped=segment.num_dropped,
        num_padded=segment.num_padded,
        sources=_source_lines(config, epoch),
        buckets=_bucket_lines(config),
        num_chunks=None if chunks is None else chunks.num_chunks,
        preload=None if chunks is None else config.plan.preload,
        reads=_reads_of(config, segment),
        cost=_cost_of(config, segment),
        naive=naive_of(config, segment, (PastSegment(config.ranks, config.batch_size, 0),)),
    )


def spread(first: int, end: int, most: int) -> list[int]:
    """Return at most `most` numbers of a range, evenly, with the first and the last.

    Examples:
        >>> spread(0, 5, 10), spread(0, 100, 3), spread(0, 2**60, 2)
        ([0, 1, 2, 3, 4], [0, 50, 99], [0, 1152921504606846975])
    """
    count = end - first
    if count <= most:
        return list(range(first, end))
    # In integers, because a float does not tell large steps apart.
    num_gaps = max(1, most - 1)
    return [first + (2 * n * (count - 1) + num_gaps) // (2 * num_gaps) for n in range(most)]


def can_enumerate(num_samples: int, num_ranks: int) -> bool:
    """Return whether every sample of every rank can be counted in about a second."""
    return num_samples <= _MOST_SAMPLES and num_ranks <= _MOST_RANKS


def naive_of(
    config: RunConfig, segment: Segment, parts: tuple[PastSegment, ...]
) -> NaiveSharding | None:
    """Return what naive sharding would do, or None if batches have several sizes."""
    if any(line.batch_size != config.batch_size for line in _bucket_lines(config)):
        return None
    drops_last = config.plan.tail == "drop"
    return NaiveSharding(num_samples=segment.num_left, parts=parts, drops_last=drops_last)


def _source_lines(config: RunConfig, epoch: int) -> tuple[SourceLine, ...]:
    if config.mixture is None:
        return ()
    draws = draws_of_sources(config.mixture, epoch)
    total = sum(draws)
    return tuple(
        SourceLine(
            name=source.name,
            num_samples=source.num_samples,
            num_draws=count,
            share=count / total,
            num_passes=count / source.num_samples if source.num_samples else 0.0,
        )
        for source, count in zip(config.sources, draws, strict=True)
    )


def _bucket_lines(config: RunConfig) -> tuple[BucketLine, ...]:
    plan = config.plan
    lines = []
    for number, bucket in enumerate(plan.buckets):
        num_samples, size = len(bucket.members), plan.bucket_batch_size(number, config.batch_size)
        share = Share(
            num_positions=num_samples, world_size=config.ranks, batch_size=size, tail=plan.tail
        )
        counts = {name: getattr(share, name) for name in _COUNTS_OF_SHARE}
        line = BucketLine(name=str(bucket.key), num_samples=num_samples, batch_size=size, **counts)
        lines.append(line)
    return tuple(lines)


def _reads_of(config: RunConfig, segment: Segment) -> ChunkReads | None:
    if config.chunks is None:
        return None
    if not can_enumerate(segment.num_left, config.ranks):
        return estimate_reads(segment)
    ranks = range(config.ranks)
    consumed = [segment.block(rank, 0, segment.num_batches).indices for rank in ranks]
    return count_reads(config.chunks, consumed)


def _cost_of(config: RunConfig, segment: Segment) -> Cost:
    plan, size, chunks = config.plan, config.bytes_per_sample, config.chunks
    together = plan.largest_batch(config.batch_size)
    step = together * config.ranks * min(config.grad_acc_steps, segment.num_batches)
    window = None
    if chunks is not None:
        window = min(plan.preload * -(-chunks.num_samples // chunks.num_chunks), chunks.num_samples)
    batch_bytes, window_bytes, step_bytes, epoch_bytes = (
        None if size is None or count is None else size * count
        for count in (together, window, step, segment.num_left)
    )
    return Cost(
        plan_bytes=8 * plan.num_listed,
        bytes_per_sample=size,
        batch_bytes=batch_bytes,
        window_bytes=window_bytes,
        step_bytes=step_bytes,
        epoch_bytes=epoch_bytes,
    )


def count_reads(chunks: Chunking, indices_of_ranks: list[NDArray[np.int64]]) -> ChunkReads:
    """Return the reads of ranks that consume these samples."""
    counts = [len(np.unique(chunks.rows_of(indices)[0])) for indices in indices_of_ranks]
    return ChunkReads(fewest=min(counts), most=max(counts), total=sum(counts), is_estimate=False)


def estimate_reads(segment: Segment) -> ChunkReads:
    """Return an estimate of what the ranks read in a fresh epoch, from a few rounds and ranks.

    In a round every rank gets a run of places, about one window; the last round is shorter.
    """
    plan = segment.plan
    assert plan.chunks is not None
    order = cast(WindowedOrder, plan.epoch_order(segment.epoch))
    world_size = segment.world_size
    num_rounds = -(-order.num_windows // world_size)
    # The last round is looked at on its own: ranks may share its windows.
    full = spread(0, num_rounds - 1, _MOST_ROUNDS)
    ranks = sorted({0, world_size // 2, world_size - 1})
    weight = (num_rounds - 1) / len(full) if full else 0.0
    counts = []
    for rank in ranks:
        touched = [_num_windows(order, world_size, number, rank) for number in full]
        last = _num_windows(order, world_size, num_rounds - 1, rank)
        counts.append(round(plan.preload * (sum(touched) * weight + last)))
    mean = sum(counts) / len(counts)
    fewest, most = (min(count, plan.chunks.num_chunks) for count in (min(counts), max(counts)))
    total = min(round(mean * world_size), most * world_size)
    return ChunkReads(fewest=fewest, most=most, total=total, is_estimate=True)


def _num_windows(order: WindowedOrder, world_size: int, number: int, rank: int) -> int:
    """Return how many windows a rank touches in a round."""
    numbers = np.minimum(np.array([number, number + 1]) * world_size, order.num_windows)
    starts = order.window_starts(numbers)
    low, high = (starts - starts % world_size).tolist()
    run = (high - low) // world_size
    if not run:
        return 0
    first = low + rank * run
    return order.window_of(first + run - 1) - order.window_of(first) + 1


def draws_of_sources(mixture: Mixture, epoch: int) -> list[int]:
    """Return the number of draws from each source in one epoch.

    Each phase gets exact counts for its length, so they are only added up.

    Examples:
        >>> draws_of_sources(Mixture(sizes=(1000, 10), weights=(1, 3)), epoch=0)
        [253, 757]
    """
    end = mixture.num_positions(epoch)
    phases = phases_of(mixture, epoch)
    drawn = [0] * len(mixture.sizes)
    for number, (start, phase) in enumerate(phases):
        stop = min(phases[number + 1][0], end) if number + 1 < len(phases) else end
        shares = shares_of(phase.weights, phase.temperature)
        length = max(0, stop - start)
        if mixture.strategy == "stop":
            left = [size - gone for size, gone in zip(mixture.sizes, drawn, strict=True)]
            length = min(length, longest_without_repeat(left, shares))
        counts = apportion(length, shares)
        drawn = [before + count for before, count in zip(drawn, counts, strict=True)]
    return drawn


def phases_of(mixture: Mixture, epoch: int) -> list[tuple[int, Phase]]:
    """Return the phases of an epoch, each with the position at which it begins there."""
    planned = [Phase(weights=mixture.weights, temperature=mixture.temperature), *mixture.phases]
    opening = [phase for phase in planned if (phase.epoch, phase.position) <= (epoch, 0)][-1]
    later = [phase for phase in planned if phase.epoch == epoch and phase.position > 0]
    return [(0, opening), *((phase.position, phase) for phase in later)]
