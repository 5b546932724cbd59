"""A keyed bijection of `[0, n)` that is computed per position: an alternating modular Feistel net.

A position is written as a pair `(left, right)` in `Z_a x Z_b`. Each round adds a keyed hash of one
half to the other half, modulo its size, so every round can be undone. Because `a * b` exceeds `n`
by less than `a`, a few results fall outside `[0, n)`; they walk through the net again until they
are inside, which keeps the map a bijection (each walk follows one cycle of the net's own one).

Only integer arithmetic is used, so the order is the same on every platform. Up to `2**32` positions
the halves fit 16 bits and 32-bit lanes carry them; beyond that 64-bit lanes do. A network of 32-bit
lanes that many values pass through writes its rounds down as tables (`feistel_tables.py`).
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.plan.feistel_tables import FeistelTables

NUM_ROUNDS = 6
# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**14

Lanes = NDArray[Any]
_NONE = np.empty(0, dtype=np.int64)


class _Lane(NamedTuple):
    """The constants of one lane width; `half` is half of its bits."""

    half: Lanes
    low_mask: Lanes
    first_multiplier: Lanes
    second_multiplier: Lanes
    shift: Lanes


def _lane(dtype: Any, *constants: int) -> _Lane:
    # Arrays without dimensions, because numpy takes twice as long to begin with a scalar.
    return _Lane(*(np.array(constant, dtype=dtype) for constant in constants))


# Odd multipliers of well-studied integer finalisers.
NARROW = _lane(np.uint32, 16, 2**16 - 1, 0x7FEB352D, 0x846CA68B, 15)
_WIDE = _lane(np.uint64, 32, 2**32 - 1, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 29)


class FeistelNetwork:
    """The bijection of `[0, n)` that belongs to (key, number).

    Those of one key that have different numbers or sizes are independent. Without a number there is
    only one, and its rounds are those of other sizes under this key.

    With an array of numbers, entry i of every argument goes through the bijection of number i.

    Examples:
        >>> network = FeistelNetwork(10_000, key=7)
        >>> there = network.forward(np.arange(3))
        >>> network.inverse(there).tolist()
        [0, 1, 2]
    """

    def __init__(self, n: int, key: int, number: int | NDArray[np.int64] | None = None) -> None:
        shape = _shape_of(n)
        self._lane, self._sizes, self._last, self._may_leave = shape
        self._dtype = dtype = self._lane.half.dtype
        # Making tables costs as much as so many values without them.
        self._num_until_tables = sum(halves_of(n))
        self._tables: FeistelTables | None = None
        if isinstance(number, np.ndarray):
            # A row of two keys a round for one bijection, a column for each of many.
            many = b"".join(_round_keys(n, key, one, dtype.itemsize) for one in number.tolist())
            self._keys = as_words(many, dtype).reshape(-1, 2 * NUM_ROUNDS).T
        else:
            self._keys = as_words(_round_keys(n, key, number, dtype.itemsize), dtype)

    @classmethod
    def of_each(
        cls, sizes: list[int], keys: list[int], numbers: list[int], counts: NDArray[np.int64]
    ) -> FeistelNetwork:
        """Return one network for entries of many bijections: `counts` of each, one after another.

        All sizes must be at most `2**32`, or all above.
        """
        network = cls.__new__(cls)
        network._lane = _lane_of(max(sizes))
        network._dtype = dtype = network._lane.half.dtype
        halves = np.array(list(map(halves_of, sizes)), dtype=dtype)
        left, right = (np.repeat(halves[:, side], counts) for side in (0, 1))
        network._sizes = left, right
        network._last = np.repeat(np.array([n - 1 for n in sizes], dtype=dtype), counts)
        network._may_leave = True
        network._tables = None
        each = zip(sizes, keys, numbers, strict=True)
        material = b"".join(_round_keys(*one, dtype.itemsize) for one in each)
        words = as_words(material, dtype).reshape(-1, 2 * NUM_ROUNDS).T
        network._keys = np.repeat(words, counts, axis=1)
        return network

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each position goes."""
        tables = self.tables_for(len(positions))
        if tables is not None:
            return tables.walk(positions, backward=False)
        return self._walk(positions, range(NUM_ROUNDS), np.add, np.subtract)

    def words(self, positions: NDArray[np.int64]) -> Lanes:
        """Return where each position goes, in words of any width."""
        tables = self.tables_for(len(positions))
        return self.forward(positions) if tables is None else tables.words(positions)

    def stride(self, positions: range) -> Lanes:
        """Return where a range of positions goes, in words of any width."""
        steps = positions.start, positions.stop, positions.step
        tables = self.tables_for(len(positions))
        if tables is not None:
            return tables.words(np.arange(*steps, dtype=np.uint32))
        return self.forward(np.arange(*steps, dtype=np.int64))

    def run(self, first: int, end: int) -> Lanes:
        """Return where the positions `[first, end)` go, in words of any width."""
        tables = self.tables_for(end - first)
        if tables is not None:
            return tables.run(first, end)
        return self._walk(np.arange(first, end), range(NUM_ROUNDS), np.add, np.subtract)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position that goes to each value."""
        tables = self.tables_for(len(values))
        if tables is not None:
            return tables.walk(values, backward=True)
        return self._walk(values, range(NUM_ROUNDS)[::-1], np.subtract, np.add)

    def tables_for(self, num_values: int) -> FeistelTables | None:
        """Return the tables that many values go through, once as many have come as they cost."""
        if self._tables is None and self._keys.ndim == 1 and self._lane is NARROW:
            self._num_until_tables -= num_values
            if self._num_until_tables <= 0:
                self._tables = self._make_tables()
        return self._tables

    def _make_tables(self) -> FeistelTables:
        sizes = int(self._sizes[0]), int(self._sizes[1])
        # The right half has as many values as the left one, or one fewer.
        source = np.arange(sizes[0], dtype=self._dtype)
        keys = self._keys.reshape(NUM_ROUNDS, 2, 1)
        size_of = np.array(sizes * (NUM_ROUNDS // 2), dtype=self._dtype)[:, None]
        shifts = np.empty((NUM_ROUNDS, sizes[0]), dtype=self._dtype)
        self._round_shift(source, keys[:, 0], keys[:, 1], size_of, shifts, np.empty_like(shifts))
        return FeistelTables(int(self._last) + 1, sizes, shifts)

    def _walk(self, values: NDArray[np.int64], *direction: Any) -> NDArray[np.int64]:
        result = np.empty(len(values), dtype=np.int64)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            own = self._of(part)
            lanes = self._pass(values[part].astype(self._dtype), *own, *direction)
            last = self._last if self._last.ndim == 0 else self._last[part]
            outside = np.flatnonzero(lanes > last) if self._may_leave else _NONE
            while len(outside):
                again = self._pass(lanes[outside], *self._of(first + outside), *direction)
                lanes[outside] = again
                outside = outside[again > (last if last.ndim == 0 else last[outside])]
            result[part] = lanes
        return result

    def _of(self, chosen: Any) -> tuple[Lanes, tuple[Lanes, ...]]:
        """Return the keys and the sizes of some entries, or those that all share."""
        keys = self._keys if self._keys.ndim == 1 else self._keys[:, chosen]
        return keys, tuple(size if size.ndim == 0 else size[chosen] for size in self._sizes)

    def _pass(
        self,
        lanes: Lanes,
        keys: Lanes,
        sizes: tuple[Lanes, ...],
        rounds: range,
        shift_by: np.ufunc,
        wrap_by: np.ufunc,
    ) -> Lanes:
        """Return the lanes after one walk through the rounds, in the given order."""
        num_right = sizes[1]
        left: Lanes = lanes // num_right
        shift, spare = np.empty_like(lanes), np.empty_like(lanes)
        np.multiply(left, num_right, out=spare)
        halves = left, np.subtract(lanes, spare, out=lanes)
        for number in rounds:
            half, size = halves[number % 2], sizes[number % 2]
            source, pair = halves[1 - number % 2], keys[2 * number : 2 * number + 2]
            self._round_shift(source, pair[0, ...], pair[1, ...], size, shift, spare)
            shift_by(half, shift, out=half)
            # Unsigned wrap-around makes one of half and half - size (or half + size, backwards)
            # huge, so the minimum is the residue.
            wrap_by(half, size, out=spare)
            np.minimum(half, spare, out=half)
        left *= num_right
        left += halves[1]
        return left

    def _round_shift(
        self, source: Lanes, key: Lanes, other: Lanes, size: Lanes, out: Lanes, spare: Lanes
    ) -> None:
        """Write a hash of `source` under two keys, scaled to `[0, size)`, to `out`."""
        lane = self._lane
        np.bitwise_xor(source, key, out=out)
        out *= lane.first_multiplier
        np.right_shift(out, lane.shift, out=spare)
        out ^= spare
        out += other
        out *= lane.second_multiplier
        # The high half of the double-width product out * size, from two single-width products.
        # Scaling all bits of the hash matters: with half of them, sizes near two thirds of the
        # range would come out twice as likely at every other value.
        np.bitwise_and(out, lane.low_mask, out=spare)
        spare *= size
        spare >>= lane.half
        out >>= lane.half
        out *= size
        out += spare
        out >>= lane.half


def _lane_of(n: int) -> _Lane:
    return NARROW if n <= 2**32 else _WIDE


@functools.lru_cache(maxsize=256)
def halves_of(n: int) -> tuple[int, int]:
    num_left = math.isqrt(n - 1) + 1
    return num_left, -(-n // num_left)


@functools.lru_cache(maxsize=256)
def _shape_of(n: int) -> tuple[_Lane, tuple[Lanes, Lanes], Lanes, bool]:
    """Return the lane of `n` values, the sizes of the halves, the last value, and if any leave."""
    lane, (num_left, num_right) = _lane_of(n), halves_of(n)
    left, right, last = (np.array(each, lane.half.dtype) for each in (num_left, num_right, n - 1))
    return lane, (left, right), last, num_left * num_right > n


def _round_keys(n: int, key: int, number: int | None, itemsize: int) -> bytes:
    """Return two keys a round; those of several permutations of one key depend on the size too."""
    name = b"feedline.feistel.1" + key.to_bytes(16, "little")
    if number is not None:
        name = b"feedline.feistel.2" + name[-16:] + n.to_bytes(8, "little")
    digest = hashlib.shake_128(name + (number or 0).to_bytes(8, "little"))
    return digest.digest(2 * NUM_ROUNDS * itemsize)


def as_words(material: bytes, dtype: Any) -> Lanes:
    return np.frombuffer(material, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False)
