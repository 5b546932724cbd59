"""A few values of each of many Feistel networks of one key, as the columns of a matrix.

A network that only a hundred values pass through has its rounds hashed, because tables would take
longer. What can be saved is in the scaling of a hash to the size of a half, `hash * size >> 32`,
which takes seven steps in 32-bit lanes. If the size has few bits, the lowest bits of the hash
hardly ever matter: without them it takes three, and two more note those results in which they
might. Those few go through again with all bits.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.plan.feistel import NARROW, NUM_ROUNDS, FeistelNetwork, Lanes, as_words, halves_of

# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**15
# Rows lie side by side in about so many lines, because numpy begins anew for each line.
_NUM_LINES = range(12, 24)
# With halves of more bits than this, the lowest bits of a hash matter too often.
_FEW_BITS = 10
_FORWARD: tuple[Any, ...] = range(NUM_ROUNDS), np.add, np.subtract


class FeistelColumns(FeistelNetwork):
    """Many bijections of one key: column i of a matrix goes through that of size and number i.

    Sizes are at most `2**32`.

    Examples:
        >>> columns = FeistelColumns(np.array([9000, 5000]), 7, range(2))
        >>> columns.strides(np.array([0, 1]), 2, np.array([2, 2])).T.tolist() == [
        ...     FeistelNetwork(9000, 7, 0).forward(np.array([0, 2])).tolist(),
        ...     FeistelNetwork(5000, 7, 1).forward(np.array([1, 3])).tolist(),
        ... ]
        True
    """

    def __init__(self, sizes: NDArray[np.int64], key: int, numbers: range) -> None:
        self._lane = NARROW
        self._dtype = dtype = NARROW.half.dtype
        distinct, which = np.unique(sizes, return_inverse=True)
        halves = np.array(list(map(halves_of, distinct.tolist())), dtype=dtype)[which]
        # One size for all columns is a third faster than one for each.
        is_one = bool((halves == halves[0]).all())
        self._sizes = (halves[0, 0, ...], halves[0, 1, ...]) if is_one else tuple(halves.T)
        self._last = (sizes - 1).astype(dtype)
        material = _many_round_keys(sizes.tolist(), key, numbers, dtype.itemsize)
        words = as_words(material, dtype).reshape(-1, 2 * NUM_ROUNDS)
        self._keys = np.ascontiguousarray(words.T)

    def strides(self, starts: NDArray[np.int64], step: int, counts: NDArray[np.int64]) -> Lanes:
        """Return where positions `start, start + step, …` of each column go, `count` of them.

        There are at least as many rows as the highest count; entries beyond a count are undefined.
        """
        num_columns, num_rows = len(starts), int(counts.max())
        # All lines have equally many rows, so a few rows too many are added.
        num_lines = min(num_rows, min(_NUM_LINES, key=lambda lines: -num_rows % lines))
        per_line = -(-num_rows // num_lines)
        steps = (np.arange(per_line, dtype=np.int64) * step)[:, None].astype(self._dtype)
        line = (steps + starts.astype(self._dtype)).reshape(-1)
        begun = np.arange(num_lines, dtype=np.int64)[:, None] * (per_line * step)
        values = begun.astype(self._dtype) + line
        result, again = np.empty_like(values), []
        keys = np.concatenate([self._keys] * per_line, axis=1)
        sizes: tuple[Lanes, ...] = self._sizes
        if sizes[0].ndim:
            sizes = tuple(np.concatenate([side] * per_line) for side in sizes)
        at_once = -(-num_lines // max(1, round(values.size / _AT_ONCE)))
        for first in range(0, num_lines, at_once):
            part = slice(first, first + at_once)
            places = self._go(values[part], keys, sizes, result[part])
            again.append(places + first * len(line))
        self._go_on(result, np.concatenate(again), counts)
        rows: Lanes = result.reshape(-1, num_columns)
        return rows

    def _go(
        self, values: Lanes, keys: Lanes, sizes: tuple[Lanes, ...], result: Lanes
    ) -> NDArray[np.int64]:
        """Write where some lines of values go, and return the places of those that must go on.

        Where a value must start again, the result is that value.
        """
        num_bits = int(sizes[0].max()).bit_length()
        if sizes[0].ndim or num_bits > _FEW_BITS:
            result[:] = self._pass(values.copy(), keys, sizes, *_FORWARD)
            places = np.flatnonzero(result > self._last.min())
            return places[result.reshape(-1)[places] > self._last_of(places)]
        fractions = self._rough_pass(values, keys, sizes, num_bits, result)
        # What was left out adds less than a size to a fraction.
        doubtful = fractions >= np.uint32(2**32 - (int(sizes[0]) << num_bits))
        places = np.flatnonzero((result > self._last.min()) | doubtful)
        in_doubt = doubtful.reshape(-1)[places]
        goes_on = in_doubt | (result.reshape(-1)[places] > self._last_of(places))
        starts_again = places[in_doubt]
        result.reshape(-1)[starts_again] = values.reshape(-1)[starts_again]
        return places[goes_on]

    def _last_of(self, places: NDArray[np.int64]) -> Lanes:
        return self._last[places % len(self._last)]

    def _rough_pass(
        self, values: Lanes, keys: Lanes, sizes: tuple[Lanes, ...], num_bits: int, result: Lanes
    ) -> Lanes:
        """Write where values go in one walk through the rounds, less `num_bits` of each hash.

        Return the largest fraction, in `2**-32`, that scaling cut off from each of them.
        """
        lane = self._lane
        shift, spare = np.empty_like(values), np.empty_like(values)
        fractions = np.zeros_like(values)
        left: Lanes = np.floor_divide(values, sizes[1], out=result)
        right = values - np.multiply(left, sizes[1], out=spare)
        halves = left, right
        few, rest = (np.array(bits, dtype=self._dtype) for bits in (num_bits, 32 - num_bits))
        for number in range(NUM_ROUNDS):
            half, size = halves[number % 2], sizes[number % 2]
            np.bitwise_xor(halves[1 - number % 2], keys[2 * number], out=shift)
            shift *= lane.first_multiplier
            np.right_shift(shift, lane.shift, out=spare)
            shift ^= spare
            shift += keys[2 * number + 1]
            shift *= lane.second_multiplier
            shift >>= few
            shift *= size
            np.left_shift(shift, few, out=spare)
            np.maximum(fractions, spare, out=fractions)
            shift >>= rest
            half += shift
            np.subtract(half, size, out=spare)
            np.minimum(half, spare, out=half)
        left *= sizes[1]
        left += right
        return fractions

    def _go_on(self, result: Lanes, places: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Walk on, in place, with the results at these places, until they are where they belong."""
        rows, columns = np.divmod(places, len(counts))
        places = places[rows < counts[columns]]
        flat = result.reshape(-1)
        while len(places):
            keys, sizes = self._of(places % len(counts))
            flat[places] = lanes = self._pass(flat[places], keys, sizes, *_FORWARD)
            places = places[lanes > self._last_of(places)]


def _many_round_keys(sizes: list[int], key: int, numbers: range, itemsize: int) -> bytes:
    """Return the round keys of each size and number, end to end."""
    name = b"feedline.feistel.2" + key.to_bytes(16, "little")
    begun = {n: hashlib.shake_128(name + n.to_bytes(8, "little")).copy for n in set(sizes)}
    found, num_bytes = [], 2 * NUM_ROUNDS * itemsize
    for n, number in zip(sizes, numbers, strict=True):
        digest = begun[n]()
        digest.update(number.to_bytes(8, "little"))
        found.append(digest.digest(num_bytes))
    return b"".join(found)
