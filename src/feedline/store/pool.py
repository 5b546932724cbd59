"""Memory that is reused as soon as no view of it is left.

Fresh memory costs a page fault for every page, about as much as copying a row into it.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SlabPool:
    """Memory of one size for slabs; at most `max_free` unused ones are kept."""

    def __init__(self, num_bytes: int, max_free: int) -> None:
        self.num_bytes = num_bytes
        self._max_free = max_free
        self._free: list[NDArray[np.uint8]] = []
        self._lent: dict[int, weakref.ref[Any]] = {}

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that is reused when its last view is deleted."""
        if num_bytes > self.num_bytes:
            return np.empty(num_bytes, np.uint8)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self.num_bytes, np.uint8)
        # Views of an array point to the array that owns the memory. Seen through a buffer, the
        # owner is hidden, and they point to this array instead; so it lives as long as they do.
        lease = np.frombuffer(memory.data, np.uint8)
        key = id(lease)
        pool = weakref.ref(self)

        def give_back(_: object) -> None:
            owner = pool()
            if owner is not None:
                del owner._lent[key]
                if len(owner._free) < owner._max_free:
                    owner._free.append(memory)

        self._lent[key] = weakref.ref(lease, give_back)
        return lease


class GrowingPool:
    """Memory for arrays of different sizes; a larger one makes all later ones larger."""

    def __init__(self) -> None:
        self._pool = SlabPool(0, max_free=0)

    def __reduce__(self) -> tuple[type[GrowingPool], tuple[()]]:
        # Memory does not travel to other processes.
        return GrowingPool, ()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array whose memory is reused when its last view is deleted."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._pool.num_bytes < num_bytes:
            # With some room to spare the same memory serves most that come.
            self._pool = SlabPool(num_bytes + num_bytes // 8, max_free=3)
        memory: NDArray[Any] = self._pool.take(num_bytes)[:num_bytes].view(dtype)
        return memory.reshape(shape)


# Less than this is not worth keeping.
_LEAST_KEPT = 2**16
_MOST_SIZES = 4


class SizedPool:
    """Memory of about the sizes that were asked for lately, which is reused.

    Args:
        max_free: The number of unused ones of a size that are kept.

    Examples:
        >>> pool = SizedPool(max_free=1)
        >>> first = pool.take(100_000)
        >>> address = first.__array_interface__["data"][0]
        >>> del first
        >>> pool.take(101_000).__array_interface__["data"][0] == address
        True
    """

    def __init__(self, max_free: int) -> None:
        self._max_free = max_free
        self._pools: dict[int, SlabPool] = {}

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return so many bytes, which are reused when their last view is deleted."""
        if num_bytes < _LEAST_KEPT:
            return np.empty(num_bytes, np.uint8)
        # Sizes that differ by less than a quarter share their memory.
        step = 1 << (num_bytes.bit_length() - 3)
        size = -(-num_bytes // step) * step
        pool = self._pools.get(size)
        if pool is None:
            pool = SlabPool(size, self._max_free)
            # Other threads read the dict meanwhile, so it is replaced, never changed.
            kept = list(self._pools.items())[1 - _MOST_SIZES :]
            self._pools = dict([*kept, (size, pool)])
        return pool.take(num_bytes)[:num_bytes]
