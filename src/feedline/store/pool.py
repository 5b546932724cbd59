"""Memory that is reused as soon as no view of it is left.

Fresh memory costs a page fault for every page, about as much as copying a row into it.
"""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
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
# Memory serves for what needs at least this share of it.
_LEAST_SHARE = 0.7


class _Piece:
    """Memory that is lent again and again."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = np.empty(num_bytes, np.uint8)


class SizedPool:
    """Memory of any sizes, which is reused for about the same sizes.

    Args:
        max_bytes: The bytes that lent and unused memory may take together; while more is lent, none
            that is unused is kept.

    Examples:
        >>> pool = SizedPool(max_bytes=200_000)
        >>> first = pool.take(100_000)
        >>> address = first.__array_interface__["data"][0]
        >>> del first
        >>> pool.take(99_000).__array_interface__["data"][0] == address
        True
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Weak references call back at any time, in any thread: even while this thread holds a lock.
        # So there is none, and each step is one call, which no other thread can interrupt.
        self._free: list[_Piece] = []
        self._lent: dict[int, tuple[weakref.ref[Any], int]] = {}

    @property
    def num_bytes(self) -> int:
        """The bytes of lent and unused memory."""
        lent = sum(size for _, size in list(self._lent.values()))
        return lent + sum(piece.memory.size for piece in list(self._free))

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return so many bytes, which are reused when their last view is deleted."""
        if num_bytes < _LEAST_KEPT:
            return np.empty(num_bytes, np.uint8)
        piece = self._unused(num_bytes)
        if piece is None:
            # With some room to spare it serves for others later.
            size = num_bytes + num_bytes // 8
            self._shrink(self._max_bytes - size)
            piece = _Piece(size)
        return self._lease(piece)[:num_bytes]

    def _unused(self, num_bytes: int) -> _Piece | None:
        # The latest may still be in a core's cache.
        for piece in reversed(list(self._free)):
            if num_bytes <= piece.memory.size and _LEAST_SHARE * piece.memory.size <= num_bytes:
                # Another thread may have taken it.
                with suppress(ValueError):
                    self._free.remove(piece)
                    return piece
        return None

    def _lease(self, piece: _Piece) -> NDArray[np.uint8]:
        """Return an array that lives as long as its views; see `SlabPool`."""
        lease = np.frombuffer(piece.memory.data, np.uint8)
        key = id(lease)
        pool = weakref.ref(self)

        def give_back(_: object) -> None:
            owner = pool()
            if owner is not None:
                del owner._lent[key]
                owner._free.append(piece)
                owner._shrink(owner._max_bytes)

        self._lent[key] = weakref.ref(lease, give_back), piece.memory.size
        return lease

    def _shrink(self, max_bytes: int) -> None:
        """Forget unused memory, the oldest first, until all takes at most so many bytes."""
        while self._free and self.num_bytes > max_bytes:
            with suppress(IndexError):
                self._free.pop(0)


# The GNU C library adapts to blocks of at most 32 MiB, with its own bytes.
_MOST_KEPT = 2**25 - 2**13
# It keeps this much anyway.
_KEPT_ANYWAY = 2**17
_kept = _KEPT_ANYWAY


def keep_freed(num_bytes: int) -> None:
    """Let this process keep the memory of many small objects when they are freed together.

    The GNU C library gives free memory at the end of its heap back to the kernel, 128 KiB at a
    time: a batch of `bytes` would have a page fault for every page again. Once a block that it has
    mapped is freed, it keeps twice that block, as in any process with arrays of this size.

    Args:
        num_bytes: The bytes of all objects of a batch.
    """
    global _kept
    # One batch is made before the one before it is freed.
    wanted = min(2 * num_bytes, _MOST_KEPT)
    if wanted > _kept:
        _kept = wanted
        # Never touched, and freed at once.
        np.empty(wanted, np.uint8)
