"""From a place in a window to an index: which of the window's chunks holds the place.

A window's chunks lie end to end. The index at every place of a small window is written down. In a
large one, searching for the chunk of every place takes longer than shuffling does, so places are
cut into cells as wide as the smallest chunk. A cell then holds at most one end of a chunk: a
division finds the chunk of a place, or that chunk and the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.lazy import lazy
from feedline.plan.orders import Indices

# The indices at so many places take half a mebibyte.
_MOST_LISTED = 2**16
# With more cells than this, searching is cheaper.
_MOST_CELLS = 2**12


class Lookup(Protocol):
    """The chunks of one window."""

    def write(self, places: NDArray[Any], out: Indices) -> None:
        """Write the index at each place to `out`; places are integers of any width."""


class ListedChunks:
    """The index at every place, listed when the first one is asked for."""

    def __init__(self, sizes: Indices, shifts: Indices) -> None:
        self._sizes, self._shifts = sizes, shifts

    @lazy
    def _indices(self) -> Indices:
        indices = np.repeat(self._shifts, self._sizes)
        indices += np.arange(len(indices))
        return indices

    def write(self, places: NDArray[Any], out: Indices) -> None:
        """Write the index at each place to `out`."""
        # No place is outside the list; without "clip", numpy would make a copy to check that.
        self._indices.take(places, None, out, "clip")


@dataclass(frozen=True, eq=False, slots=True)
class ChunkLookup:
    """The chunks of one window, cut into cells.

    A place before `ends[cell]` becomes an index by adding `shifts[cell]`. For one behind that,
    `steps[cell]` is added too. Chunks of one size are the cells, and have no `ends`.
    """

    width: int
    shifts: Indices
    ends: Indices | None = None
    steps: Indices | None = None

    def write(self, places: NDArray[Any], out: Indices) -> None:
        """Write the index at each place to `out`."""
        if self.width > np.iinfo(places.dtype).max:
            places = places.astype(np.int64)
        # Division of small words is several times faster.
        cells = places // np.array(self.width, dtype=places.dtype)
        self.shifts.take(cells, None, out, "clip")
        out += places
        if self.ends is not None and self.steps is not None:
            out += (places >= self.ends.take(cells)) * self.steps.take(cells)


@dataclass(frozen=True, eq=False, slots=True)
class ChunkSearch:
    """The same for chunks that are too different in size for cells."""

    starts: Indices
    shifts: Indices

    def write(self, places: NDArray[Any], out: Indices) -> None:
        """Write the index at each place to `out`."""
        np.add(places, self.shifts.take(self.starts.searchsorted(places, "right") - 1), out=out)


def lookups_of(
    starts: Indices,
    ends: Indices,
    shifts: Indices,
    cuts: Indices,
    most_listed: int = _MOST_LISTED,
) -> list[Lookup]:
    """Return the lookup of each window; the chunks of window i are `[cuts[i], cuts[i + 1])`.

    A chunk holds the places `[start, end)` of its window; adding its shift makes them indices.

    Examples:
        >>> starts, ends, shifts = np.array([[0, 3], [3, 7], [10, 50]])
        >>> lookup, = lookups_of(starts, ends, shifts, np.array([0, 2]))
        >>> indices = np.empty(7, dtype=np.int64)
        >>> lookup.write(np.arange(7), indices)
        >>> indices.tolist()
        [10, 11, 12, 53, 54, 55, 56]
    """
    sizes = ends - starts
    smallest, largest = (
        extreme.reduceat(sizes, cuts[:-1]).tolist() for extreme in (np.minimum, np.maximum)
    )
    lookups: list[Lookup] = []
    for least, most, (low, high) in zip(smallest, largest, pairwise(cuts.tolist()), strict=True):
        own = slice(low, high)
        if int(ends[high - 1]) <= most_listed:
            lookups.append(ListedChunks(sizes[own], shifts[own]))
        elif least == most:
            lookups.append(ChunkLookup(least, shifts[own]))
        else:
            holds_any = np.flatnonzero(sizes[own]) + low
            lookups.append(_unequal(starts[holds_any], ends[holds_any], shifts[holds_any]))
    return lookups


def _unequal(starts: Indices, ends: Indices, shifts: Indices) -> ChunkLookup | ChunkSearch:
    width = int((ends - starts).min())
    num_cells = -(-int(ends[-1]) // width)
    if num_cells > _MOST_CELLS:
        return ChunkSearch(starts, shifts)
    first = starts.searchsorted(np.arange(num_cells) * width, "right") - 1
    then = np.minimum(first + 1, len(shifts) - 1)
    return ChunkLookup(width, shifts[first], ends[first], shifts[then] - shifts[first])
