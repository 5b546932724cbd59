"""A Feistel network with its rounds written down as tables.

Up to `2**32` positions, a half of a position has at most `2**16` values. What a round adds for each
of them fits a table, and looking that up is faster than hashing. The few positions that leave
`[0, n)` are fewer than the values of one half, so a table says where each of them goes, too.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Lanes = NDArray[Any]

# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**14


class FeistelTables:
    """The bijection of `[0, n)` whose round i adds `shifts[i]` of one half to the other.

    Args:
        n: The number of values, at most `2**32`.
        sizes: The number of values of the left half and of the right one.
        shifts: A row for each round, with an entry for each value of a half.
    """

    def __init__(self, n: int, sizes: tuple[int, int], shifts: Words) -> None:
        # The sum of two halves fits 16 bits, mostly; small words are faster.
        kind = np.uint16 if 2 * max(sizes) <= 2**16 else np.uint32
        self.kind = kind
        self.end, self.sizes, self.num_right = _constants(n, sizes, kind)
        self._num_outside = sizes[0] * sizes[1] - n
        self._word = np.uint16 if sizes[0] * sizes[1] <= 2**16 else np.uint32
        self.rounds = [*enumerate(shifts.astype(kind, copy=False))]
        # Where each value that is outside is after a walk.
        self._gone: dict[bool, Words] = {}

    def walk(self, values: NDArray[np.int64], *, backward: bool) -> NDArray[np.int64]:
        """Return where each position goes, or, backward, where each value comes from."""
        result = np.empty(len(values), dtype=np.int64)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            result[part] = self._walk_part(values[part], backward)
        return result

    def words(self, positions: Lanes) -> Words:
        """Return where each position goes, in small words."""
        if len(positions) <= _AT_ONCE:
            return self._walk_part(positions, backward=False)
        parts = range(0, len(positions), _AT_ONCE)
        return np.concatenate(
            [
                self._walk_part(positions[first : first + _AT_ONCE], backward=False)
                for first in parts
            ]
        )

    def _walk_part(self, values: Lanes, backward: bool) -> Words:
        if not 0 < self._num_outside <= len(values) or backward in self._gone:
            words = self._pass(values.astype(np.uint32), backward)
        else:
            # All that lie outside go with these, because a pass of their own would take longer.
            words = np.empty(len(values) + self._num_outside, dtype=np.uint32)
            words[: len(values)] = values
            words[len(values) :] = self._outside()
            words = self._pass(words, backward)
            self._gone[backward] = words[len(values) :].copy()
            words = words[: len(values)]
        self.bring_inside(words, backward=backward)
        return words

    def _outside(self) -> Words:
        """Return the values that are in the net, but not in `[0, n)`."""
        return np.arange(1, self._num_outside + 1, dtype=np.uint32) + self.end

    def run(self, first: int, end: int) -> Lanes:
        """Return where the positions `[first, end)` go, in words as small as they fit.

        A row of positions shares its left half, and rows share their right halves. So nothing has
        to be divided, and the first round needs no table.
        """
        num_right = int(self.num_right)
        if end - first < num_right or num_right > _AT_ONCE:
            return self.walk(np.arange(first, end), backward=False)
        words = np.empty(end - first, dtype=self._word)
        high = -(-end // num_right)
        for row in range(first // num_right, high, _AT_ONCE // num_right):
            begun = row * num_right
            found = self._rows(np.arange(row, min(row + _AT_ONCE // num_right, high)))
            low, high_here = max(first, begun), min(end, begun + len(found))
            words[low - first : high_here - first] = found[low - begun : high_here - begun]
        self.bring_inside(words, backward=False)
        return words

    def _rows(self, numbers: NDArray[np.int64]) -> Lanes:
        """Return the words of some rows after one walk through the rounds.

        Where it is not known yet, the last row tells where the values outside go.
        """
        tells = 0 < self._num_outside <= _AT_ONCE // 64 and False not in self._gone
        if tells:
            numbers = np.append(numbers, int(self.sizes[0]) - 1)
        size, num_right = self.sizes[0], int(self.num_right)
        (_, first), (_, second), *others = self.rounds
        rows = np.add.outer(numbers.astype(size.dtype), first[:num_right])
        spare = np.subtract(rows, size)
        np.minimum(rows, spare, out=rows)
        shift = second.take(rows, None, np.empty_like(rows), "clip")
        columns = np.add(shift, np.arange(num_right, dtype=size.dtype), out=spare)
        np.minimum(columns, np.subtract(columns, self.sizes[1], out=shift), out=columns)
        halves = rows.reshape(-1), columns.reshape(-1)
        self._go(others, halves, shift.reshape(-1), backward=False)
        words: Lanes = np.multiply(halves[0], self.num_right, dtype=self._word)
        words += halves[1]
        if tells:
            self._gone[False] = words[len(words) - self._num_outside :].astype(np.uint32)
            words = words[:-num_right]
        return words

    def bring_inside(self, words: Lanes, *, backward: bool) -> None:
        """Walk on, in place, with those words that are not in `[0, n)`."""
        if self._num_outside:
            outside = np.flatnonzero(words > self.end.astype(words.dtype))
            self.walk_on(words, outside, backward=backward)

    def walk_on(self, words: Lanes, outside: NDArray[np.int64], *, backward: bool) -> None:
        """Walk on, in place, with those words that are at these places."""
        while len(outside):
            if backward not in self._gone:
                self._gone[backward] = self._pass(self._outside(), backward)
            now = self._gone[backward][words[outside] - self.end - np.uint32(1)]
            words[outside] = now
            outside = outside[now > self.end]

    def _pass(self, words: Words, backward: bool) -> Words:
        """Return the words after one walk through the rounds; those given are overwritten."""
        left, kind = words // self.num_right, self.sizes[0].dtype
        words -= left * self.num_right
        halves = left.astype(kind), words.astype(kind)
        rounds = self.rounds[::-1] if backward else self.rounds
        self._go(rounds, halves, np.empty_like(halves[0]), backward=backward)
        # numpy before 2.0 would multiply in the smaller words without the dtype.
        np.multiply(halves[0], self.num_right, out=left, dtype=np.uint32)
        left += halves[1]
        return left

    def _go(
        self,
        rounds: list[tuple[int, Lanes]],
        halves: tuple[Lanes, Lanes],
        shift: Lanes,
        *,
        backward: bool,
    ) -> None:
        """Take both halves through some rounds, in place."""
        spare = np.empty_like(shift)
        shift_by, wrap_by = (np.subtract, np.add) if backward else (np.add, np.subtract)
        for number, table in rounds:
            half, size = halves[number % 2], self.sizes[number % 2]
            # No place is outside the table; without "clip", numpy would make a copy to check that.
            table.take(halves[1 - number % 2], None, shift, "clip")
            shift_by(half, shift, out=half)
            # Unsigned wrap-around makes one of the two huge, so the minimum is the residue.
            wrap_by(half, size, out=spare)
            np.minimum(half, spare, out=half)


@functools.lru_cache(maxsize=256)
def _constants(n: int, sizes: tuple[int, int], kind: Any) -> tuple[Lanes, tuple[Lanes, ...], Lanes]:
    """Return the last value, the sizes of the halves in two kinds of words: both, then the right.

    As arrays without dimensions, because numpy takes twice as long to begin with a scalar.
    """
    halves = tuple(np.array(size, dtype=kind) for size in sizes)
    return np.array(n - 1, dtype=np.uint32), halves, np.array(sizes[1], dtype=np.uint32)


def walk_together(
    tables: list[FeistelTables], edges: list[int], values: Lanes
) -> NDArray[np.int64]:
    """Return where values `[edges[i], edges[i + 1])` go in the bijection of table i.

    For a few values of each that takes a fraction of the time of one walk after another. All tables
    must be of one kind of words.
    """
    result = np.empty(len(values), dtype=np.int64)
    for first in range(0, len(values), _AT_ONCE):
        inside = [min(max(edge - first, 0), _AT_ONCE) for edge in edges]
        parts = [
            (own, slice(low, high))
            for own, (low, high) in zip(tables, pairwise(inside), strict=True)
            if low < high
        ]
        walked = _walk_parts(parts, values[first : first + _AT_ONCE].astype(np.uint32))
        result[first : first + _AT_ONCE] = walked
    return result


def _walk_parts(parts: list[tuple[FeistelTables, slice]], words: Words) -> Words:
    counts = [part.stop - part.start for _, part in parts]
    sizes = [_each([own.sizes[side] for own, _ in parts], counts) for side in (0, 1)]
    num_right = sizes[1].astype(np.uint32)
    if num_right.ndim == 0:
        left = words // num_right
    else:
        # Division by one number at a time is several times faster.
        left = np.empty_like(words)
        for own, part in parts:
            np.floor_divide(words[part], own.num_right, out=left[part])
    words -= left * num_right
    kind = sizes[0].dtype
    halves: tuple[Lanes, Lanes] = left.astype(kind), words.astype(kind)
    shift, spare = np.empty_like(halves[0]), np.empty_like(halves[0])
    for number in range(len(parts[0][0].rounds)):
        half, source = halves[number % 2], halves[1 - number % 2]
        for own, part in parts:
            own.rounds[number][1].take(source[part], None, shift[part], "clip")
        half += shift
        np.subtract(half, sizes[number % 2], out=spare)
        np.minimum(half, spare, out=half)
    np.multiply(halves[0], num_right, out=left, dtype=np.uint32)
    left += halves[1]
    outside = np.flatnonzero(left > _each([own.end for own, _ in parts], counts))
    if len(outside):
        for own, part in parts:
            is_own = (part.start <= outside) & (outside < part.stop)
            own.walk_on(left, outside[is_own], backward=False)
    return left


def _each(values: list[Lanes], counts: list[int]) -> Lanes:
    """Return one value for each entry of every part, or the one that all share."""
    if all(value == values[0] for value in values):
        return values[0]
    return np.repeat(np.array(values), counts)
