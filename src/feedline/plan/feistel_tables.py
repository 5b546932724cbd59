"""A Feistel network with its rounds written down as tables.

Up to `2**32` positions, a half of a position has at most `2**16` values. What a round adds for each
of them fits a table, and looking that up is faster than hashing. The few positions that leave
`[0, n)` are fewer than the values of one half, so a table says where each of them comes back, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**14
_FEW_WORDS = 16


class FeistelTables:
    """The bijection of `[0, n)` whose round i adds `shifts[i]` of one half to the other.

    Args:
        n: The number of values, at most `2**32`.
        sizes: The number of values of the left half and of the right one.
        shifts: A row for each round, with an entry for each value of a half.
    """

    def __init__(self, n: int, sizes: tuple[int, int], shifts: Words) -> None:
        self._end = np.array(n - 1, dtype=np.uint32)
        # The sum of two halves fits 16 bits, mostly; small words are faster.
        kind = np.uint16 if 2 * max(sizes) <= 2**16 else np.uint32
        # Arrays without dimensions, because numpy takes twice as long to begin with a scalar.
        self._sizes = [np.array(size, dtype=kind) for size in sizes]
        self._num_right = np.array(sizes[1], dtype=np.uint32)
        self._num_outside = sizes[0] * sizes[1] - n
        self._rounds = [*enumerate(shifts.astype(kind, copy=False))]
        self._returns: dict[bool, Words] = {}

    def walk(self, values: NDArray[np.int64], *, backward: bool) -> NDArray[np.int64]:
        """Return where each position goes, or, backward, where each value comes from."""
        result = np.empty(len(values), dtype=np.int64)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            words = self._pass(values[part].astype(np.uint32), backward)
            if self._num_outside:
                outside = np.flatnonzero(words > self._end)
                if len(outside):
                    places = words[outside] - self._end - np.uint32(1)
                    words[outside] = self._returns_of(backward)[places]
            result[part] = words
        return result

    def _returns_of(self, backward: bool) -> Words:
        """Return where each value from n on is when it is first inside again."""
        if backward not in self._returns:
            begun = np.arange(self._num_outside, dtype=np.uint32) + self._end + np.uint32(1)
            words, outside = begun.copy(), np.arange(self._num_outside)
            while len(outside):
                now = words[outside] = self._walked(words[outside], backward)
                # What comes back to where it began is never inside, and never reached from there.
                outside = outside[(now > self._end) & (now != begun[outside])]
            self._returns[backward] = words
        return self._returns[backward]

    def _walked(self, words: Words, backward: bool) -> Words:
        """Return the words after one walk through the rounds; a few go without numpy's calls."""
        if len(words) > _FEW_WORDS:
            return self._pass(words, backward)
        return np.array([self._walk_alone(word, backward) for word in words.tolist()], np.uint32)

    def _walk_alone(self, word: int, backward: bool) -> int:
        sizes = [int(size) for size in self._sizes]
        halves = [*divmod(word, sizes[1])]
        for number, table in reversed(self._rounds) if backward else self._rounds:
            shift = table.item(halves[1 - number % 2])
            half = halves[number % 2] + (-shift if backward else shift)
            halves[number % 2] = half % sizes[number % 2]
        return halves[0] * sizes[1] + halves[1]

    def _pass(self, words: Words, backward: bool) -> Words:
        """Return the words after one walk through the rounds; those given are overwritten."""
        left, kind = words // self._num_right, self._sizes[0].dtype
        words -= left * self._num_right
        halves = left.astype(kind), words.astype(kind)
        shift, spare = np.empty_like(halves[0]), np.empty_like(halves[0])
        shift_by, wrap_by = (np.subtract, np.add) if backward else (np.add, np.subtract)
        for number, table in reversed(self._rounds) if backward else self._rounds:
            half, size = halves[number % 2], self._sizes[number % 2]
            # No place is outside the table; without "clip", numpy would make a copy to check that.
            table.take(halves[1 - number % 2], None, shift, "clip")
            shift_by(half, shift, out=half)
            # Unsigned wrap-around makes one of the two huge, so the minimum is the residue.
            wrap_by(half, size, out=spare)
            np.minimum(half, spare, out=half)
        np.multiply(halves[0], self._num_right, out=left)
        left += halves[1]
        return left
