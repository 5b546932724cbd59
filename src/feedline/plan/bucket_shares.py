"""The batches that ranks make of each of many buckets: `Share`, for all of them at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.lazy import lazy
from feedline.plan.orders import Indices
from feedline.plan.shares import MAX_BATCH, Share

# Sums below this fit 64 bits; numpy calls Python's own integers for larger ones.
_LARGE = 2**62


class BucketShares:
    """What `world_size` ranks make of buckets with `num_left` samples and their own batch sizes.

    Answers as a `Share` of each bucket would, in time and memory of a few arrays.

    Examples:
        >>> shares = BucketShares(np.array([10, 3]), 2, np.array([2, 1]), "drop")
        >>> shares.num_batches.tolist(), shares.num_dropped
        ([2, 1], 3)
    """

    def __init__(self, num_left: Indices, world_size: int, batch_sizes: Indices, tail: str) -> None:
        self._world_size, self._tail = world_size, tail
        largest = world_size * int(batch_sizes.max(initial=1))
        most = num_left.sum(dtype=np.float64) + float(largest) * len(num_left)
        kind: Any = np.int64 if most < _LARGE else object
        self._num_left: NDArray[Any] = num_left.astype(kind, copy=False)
        self.batch_sizes = batch_sizes
        self._sizes: NDArray[Any] = batch_sizes.astype(kind, copy=False)
        self._check()
        self.num_batches: Indices = -(-self._num_entries[0] // self._sizes).astype(np.int64)

    def share_of(self, bucket: int) -> Share:
        """Return the share of one bucket."""
        num_left, batch_size = int(self._num_left[bucket]), int(self.batch_sizes[bucket])
        return Share(num_left, self._world_size, batch_size, self._tail)

    @property
    def num_dropped(self) -> int:
        """The number of samples that no rank gets."""
        return int(self._dropped.sum())

    @property
    def num_padded(self) -> int:
        """The number of entries, over all ranks, that are padding."""
        first, last = self._num_entries
        over = self._num_left % self._world_size
        total = last * self._world_size + np.where(first > last, over, 0)
        return int((total - (self._num_left - self._dropped)).sum())

    def num_consumed(self, num_batches: Indices, buckets: Indices | None = None) -> Indices:
        """Return how many samples of each bucket all ranks have had after `num_batches` of it."""
        chosen: Any = slice(None) if buckets is None else buckets
        consumed = num_batches * self._sizes[chosen] * self._world_size
        found: Indices = np.minimum(self._num_left[chosen], consumed).astype(np.int64)
        return found

    @lazy
    def _dropped(self) -> NDArray[Any]:
        reached = self._num_entries[0] * self._world_size
        dropped: NDArray[Any] = np.maximum(self._num_left - reached, 0)
        return dropped

    @lazy
    def _num_entries(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The entries of the first rank in each bucket, and of the last one, as in `Share`."""
        sizes = self._sizes
        whole = self._num_left // self._world_size
        full = whole // sizes * sizes
        upper = -(-self._num_left // self._world_size)
        match self._tail:
            case "drop" | "exact":
                return full, full
            case "pad":
                padded = -(-upper // sizes) * sizes
                return padded, padded
            case "even":
                return upper, np.where(whole == full, upper, whole)
            case "pad_ranks":
                return upper, upper
            case _:
                cut = upper // sizes * sizes
                return cut, cut

    def _check(self) -> None:
        """Raise the error of the first bucket that cannot be shared."""
        unfit = (self.batch_sizes < 1) | (self.batch_sizes > MAX_BATCH)
        if self._tail == "exact" and not unfit.any():
            unfit = self._num_left % (self._sizes * self._world_size) != 0
        for bucket in np.flatnonzero(unfit)[:1].tolist():
            self.share_of(bucket)


def sum_of(numbers: NDArray[Any]) -> int:
    """Return the sum, which may be larger than any of numpy's integers.

    Examples:
        >>> sum_of(np.array([2**62, 2**62]))
        9223372036854775808
    """
    is_large = numbers.sum(dtype=np.float64) >= _LARGE
    return sum(numbers.tolist()) if is_large else int(numbers.sum())
