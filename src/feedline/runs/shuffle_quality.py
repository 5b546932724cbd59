"""How well an epoch is shuffled, compared with a perfect shuffle.

A few runs of consecutive positions are measured, spread over the epoch. Sources and buckets are
measured one by one, because weights and lengths are intended and not a fault of the shuffle. Each
measure has the value that a uniformly random order would have on average, and four standard
deviations as tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.plan import Plan
from feedline.runs.plan_report import spread
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo
from feedline.words import one_line

_SIGMAS = 4.0
_PARTS = 64
_MOST_POSITIONS = 200_000
_MOST_STREAMS = 8
_RUN = 2000

Indices = NDArray[np.int64]
#: A value, its mean for a perfect shuffle, and its tolerance.
_Found = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Samples of one source: their index in the source at runs of the epoch's positions."""

    name: str
    size: int
    num_positions: int
    batch_size: int
    runs: list[tuple[Indices, Indices]]
    chunk_of: Callable[[Indices], Indices] | None = None
    num_chunks: int = 0

    @property
    def positions(self) -> Indices:
        """The positions of all runs."""
        return np.concatenate([positions for positions, _ in self.runs])

    @property
    def indices(self) -> Indices:
        """The index inside the source at each position."""
        return np.concatenate([indices for _, indices in self.runs])


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of one source or bucket, and its value for a perfect shuffle."""

    name: str
    stream: str
    value: float
    expected: float
    tolerance: float

    @property
    def is_good(self) -> bool:
        """Whether the value is within the tolerance."""
        return abs(self.value - self.expected) <= self.tolerance


@one_line
@dataclass(frozen=True, kw_only=True)
class Quality:
    """All measures of an epoch."""

    epoch: int
    num_positions: int
    num_measured: int
    measures: tuple[Measure, ...]

    @property
    def is_good(self) -> bool:
        """Whether all measures are within the tolerance."""
        return all(measure.is_good for measure in self.measures)


def measure_quality(config: RunConfig, epoch: int = 0) -> Quality:
    """Return how well one epoch of a run is shuffled.

    Args:
        config: What the run consumes, and on how many ranks.
        epoch: The number of the epoch.

    Examples:
        >>> shuffled = RunConfig.from_dict({"batch_size": 32, "data": {"samples": 5000}})
        >>> measure_quality(shuffled).is_good
        True
        >>> ordered = {"batch_size": 32, "shuffle": False, "data": {"samples": 5000}}
        >>> measure_quality(RunConfig.from_dict(ordered)).is_good
        False
    """
    epoch = check_integer("epoch", epoch, 0)
    streams = list(streams_of(config, epoch))
    measures = [m for stream in streams for m in measures_of(stream)]
    return Quality(
        epoch=epoch,
        num_positions=config.plan.begin(epoch).num_left,
        num_measured=sum(len(indices) for stream in streams for _, indices in stream.runs),
        measures=tuple(measures),
    )


def measures_of(stream: Stream) -> Iterator[Measure]:
    """Yield the measures of one source; none if it has fewer than two samples."""
    positions, indices = stream.positions, stream.indices
    count = len(indices)
    if count < 2 or stream.size < 2:
        return
    places = (positions + 0.5) / stream.num_positions
    values = (indices + 0.5) / stream.size
    noise = _SIGMAS / math.sqrt(count)
    # For a place p and a uniform value v the mean of |v - p| is (p^2 + (1 - p)^2) / 2.
    displacement = float((places**2 + (1 - places) ** 2).mean() / 2)
    moved = float(np.abs(values - places).mean())
    alike = float(((positions - indices) % 2 == 0).mean())
    found: dict[str, _Found | None] = {
        "position correlation": (_correlation(places, values), 0.0, noise),
        "mean displacement": (moved, displacement, noise / math.sqrt(18)),
        "adjacency": _adjacency(stream),
        "parity": (alike, 0.5, noise / 2),
        "chunks per batch": _chunks_per_batch(stream),
    }
    for name, numbers in found.items():
        if numbers is not None:
            value, mean, off = numbers
            yield Measure(name=name, stream=stream.name, value=value, expected=mean, tolerance=off)


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    left, right = left - left.mean(), right - right.mean()
    scale = math.sqrt(float((left @ left) * (right @ right)))
    return float(left @ right) / scale if scale else 0.0


def _adjacency(stream: Stream) -> _Found:
    """Return the share of neighbours that were neighbours before."""
    steps = np.concatenate([np.diff(indices) for _, indices in stream.runs])
    num_pairs = max(1, len(steps))
    kept = int((np.abs(steps) == 1).sum())
    mean = num_pairs * 2 / stream.size
    # Rare events: a few of them are chance, even where hardly any are expected.
    off = _SIGMAS * math.sqrt(mean) + _SIGMAS
    return kept / num_pairs, mean / num_pairs, off / num_pairs


def _chunks_per_batch(stream: Stream) -> _Found | None:
    """Return the number of chunks that the samples of a batch come from; without chunks, of 64
    equal parts."""
    width = -(-stream.size // min(_PARTS, stream.size))
    num_chunks = stream.num_chunks or -(-stream.size // width)
    chunk_of = stream.chunk_of or (lambda indices: indices // width)
    together = min(stream.batch_size, max(len(indices) for _, indices in stream.runs))
    counts = []
    for _, indices in stream.runs:
        whole = len(indices) // together * together
        for batch in indices[:whole].reshape(-1, together):
            counts.append(len(np.unique(chunk_of(batch))))
    if not counts:
        return None
    expected, variance = _occupied(stream.size, num_chunks, together)
    off = _SIGMAS * math.sqrt(max(variance, 0.0) / len(counts)) + 1e-9 * num_chunks
    return float(np.mean(counts)), expected, off


def _occupied(size: int, num_chunks: int, num_drawn: int) -> tuple[float, float]:
    """Return mean and variance of the number of chunks hit by draws without repetition."""

    def missed(num_missed: int) -> float:
        # The chance that no draw falls into this many chunks of the mean size.
        rest = size - num_missed * size / num_chunks
        if rest < num_drawn:
            return 0.0
        drawn = np.arange(num_drawn)
        return math.exp(float(np.log((rest - drawn) / (size - drawn)).sum()))

    one, two = missed(1), missed(2)
    mean = num_chunks * (1 - one)
    variance = num_chunks * one + num_chunks * (num_chunks - 1) * two - (num_chunks * one) ** 2
    return mean, variance


def streams_of(config: RunConfig, epoch: int) -> Iterator[Stream]:
    """Yield the sources or buckets of one epoch, the largest ones if there are many."""
    plan, mixture, chunks = config.plan, config.mixture, config.chunks
    if plan.buckets:
        yield from _streams_of_buckets(plan, epoch, config.batch_size)
        return
    order = plan.epoch_order(epoch)
    assert order is not None
    runs = [(run, order.indices(run)) for run in _runs(order.num_positions, _MOST_POSITIONS)]
    if mixture is not None:
        located = [(run, *mixture.sources_of(indices)) for run, indices in runs]
        yield from split_by_source(located, config.sources, order.num_positions, config.batch_size)
        return
    yield Stream(
        name=config.sources[0].name,
        size=order.num_positions,
        num_positions=order.num_positions,
        batch_size=config.batch_size,
        runs=runs,
        chunk_of=None if chunks is None else lambda indices: chunks.rows_of(indices)[0],
        num_chunks=0 if chunks is None else chunks.num_chunks,
    )


def split_by_source(
    located: Sequence[tuple[Indices, Indices, Indices]],
    sources: Sequence[SourceInfo],
    num_positions: int,
    batch_size: int,
) -> Iterator[Stream]:
    """Yield the streams of the sources that come most often.

    Args:
        located: Runs of positions, with the source of each sample and its index in there.
        sources: The sources.
        num_positions: The number of positions in the epoch.
        batch_size: The number of samples in a batch.
    """
    drawn = np.bincount(np.concatenate([s for _, s, _ in located]), minlength=len(sources))
    for number in sorted(np.argsort(-drawn, kind="stable")[:_MOST_STREAMS].tolist()):
        if drawn[number] < 2:
            continue
        own = [(run[s == number], inside[s == number]) for run, s, inside in located]
        yield Stream(
            name=sources[number].name,
            size=sources[number].num_samples,
            num_positions=num_positions,
            batch_size=batch_size,
            runs=[pair for pair in own if len(pair[0])],
        )


def _streams_of_buckets(plan: Plan, epoch: int, batch_size: int) -> Iterator[Stream]:
    largest = sorted(range(len(plan.buckets)), key=lambda n: -len(plan.buckets[n].members))
    for number in sorted(largest[:_MOST_STREAMS]):
        members, order = plan.buckets[number].members, plan.epoch_order(epoch, number)
        assert order is not None
        runs = []
        for run in _runs(len(members), _MOST_POSITIONS // _MOST_STREAMS):
            indices = order.indices(run)
            if isinstance(members, range):
                runs.append((run, indices - members.start))
            else:
                runs.append((run, np.searchsorted(members, indices)))
        yield Stream(
            name=str(plan.buckets[number].key),
            size=len(members),
            num_positions=len(members),
            batch_size=plan.bucket_batch_size(number, batch_size),
            runs=runs,
        )


def _runs(num_positions: int, most: int) -> list[Indices]:
    """Return runs of consecutive positions, spread evenly; all positions if they are few."""
    if num_positions <= most:
        return [np.arange(num_positions, dtype=np.int64)]
    starts = spread(0, num_positions - _RUN + 1, most // _RUN)
    return [np.arange(start, start + _RUN, dtype=np.int64) for start in starts]
