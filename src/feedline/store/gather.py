"""Copying rows out of an array with any strides and alignment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What is copied twice should still be in a core's own cache the second time.
_BYTES_AT_ONCE = 2**18


class RowSource:
    """An array whose rows are copied many times; the setup is done once.

    Examples:
        >>> out = np.empty((2, 3), dtype=np.int64)
        >>> RowSource(np.arange(12).reshape(4, 3)).gather(np.array([3, 0]), out)
        >>> out.tolist()
        [[9, 10, 11], [0, 1, 2]]
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._items = _rows_as_items(array)

    @property
    def whole(self) -> NDArray[np.uint8] | None:
        """The bytes of all rows one after another; None if they do not lie like that."""
        items = self._items
        if items is None or not items.flags.c_contiguous:
            return None
        return items.view(np.uint8)

    def gather(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write the rows to `out`, which is C-contiguous; they are known to be in range."""
        if out.size:
            self.take(rows, as_items(out))

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write the rows to `out`, which has one opaque item for each of them."""
        items = self._items
        if items is None:
            array = self._array
            np.copyto(out.view(array.dtype).reshape(len(out), *array.shape[1:]), array[rows])
        elif items.flags.c_contiguous:
            # Any other mode copies the result once more.
            items.take(rows, out=out, mode="clip")
        else:
            # numpy's take would first copy the whole source.
            step = max(1, _BYTES_AT_ONCE // items.dtype.itemsize)
            for first in range(0, len(rows), step):
                out[first : first + step] = items[rows[first : first + step]]


def as_items(array: NDArray[Any]) -> NDArray[Any]:
    """Return a C-contiguous array with one opaque item for each row, which has at least a byte.

    Examples:
        >>> as_items(np.zeros((5, 3), np.int32)).dtype.itemsize
        12
    """
    return array.reshape(-1).view(np.dtype((np.void, array.nbytes // len(array))))


def scatter(source: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64]) -> None:
    """Write row i of `source` to row `places[i]` of `out`; both are C-contiguous.

    Examples:
        >>> out = np.zeros(4, dtype=np.int64)
        >>> scatter(np.array([7, 8]), out, np.array([2, 0]))
        >>> out.tolist()
        [8, 0, 7, 0]
    """
    if source.size:
        as_items(out)[places] = as_items(source)


class _Interface:
    """Shows memory to numpy under another type; keeps its owner alive."""

    def __init__(self, owner: NDArray[Any], row_bytes: int) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (owner.__array_interface__["data"][0], True),
            "shape": (len(owner),),
            "strides": (owner.strides[0],),
            "typestr": f"|V{row_bytes}",
        }


def _rows_as_items(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return a view with one opaque item per row, or None if rows are not contiguous."""
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    if not row_bytes or (len(array) and not array[0].flags.c_contiguous):
        return None
    return np.asarray(_Interface(array, row_bytes))
