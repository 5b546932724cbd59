"""What plans yield: batches, and blocks of batches computed together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.words import one_line


@one_line
class Batch(NamedTuple):
    """What one rank gets for one forward pass.

    `is_real` is False where an entry is padding, that is, a sample that was or will be consumed
    elsewhere too. `bucket` is the number of the bucket, where the plan has buckets.

    Args:
        number: Which batch it is, from zero.
        indices: Its samples.
        is_real: Which of them are real and not padding.
        bucket: The number of its bucket, where the plan has buckets.
    """

    number: int
    indices: NDArray[np.int64]
    is_real: NDArray[np.bool_]
    bucket: int | None = None


class Place(NamedTuple):
    """Where and when a sample is consumed: entry `slot` of batch `batch` of rank `rank`.

    Args:
        batch: The number of the batch.
        rank: The rank that consumes it.
        slot: Which entry of the batch it is.
        is_real: Whether it is real and not padding.
    """

    batch: int
    rank: int
    slot: int
    is_real: bool


@one_line
@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive batches of one rank in flat arrays; batch i is `bounds[i]:bounds[i + 1]`.

    `is_real` is None when every entry is real; `buckets` is None when the plan has none.

    Args:
        first: The number of the first batch.
        indices: The samples of all batches.
        bounds: Where each batch begins among them, and where the last one ends.
        is_real: Which samples are real and not padding; None means all.
        buckets: The bucket of each batch; None where the plan has none.
    """

    first: int
    indices: NDArray[np.int64]
    bounds: NDArray[np.int64]
    is_real: NDArray[np.bool_] | None = None
    buckets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def real_indices(self) -> NDArray[np.int64]:
        """The real entries, without padding."""
        return self.indices if self.is_real is None else self.indices[self.is_real]

    def part(self, start: int, stop: int) -> Block:
        """Return batches `[start, stop)`, by their own numbers, as a block."""
        low, high = start - self.first, stop - self.first
        first, end = int(self.bounds[low]), int(self.bounds[high])
        return Block(
            first=start,
            indices=self.indices[first:end],
            bounds=self.bounds[low : high + 1] - first,
            is_real=None if self.is_real is None else self.is_real[first:end],
            buckets=None if self.buckets is None else self.buckets[low:high],
        )

    def __iter__(self) -> Iterator[Batch]:
        numbers = range(self.first, self.first + len(self))
        buckets = repeat(None) if self.buckets is None else self.buckets.tolist()
        sizes = np.diff(self.bounds)
        if self.is_real is None and len(self) and np.all(sizes == sizes[0]):
            size = int(sizes[0])
            rows = self.indices.reshape(len(self), size)
            return map(Batch, numbers, rows, repeat(_all_real(size)), buckets)
        is_real = _all_real(len(self.indices)) if self.is_real is None else self.is_real
        parts = [slice(*edges) for edges in pairwise(self.bounds.tolist())]
        indices_of, marks_of = self.indices.__getitem__, is_real.__getitem__
        return map(Batch, numbers, map(indices_of, parts), map(marks_of, parts), buckets)


@lru_cache(maxsize=64)
def _all_real(size: int) -> NDArray[np.bool_]:
    marks = np.ones(size, dtype=np.bool_)
    marks.flags.writeable = False
    return marks


def every_nth(bounds: NDArray[np.int64], step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of every `step`-th batch, laid end to end, and the entries they hold.

    Examples:
        >>> bounds, entries = every_nth(np.array([0, 2, 3, 7]), 2)
        >>> bounds.tolist(), entries.tolist()
        ([0, 2, 6], [0, 1, 3, 4, 5, 6])
    """
    starts, sizes = bounds[:-1][::step], np.diff(bounds)[::step]
    picked = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return picked, np.repeat(starts - picked[:-1], sizes) + np.arange(picked[-1])
