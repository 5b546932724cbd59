"""Values that go through one of a few bijections each, in any sequence.

Sorting the values by bijection and back takes half as long as the walk itself. Where all are of one
size, the tables of a round lie end to end, and a value looks up its own one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.plan.feistel_tables import FeistelTables, Words
from feedline.plan.permutation import Permutation

# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**15


class StackedTables:
    """Permutations of one size, which have tables of small words.

    Examples:
        >>> both = [Permutation(5000, 7), Permutation(5000, 8)]
        >>> stacked = StackedTables.of(both)
        >>> stacked.forward(np.array([1, 0]), np.array([4, 3], dtype=np.uint32)).tolist() == [
        ...     *both[1].forward(np.array([4])).tolist(),
        ...     *both[0].forward(np.array([3])).tolist(),
        ... ]
        True
    """

    def __init__(self, tables: Sequence[FeistelTables]) -> None:
        self._tables = tables
        self._first = first = tables[0]
        # A half of one has at most as many values as its table is long.
        self._length = int(first.sizes[0])
        rounds = zip(*(own.rounds for own in tables), strict=True)
        self._rounds = [np.concatenate([table for _, table in own]) for own in rounds]

    @classmethod
    def of(cls, permutations: Sequence[Permutation]) -> StackedTables | None:
        """Return these permutations as stacked tables, if they are such that this is faster."""
        if len({own.n for own in permutations}) > 1:
            return None
        # Tables are made once as many values have come as they cost: here they have.
        tables = [own.tables_for(own.n) for own in permutations]
        found = [own for own in tables if own is not None and own.kind == np.uint16]
        return cls(found) if len(found) == len(tables) else None

    def forward(self, which: NDArray[np.int64], values: Words) -> Words:
        """Return where each value goes in the permutation of the number beside it."""
        result = np.empty(len(values), dtype=np.uint32)
        for begun in range(0, len(values), _AT_ONCE):
            part = slice(begun, begun + _AT_ONCE)
            self._go(which[part], values[part], result[part])
        outside = np.flatnonzero(result > self._first.end)
        numbers = which[outside]
        for number in set(numbers.tolist()):
            self._tables[number].walk_on(result, outside[numbers == number], backward=False)
        return result

    def _go(self, which: NDArray[np.int64], values: Words, result: Words) -> None:
        """Write where some values are after one walk through the rounds."""
        sizes, num_right = self._first.sizes, self._first.num_right
        kind = sizes[0].dtype
        left = np.floor_divide(values, num_right, out=result)
        halves: tuple[NDArray[Any], NDArray[Any]] = (
            left.astype(kind),
            (values - left * num_right).astype(kind),
        )
        starts = which * self._length
        cells = np.empty_like(starts)
        shift, spare = np.empty_like(halves[0]), np.empty_like(halves[0])
        for number, table in enumerate(self._rounds):
            half, size = halves[number % 2], sizes[number % 2]
            np.copyto(cells, halves[1 - number % 2])
            cells += starts
            # No place is outside the table; without "clip", numpy would make a copy to check that.
            table.take(cells, None, shift, "clip")
            half += shift
            np.subtract(half, size, out=spare)
            np.minimum(half, spare, out=half)
        # numpy before 2.0 would multiply in the smaller words without the dtype.
        np.multiply(halves[0], num_right, out=result, dtype=np.uint32)
        np.add(result, halves[1], out=result)


class _Latest(NamedTuple):
    """The passes that were asked for last (-1: none), and how many values until they are stacked.

    `draws_before` is the number of draws of each source before its pass.
    """

    passes: list[int]
    num_until: int
    draws_before: NDArray[np.int64]
    tables: StackedTables | None


class LatestPasses:
    """The passes over the sources of a mixture that are under way, as stacked tables.

    Args:
        sizes: The number of samples of each source.
        pass_over: Returns the permutation of a source in a pass, by their numbers.
    """

    def __init__(self, sizes: Sequence[int], pass_over: Callable[[int, int], Permutation]) -> None:
        self._sizes, self._pass_over = sizes, pass_over
        # Replaced as a whole, because threads may share it.
        self._latest = _Latest([], 0, np.empty(0, dtype=np.int64), None)

    def stacked(
        self, lows: list[int], highs: list[int], count: int
    ) -> tuple[StackedTables, NDArray[np.int64]] | None:
        """Return tables for draws `[low, high)` of each source, and the draws before its pass.

        There are none if a source begins another pass there, if sizes differ, or if fewer values
        have come yet than the tables cost; `count` values are to come.
        """
        passes = []
        for low, high, size in zip(lows, highs, self._sizes, strict=True):
            number = low // size if low < high else -1
            if low < high and (high - 1) // size != number:
                return None
            passes.append(number)
        latest = self._latest
        if latest.passes != passes:
            latest = self._begun(passes)
        if latest.tables is None and latest.num_until > 0:
            latest = latest._replace(num_until=latest.num_until - count)
            if latest.num_until <= 0:
                latest = latest._replace(tables=self._stack(passes))
        self._latest = latest
        return None if latest.tables is None else (latest.tables, latest.draws_before)

    def _begun(self, passes: list[int]) -> _Latest:
        pairs = [*zip(passes, self._sizes, strict=True)]
        before = np.array([max(number, 0) * size for number, size in pairs], dtype=np.int64)
        cost = sum(2 * math.isqrt(size) for number, size in pairs if number >= 0)
        return _Latest(passes, cost, before, None)

    def _stack(self, passes: list[int]) -> StackedTables | None:
        drawn = {
            source: self._pass_over(source, number)
            for source, number in enumerate(passes)
            if number >= 0
        }
        # Nothing looks up the places of sources that are not drawn.
        filler = next(iter(drawn.values()))
        return StackedTables.of([drawn.get(source, filler) for source in range(len(passes))])
