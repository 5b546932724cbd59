"""Rows of one size that lie anywhere in memory: fixed values between others of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.columns import Column
from feedline.store.gather import RowSource
from feedline.store.lists import ListSource
from feedline.store.places import FlatPlaces
from feedline.store.slices import Numbers, copy_rows


class ScatteredRows:
    """A column of values of one shape, in the memory of a chunk that is stored row by row.

    Args:
        memory: The bytes of a chunk.
        starts: The byte at which each value begins.
        type_name: The type of the values.
        shape: The shape of one value.
        where: What this is, for errors.

    Examples:
        >>> memory = np.frombuffer(b"one, two, three", np.uint8)
        >>> rows = ScatteredRows(memory, np.array([0, 5]), type_name="uint8", shape=(3,))
        >>> out = np.empty((2, 3), np.uint8)
        >>> rows.gather(np.array([1, 0]), out)
        >>> out.tobytes()
        b'twoone'
    """

    def __init__(
        self,
        memory: NDArray[np.uint8],
        starts: Numbers,
        *,
        type_name: str,
        shape: tuple[int, ...] = (),
        where: str = "a column",
    ) -> None:
        self._column = Column("", type_name, shape)
        self.row_bytes = self._column.row_bytes
        # This checks that every value lies in the memory.
        lengths = np.full(len(starts), self.row_bytes, np.int64)
        source = ListSource(memory, starts, lengths, where=where)
        self._memory, self.starts, self.address = memory, source.starts, source.address

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes of the memory and of the table."""
        return self._memory.nbytes + self.starts.nbytes

    def column(self, name: str) -> Column:
        """Return the column that these are the values of."""
        return Column(name, self._column.type_name, self._column.shape)

    def gather(self, rows: Numbers, out: NDArray[Any]) -> None:
        """Write the values of some rows to `out`, which is C-contiguous."""
        copy_rows(self.address + self.starts.take(rows), self.row_bytes, out)


#: What rows of a column are copied from.
Rows = RowSource | ListSource | ScatteredRows


class FlatScattered:
    """The rows of several chunks as those of one.

    Args:
        sources: The rows of each chunk, of one column.
    """

    def __init__(self, sources: Sequence[ScatteredRows]) -> None:
        self._places = FlatPlaces(sources)
        self._row_bytes = sources[0].row_bytes

    def take(self, numbers: Numbers, rows: Numbers, out: NDArray[Any]) -> None:
        """Write row `rows[i]` of source `numbers[i]` to row i of `out`, which is C-contiguous."""
        copy_rows(self._places.addresses(numbers, rows), self._row_bytes, out)
