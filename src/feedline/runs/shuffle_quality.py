"""How well an epoch is shuffled, beside what a perfect shuffle would give.

A few runs of consecutive positions are looked at, spread over the epoch. Sources and buckets are
looked at one by one, because weights and lengths are wanted and no fault of the shuffle. Each
measure has the value that a uniformly random order would have on average, and four standard
deviations as tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.runs.run_config import RunConfig
from feedline.runs.shuffle_streams import Stream, streams_of

__all__ = ["Measure", "Quality", "measure_quality", "measures_of"]

_SIGMAS = 4.0
_PARTS = 64


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of one source or bucket, and what a perfect shuffle gives."""

    name: str
    stream: str
    value: float
    expected: float
    tolerance: float

    @property
    def is_good(self) -> bool:
        """Whether chance could give the value."""
        return abs(self.value - self.expected) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Quality:
    """All measures of an epoch."""

    epoch: int
    num_positions: int
    num_measured: int
    measures: tuple[Measure, ...]

    @property
    def is_good(self) -> bool:
        """Whether all measures are like those of a perfect shuffle."""
        return all(measure.is_good for measure in self.measures)


def measure_quality(config: RunConfig, epoch: int = 0) -> Quality:
    """Return how well one epoch of a run is shuffled.

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
    """Yield the measures of one source; none of one that has fewer than two samples."""
    positions, indices = stream.positions, stream.indices
    count = len(indices)
    if count < 2 or stream.size < 2:
        return
    places = (positions + 0.5) / stream.num_positions
    values = (indices + 0.5) / stream.size
    noise = _SIGMAS / math.sqrt(count)
    yield _measure(stream, "position correlation", _correlation(places, values), 0.0, noise)
    # For a place p and a uniform value v the mean of |v - p| is (p^2 + (1 - p)^2) / 2.
    displacement = float((places**2 + (1 - places) ** 2).mean() / 2)
    moved = float(np.abs(values - places).mean())
    yield _measure(stream, "mean displacement", moved, displacement, noise / math.sqrt(18))
    yield _adjacency(stream)
    alike = float(((positions - indices) % 2 == 0).mean())
    yield _measure(stream, "parity", alike, 0.5, noise / 2)
    spread = _chunks_per_batch(stream)
    if spread is not None:
        yield spread


def _measure(stream: Stream, name: str, value: float, expected: float, off: float) -> Measure:
    return Measure(name=name, stream=stream.name, value=value, expected=expected, tolerance=off)


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    left, right = left - left.mean(), right - right.mean()
    scale = math.sqrt(float((left @ left) * (right @ right)))
    return float(left @ right) / scale if scale else 0.0


def _adjacency(stream: Stream) -> Measure:
    """Return the share of neighbours that were neighbours before."""
    steps = np.concatenate([np.diff(indices) for _, indices in stream.runs])
    num_pairs = max(1, len(steps))
    kept = int((np.abs(steps) == 1).sum())
    mean = num_pairs * 2 / stream.size
    # Rare events: a few of them are chance, even where hardly any are expected.
    off = _SIGMAS * math.sqrt(mean) + _SIGMAS
    return _measure(stream, "adjacency", kept / num_pairs, mean / num_pairs, off / num_pairs)


def _chunks_per_batch(stream: Stream) -> Measure | None:
    """Return in how many chunks the samples of a batch lie; without chunks, in 64 equal parts."""
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
    return _measure(stream, "chunks per batch", float(np.mean(counts)), expected, off)


def _occupied(size: int, num_chunks: int, num_drawn: int) -> tuple[float, float]:
    """Return mean and variance of the number of chunks hit by draws without repetition."""

    def missed(num_missed: int) -> float:
        # The chance that no draw falls into so many chunks of the mean size.
        rest = size - num_missed * size / num_chunks
        if rest < num_drawn:
            return 0.0
        drawn = np.arange(num_drawn)
        return math.exp(float(np.log((rest - drawn) / (size - drawn)).sum()))

    one, two = missed(1), missed(2)
    mean = num_chunks * (1 - one)
    variance = num_chunks * one + num_chunks * (num_chunks - 1) * two - (num_chunks * one) ** 2
    return mean, variance
