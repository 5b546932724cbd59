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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 6
# The arrays of a pass over this many values stay in the cache of one core.
_AT_ONCE = 2**14

Lanes = NDArray[Any]


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
_NARROW = _lane(np.uint32, 16, 2**16 - 1, 0x7FEB352D, 0x846CA68B, 15)
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
        self.n = n
        self._lane = _NARROW if n <= 2**32 else _WIDE
        self._dtype = dtype = self._lane.half.dtype
        num_left = math.isqrt(n - 1) + 1
        num_right = -(-n // num_left)
        self._sizes = (np.array(num_left, dtype=dtype), np.array(num_right, dtype=dtype))
        self._may_leave = num_left * num_right > n
        name = b"feedline.feistel.1" + key.to_bytes(16, "little")
        if number is not None:
            name = b"feedline.feistel.2" + name[-16:] + n.to_bytes(8, "little")
        is_many = isinstance(number, np.ndarray)
        material = b"".join(
            hashlib.shake_128(name + one.to_bytes(8, "little")).digest(
                2 * NUM_ROUNDS * dtype.itemsize
            )
            for one in (number.tolist() if isinstance(number, np.ndarray) else [number or 0])
        )
        words = np.frombuffer(material, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False)
        # Two keys a round: a row of them for one bijection, a column for each of many.
        self._keys = words.reshape(-1, 2 * NUM_ROUNDS).T if is_many else words

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each position goes."""
        return self._walk(positions, range(NUM_ROUNDS), np.add, np.subtract)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position that goes to each value."""
        return self._walk(values, range(NUM_ROUNDS)[::-1], np.subtract, np.add)

    def _walk(self, values: NDArray[np.int64], *direction: Any) -> NDArray[np.int64]:
        result = np.empty(len(values), dtype=np.int64)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            keys = self._keys if self._keys.ndim == 1 else self._keys[:, part]
            lanes = self._pass(values[part].astype(self._dtype), keys, *direction)
            outside = np.flatnonzero(lanes >= self._dtype.type(self.n)) if self._may_leave else ()
            while len(outside):
                again_keys = keys if keys.ndim == 1 else keys[:, outside]
                again = self._pass(lanes[outside], again_keys, *direction)
                lanes[outside] = again
                outside = outside[again >= self._dtype.type(self.n)]
            result[part] = lanes
        return result

    def _pass(
        self, lanes: Lanes, keys: Lanes, rounds: range, shift_by: np.ufunc, wrap_by: np.ufunc
    ) -> Lanes:
        """Return the lanes after one walk through the rounds, in the given order."""
        num_right = self._sizes[1]
        left: Lanes = lanes // num_right
        shift, spare = np.empty_like(lanes), np.empty_like(lanes)
        np.multiply(left, num_right, out=spare)
        halves = left, np.subtract(lanes, spare, out=lanes)
        for number in rounds:
            half, size = halves[number % 2], self._sizes[number % 2]
            self._round_shift(halves[1 - number % 2], keys, number, size, shift, spare)
            shift_by(half, shift, out=half)
            # Unsigned wrap-around makes one of half and half - size (or half + size, backwards)
            # huge, so the minimum is the residue.
            wrap_by(half, size, out=spare)
            np.minimum(half, spare, out=half)
        left *= num_right
        left += halves[1]
        return left

    def _round_shift(
        self, source: Lanes, keys: Lanes, number: int, size: Lanes, out: Lanes, spare: Lanes
    ) -> None:
        """Write a keyed hash of `source`, scaled to `[0, size)` of the other half, to `out`."""
        lane = self._lane
        np.bitwise_xor(source, keys[2 * number, ...], out=out)
        out *= lane.first_multiplier
        np.right_shift(out, lane.shift, out=spare)
        out ^= spare
        out += keys[2 * number + 1, ...]
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
