"""Where the rows of several sources lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from feedline.store.slices import Numbers

# The places of so many rows are kept in one table; those of more are looked up source by source.
_MOST_IN_TABLE = 2**20


class Placed(Protocol):
    """Rows in memory: the first address, and where each row begins from there."""

    @property
    def address(self) -> int: ...
    @property
    def starts(self) -> Numbers: ...
    def __len__(self) -> int: ...


class FlatPlaces:
    """The addresses of the rows of several sources, as of one.

    Args:
        sources: Where the rows are; they are kept.
    """

    def __init__(self, sources: Sequence[Placed]) -> None:
        self._sources = sources
        self._firsts = np.cumsum([0, *map(len, sources)])
        self._table: Numbers | None = None
        if self._firsts[-1] <= _MOST_IN_TABLE:
            self._table = np.concatenate([source.address + source.starts for source in sources])

    @property
    def is_table(self) -> bool:
        """Whether all places are kept in one table."""
        return self._table is not None

    def numbers(self, numbers: Numbers, rows: Numbers) -> Numbers:
        """Return the number of row `rows[i]` of source `numbers[i]` among all rows."""
        places: Numbers = self._firsts.take(numbers)
        places += rows
        return places

    def addresses(self, numbers: Numbers, rows: Numbers) -> Numbers:
        """Return the address of row `rows[i]` of source `numbers[i]`, for each i."""
        if self._table is not None:
            return self._table.take(self.numbers(numbers, rows))
        found = np.empty(len(rows), np.int64)
        for number, mine in by_source(numbers):
            source = self._sources[number]
            found[mine] = source.address + source.starts.take(rows[mine])
        return found


def by_source(numbers: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield each number that is there, and its places.

    Examples:
        >>> [(number, mine.tolist()) for number, mine in by_source(np.array([3, 1, 3]))]
        [(1, [1]), (3, [0, 2])]
    """
    if not len(numbers):
        return
    order = stable_order(numbers)
    ordered = numbers[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for first, end in pairwise([0, *edges.tolist(), len(order)]):
        yield int(ordered[first]), order[first:end]


def stable_order(numbers: Numbers) -> Numbers:
    """Return the places of some numbers, at least one and none below 0, in ascending order."""
    # Short integers are sorted several times faster.
    keys = numbers.astype(np.uint16) if numbers.max() < 2**16 else numbers
    return np.argsort(keys, kind="stable")
