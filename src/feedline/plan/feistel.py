"""A keyed bijection of `[0, n)` that is computed per position: an alternating modular Feistel net.

A position is written as a pair `(left, right)` in `Z_a x Z_b`. Each round adds a keyed hash of one
half to the other half, modulo its size, so every round can be undone. Because `a * b` exceeds `n`
by less than `a`, a few results fall outside `[0, n)`; they walk through the net again until they
are inside, which keeps the map a bijection (each walk follows one cycle of the net's own one).

Only integer arithmetic is used, so the order is the same on every platform. Up to `2**32` positions
the halves fit 16 bits and 32-bit lanes carry them; beyond that 64-bit lanes do.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 6

Lanes = NDArray[Any]
Keys = list[tuple[Any, Any]]


class _Lane:
    """The integers of one lane width, as numpy scalars; `half` is half of its bits."""

    def __init__(self, dtype: Any, half: int, multipliers: tuple[int, int], shift: int) -> None:
        self.dtype = dtype
        self.half = dtype(half)
        self.low_mask = dtype((1 << half) - 1)
        self.first_multiplier = dtype(multipliers[0])
        self.second_multiplier = dtype(multipliers[1])
        self.shift = dtype(shift)


# Odd multipliers of well-studied integer finalisers.
_NARROW = _Lane(np.uint32, 16, (0x7FEB352D, 0x846CA68B), 15)
_WIDE = _Lane(np.uint64, 32, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), 29)


class FeistelNetwork:
    """The bijection of `[0, n)` that belongs to (key, number).

    With an array of numbers, entry i of every argument goes through the bijection of number i.

    Examples:
        >>> network = FeistelNetwork(10_000, key=7)
        >>> there = network.forward(np.arange(3))
        >>> network.inverse(there).tolist()
        [0, 1, 2]
    """

    def __init__(self, n: int, key: int, number: int | NDArray[np.int64] = 0) -> None:
        self.n = n
        self._lane = lane = _NARROW if n <= 2**32 else _WIDE
        num_left = math.isqrt(n - 1) + 1
        num_right = -(-n // num_left)
        self._sizes = (lane.dtype(num_left), lane.dtype(num_right))
        self._may_leave = num_left * num_right > n
        width = np.dtype(lane.dtype).itemsize
        name = b"feedline.feistel.1" + key.to_bytes(16, "little")
        numbers = [number] if isinstance(number, int) else number.tolist()
        material = b"".join(
            hashlib.shake_128(name + one.to_bytes(8, "little")).digest(2 * NUM_ROUNDS * width)
            for one in numbers
        )
        words = np.frombuffer(material, dtype=f"<u{width}").astype(lane.dtype, copy=False)
        # Two keys a round: numbers for one bijection, arrays for many.
        columns = words if isinstance(number, int) else words.reshape(len(numbers), -1).T
        self._keys: Keys = list(zip(columns[::2], columns[1::2], strict=True))

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each position goes."""
        return self._walk(positions, range(NUM_ROUNDS), np.add, np.subtract)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position that goes to each value."""
        return self._walk(values, range(NUM_ROUNDS)[::-1], np.subtract, np.add)

    def _walk(
        self, values: NDArray[np.int64], rounds: range, shift_by: np.ufunc, wrap_by: np.ufunc
    ) -> NDArray[np.int64]:
        lanes = self._pass(values.astype(self._lane.dtype), self._keys, rounds, shift_by, wrap_by)
        outside = np.flatnonzero(lanes >= self._lane.dtype(self.n)) if self._may_leave else ()
        while len(outside):
            keys = self._keys
            if keys[0][0].ndim:
                keys = [(first[outside], second[outside]) for first, second in keys]
            again = self._pass(lanes[outside], keys, rounds, shift_by, wrap_by)
            lanes[outside] = again
            outside = outside[again >= self._lane.dtype(self.n)]
        result: NDArray[np.int64] = lanes.astype(np.int64)
        return result

    def _pass(
        self, lanes: Lanes, keys: Keys, rounds: range, shift_by: np.ufunc, wrap_by: np.ufunc
    ) -> Lanes:
        """Return the lanes after one walk through the rounds, in the given order."""
        halves = self._split(lanes)
        spare = np.empty_like(lanes)
        shift = np.empty_like(lanes)
        for number in rounds:
            half, size = halves[number % 2], self._sizes[number % 2]
            self._round_shift(halves[1 - number % 2], keys[number], size, shift, spare)
            shift_by(half, shift, out=half)
            # Unsigned wrap-around makes one of half and half - size (or half + size, backwards)
            # huge, so the minimum is the residue.
            wrap_by(half, size, out=spare)
            np.minimum(half, spare, out=half)
        return self._join(halves)

    def _split(self, lanes: Lanes) -> tuple[Lanes, Lanes]:
        num_right = self._sizes[1]
        left = lanes // num_right
        right = lanes - left * num_right
        return left, right

    def _join(self, halves: tuple[Lanes, Lanes]) -> Lanes:
        left, right = halves
        left *= self._sizes[1]
        left += right
        return left

    def _round_shift(
        self, source: Lanes, keys: tuple[Any, Any], size: Any, out: Lanes, spare: Lanes
    ) -> None:
        """Write a keyed hash of `source`, scaled to `[0, size)` of the other half, to `out`."""
        lane, (first_key, second_key) = self._lane, keys
        np.bitwise_xor(source, first_key, out=out)
        out *= lane.first_multiplier
        np.right_shift(out, lane.shift, out=spare)
        out ^= spare
        out += second_key
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
