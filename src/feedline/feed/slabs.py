"""Slabs: the memory that many rows are gathered into at once, handed out batch by batch.

Fresh memory costs a page fault for every page, about as much as copying a row into it. So a slab is
used again as soon as nobody holds any of its batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.columns import Arrays, Column

__all__ = ["SlabPool", "arrays_in", "bytes_for", "layout_of"]

_ALIGNMENT = 64


class SlabPool:
    """Memory of one size for slabs; at most `max_free` unused ones are kept."""

    def __init__(self, num_bytes: int, max_free: int) -> None:
        self.num_bytes = num_bytes
        self._max_free = max_free
        self._free: list[NDArray[np.uint8]] = []
        self._lent: dict[int, weakref.ref[Any]] = {}

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that comes back here when the last view of it is gone."""
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


def layout_of(columns: Mapping[str, Column], num_rows: int) -> dict[str, tuple[int, int]]:
    """Return where the bytes of each column begin and end when they lie one after another.

    Examples:
        >>> layout_of({"x": Column("x", "int64"), "y": Column("y", "int8")}, 3)
        {'x': (0, 24), 'y': (64, 67)}
    """
    layout = {}
    start = 0
    for column in columns.values():
        end = start + column.row_bytes * num_rows
        layout[column.name] = (start, end)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return layout


def bytes_for(columns: Mapping[str, Column], num_rows: int) -> int:
    """Return how much memory `arrays_in` needs for so many rows."""
    return max((end for _, end in layout_of(columns, num_rows).values()), default=0)


def arrays_in(memory: NDArray[np.uint8], columns: Mapping[str, Column], num_rows: int) -> Arrays:
    """Return an array per column, one after another in `memory`."""
    return {
        name: memory[start:end].view(columns[name].dtype).reshape(num_rows, *columns[name].shape)
        for name, (start, end) in layout_of(columns, num_rows).items()
    }
