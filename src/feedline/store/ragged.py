"""Copying many runs of entries of two arrays at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["copy_runs"]

Indices = NDArray[np.int64]
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
    """Copy both with scipy's loop over rows, which other threads need not wait for.

    It copies integers of 4 or 8 bytes together with values of any type. Which is which does not
    matter to a copy, so the first array, whatever its type, goes as the integers.
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
