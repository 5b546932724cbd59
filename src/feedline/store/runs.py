"""Runs of entries that are read together, and copied together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Runs:
    """Runs of entries along the first axis of an array, consecutive in a buffer."""

    def __init__(self, starts: Indices, ends: Indices) -> None:
        self.starts = starts
        self.ends = ends
        self.offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)
        self.num_entries = int(self.offsets[-1])

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield the start and end of each run, and its position in the buffer."""
        offsets = self.offsets[:-1].tolist()
        return zip(self.starts.tolist(), self.ends.tolist(), offsets, strict=True)

    def places_of(self, entries: Indices) -> Indices:
        """Return the position of each entry in the buffer; every entry is in some run."""
        which = np.searchsorted(self.starts, entries, side="right") - 1
        return entries - self.starts[which] + self.offsets[which]


def runs_of(starts: Indices, ends: Indices, chunk_size: int) -> Runs:
    """Return runs that hold the entries of all intervals `[start, end)`.

    No two runs have entries in one chunk, so no chunk is decoded twice. Where a run begins or ends
    inside a chunk, only a part of the chunk may be decoded.

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


Pair = tuple[NDArray[Any], NDArray[Any]]


def copy_runs(starts: Indices, ends: Indices, sources: Pair, outs: Pair) -> None:
    """Copy entries `[start, end)` of both sources to both outs, run after run.

    Examples:
        >>> a, b = np.arange(10.0), np.arange(10)
        >>> outs = np.empty(5), np.empty(5, int)
        >>> copy_runs(np.array([7, 0]), np.array([10, 2]), (a, b), outs)
        >>> outs[0].tolist(), outs[1].tolist()
        ([7.0, 8.0, 9.0, 0.0, 1.0], [7, 8, 9, 0, 1])
    """
    if not len(outs[0]):
        return
    for first, second in ((0, 1), (1, 0)):
        is_fit = sources[first].itemsize in (4, 8) and sources[second].dtype.kind in "biuf"
        if is_fit and _copy_in_c(starts, ends, *((p[first], p[second]) for p in (sources, outs))):
            return
    cuts = list(map(slice, starts.tolist(), ends.tolist()))
    for source, out in zip(sources, outs, strict=True):
        np.concatenate([source[cut] for cut in cuts], out=out)


def _copy_in_c(starts: Indices, ends: Indices, sources: Pair, outs: Pair) -> bool:
    """Copy both with scipy's loop over rows, which releases the interpreter's lock.

    It copies integers of 4 or 8 bytes together with values of any type. Which is which does not
    matter to a copy, so the first array, of any type, is passed as the integers.
    """
    try:
        from scipy.sparse._sparsetools import csr_row_index
    except ImportError:  # it has no public name
        return False
    integer = np.dtype(f"i{sources[0].itemsize}")
    if max(len(sources[0]), 2 * len(starts)) > np.iinfo(integer).max:
        return False
    # Of all edges it reads those at `row` and `row + 1`: here a run's own start and end.
    edges = np.stack([starts, ends], axis=1).astype(integer).ravel()
    rows = np.arange(0, len(edges), 2, dtype=integer)
    values = [array.view(f"u{array.itemsize}") for array in (sources[1], outs[1])]
    integers = [array.view(integer) for array in (sources[0], outs[0])]
    csr_row_index(len(rows), rows, edges, integers[0], values[0], integers[1], values[1])
    return True
