"""Runs of entries that are read together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["Runs", "runs_of"]

Indices = NDArray[np.int64]


class Runs:
    """Runs of entries along the first axis of an array, laid one after another in a buffer."""

    def __init__(self, starts: Indices, ends: Indices) -> None:
        self.starts = starts
        self.ends = ends
        self.offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)
        self.num_entries = int(self.offsets[-1])

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield where each run begins and ends, and where it lies in the buffer."""
        offsets = self.offsets[:-1].tolist()
        return zip(self.starts.tolist(), self.ends.tolist(), offsets, strict=True)

    def places_of(self, entries: Indices) -> Indices:
        """Return where in the buffer each entry lies; it is known to be in some run."""
        which = np.searchsorted(self.starts, entries, side="right") - 1
        return entries - self.starts[which] + self.offsets[which]


def runs_of(starts: Indices, ends: Indices, chunk_size: int) -> Runs:
    """Return runs that hold the entries of all intervals `[start, end)`.

    No two runs have entries in one chunk, so that none has to be decoded twice. Where a run begins
    or ends inside of a chunk, a part of it may be all that has to be decoded.

    Examples:
        >>> runs = runs_of(np.array([5, 9, 17]), np.array([6, 11, 18]), chunk_size=4)
        >>> runs.starts.tolist(), runs.ends.tolist()
        ([5, 9, 17], [6, 11, 18])
        >>> runs = runs_of(np.array([5, 7, 17]), np.array([6, 11, 18]), chunk_size=4)
        >>> runs.starts.tolist(), runs.ends.tolist()
        ([5, 17], [11, 18])
    """
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.ones(len(starts), dtype=np.bool_)
    is_first[1:] = starts[1:] // chunk_size > (ends[:-1] - 1) // chunk_size
    # Neighbours that touch at the edge of a chunk are better read in one go.
    is_first[1:] &= starts[1:] != ends[:-1]
    is_last = np.append(is_first[1:], True)[: len(starts)]
    return Runs(starts[is_first], ends[is_last])
