"""Copying rows out of an array with any strides and alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.slices import Numbers, copy_rows

# What is copied twice should still be in a core's own cache the second time.
_BYTES_AT_ONCE = 2**18
# Smaller pieces cost more than a call for each array.
_LEAST_PIECE = 512


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
        self._items = items = _rows_as_items(array)
        self.row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
        # A source that lies in one piece; numpy's take would first copy any other.
        self._take = None if items is None or not items.flags.c_contiguous else items.take
        self.nbytes = array.nbytes
        #: Where the first row lies in memory; None if rows do not follow each other.
        self.address: int | None = None
        if self._take is not None:
            self.address = array.__array_interface__["data"][0]

    def __len__(self) -> int:
        return len(self._array)

    def gather(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write the rows to `out`, which is C-contiguous; they are known to be in range."""
        if out.size:
            self.take(rows, as_items(out))

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write the rows to `out`, which has one opaque item for each of them."""
        items = self._items
        if self._take is not None:
            # Any other mode copies the result once more.
            self._take(rows, out=out, mode="clip")
        elif items is None:
            array = self._array
            np.copyto(out.view(array.dtype).reshape(len(out), *array.shape[1:]), array[rows])
        else:
            step = max(1, _BYTES_AT_ONCE // items.dtype.itemsize)
            for first in range(0, len(rows), step):
                out[first : first + step] = items[rows[first : first + step]]


class FlatRows:
    """The rows of several arrays as one, over all the memory between the first and the last.

    Rows are cut into pieces of one size, such that every array begins at a piece. Only memory of
    the arrays is touched.
    """

    def __init__(
        self,
        owners: Sequence[Any],
        starts: Numbers,
        num_rows: int,
        row_bytes: int,
        piece_bytes: int,
    ) -> None:
        self._owners = owners
        self._per_row = row_bytes // piece_bytes
        low, high = int(starts.min()), int(starts.max())
        self._starts = (starts - low) // piece_bytes
        num_pieces = (high - low) // piece_bytes + num_rows * self._per_row
        self._pieces = np.asarray(_Memory(low, num_pieces, piece_bytes))

    @classmethod
    def of(cls, sources: Sequence[RowSource]) -> FlatRows | None:
        """Return the rows of some arrays; None if they do not lie in pieces of a fair size.

        Examples:
            >>> parts = [RowSource(np.arange(6).reshape(3, 2) + 10 * n) for n in range(2)]
            >>> out = np.empty((2, 2), np.int64)
            >>> FlatRows.of(parts).take(np.array([1, 0]), np.array([2, 0]), out)
            >>> out.tolist()
            [[14, 15], [0, 1]]
        """
        starts = [source.address for source in sources]
        if None in starts:
            return None
        num_rows = max(len(source) for source in sources)
        return cls.at(sources, np.array(starts, np.int64), num_rows, sources[0].row_bytes)

    @classmethod
    def at(
        cls, owners: Sequence[Any], starts: Numbers, num_rows: int, row_bytes: int
    ) -> FlatRows | None:
        """Return rows of which some begin at each address, as `of` does.

        Args:
            owners: What keeps the memory.
            starts: Where the first row of each array lies.
            num_rows: The most rows of an array.
            row_bytes: The number of bytes of a row.
        """
        if not row_bytes:
            return None
        piece_bytes = math.gcd(row_bytes, int(np.gcd.reduce(starts - starts[0])))
        if piece_bytes < min(row_bytes, _LEAST_PIECE):
            return None
        return cls(owners, starts, num_rows, row_bytes, piece_bytes)

    def take(self, numbers: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write row `rows[i]` of array `numbers[i]` to row i of `out`, which is C-contiguous."""
        if not len(rows):
            return
        pieces = self._starts[numbers]
        pieces += rows if self._per_row == 1 else rows * self._per_row
        if self._per_row > 1:
            pieces = (pieces[:, None] + np.arange(self._per_row)).reshape(-1)
        into = out.reshape(-1).view(self._pieces.dtype)
        self._pieces.take(pieces, out=into, mode="clip")


class FlatPieces:
    """The rows of several arrays as one, wherever these begin; see `FlatRows`.

    Args:
        owners: What keeps the memory.
        starts: Where the first row of each array lies.
        num_rows: The most rows of an array.
        row_bytes: The number of bytes of a row.
    """

    def __init__(
        self, owners: Sequence[Any], starts: Numbers, num_rows: int, row_bytes: int
    ) -> None:
        self._owners, self._starts, self._row_bytes = owners, starts, row_bytes
        self._rows = FlatRows.at(owners, starts, num_rows, row_bytes)

    def take(self, numbers: Numbers, rows: Numbers, out: NDArray[Any]) -> None:
        """Write row `rows[i]` of array `numbers[i]` to row i of `out`, which is C-contiguous."""
        if self._rows is not None:
            self._rows.take(numbers, rows, out)
        else:
            copy_rows(self._starts.take(numbers) + rows * self._row_bytes, self._row_bytes, out)


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


class _Memory:
    """Shows memory to numpy; whoever uses it keeps alive what lies there."""

    def __init__(self, address: int, num_items: int, item_bytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": (num_items,),
            "typestr": f"|V{item_bytes}",
        }


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
