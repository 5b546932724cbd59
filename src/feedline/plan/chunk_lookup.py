"""From a place in a window to an index: which of the window's chunks holds the place.

A window's chunks lie end to end. Searching for the chunk of every place takes longer than shuffling
does, so places are cut into cells as wide as the smallest chunk. A cell then holds at most one end
of a chunk: a division finds the chunk of a place, or that chunk and the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from feedline.plan.orders import Indices

# With more cells than this, searching is cheaper.
_MOST_CELLS = 2**12


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

    def indices(self, places: Indices) -> Indices:
        """Return the index at each place."""
        cells = places // self.width
        indices = self.shifts.take(cells)
        indices += places
        if self.ends is not None and self.steps is not None:
            indices += (places >= self.ends.take(cells)) * self.steps.take(cells)
        return indices


@dataclass(frozen=True, eq=False, slots=True)
class ChunkSearch:
    """The same for chunks that are too different in size for cells."""

    starts: Indices
    shifts: Indices

    def indices(self, places: Indices) -> Indices:
        """Return the index at each place."""
        return places + self.shifts.take(self.starts.searchsorted(places, "right") - 1)


def lookups_of(
    starts: Indices, ends: Indices, shifts: Indices, cuts: Indices
) -> list[ChunkLookup | ChunkSearch]:
    """Return the lookup of each window; the chunks of window i are `[cuts[i], cuts[i + 1])`.

    A chunk holds the places `[start, end)` of its window; adding its shift makes them indices.

    Examples:
        >>> starts, ends, shifts = np.array([[0, 3], [3, 7], [10, 50]])
        >>> lookup, = lookups_of(starts, ends, shifts, np.array([0, 2]))
        >>> lookup.indices(np.arange(7)).tolist()
        [10, 11, 12, 53, 54, 55, 56]
    """
    sizes = ends - starts
    smallest, largest = (
        extreme.reduceat(sizes, cuts[:-1]).tolist() for extreme in (np.minimum, np.maximum)
    )
    lookups: list[ChunkLookup | ChunkSearch] = []
    for least, most, (low, high) in zip(smallest, largest, pairwise(cuts.tolist()), strict=True):
        own = slice(low, high)
        if least == most:
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
