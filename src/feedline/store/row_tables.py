"""The rows of many chunks that lie in one mapped file, as those of one table.

A file of thousands of small chunks would take as many objects, each opened on its own. A table has
arrays of places instead, for all chunks at once. Which chunks there are stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.lazy import lazy
from feedline.store.chunk import OpenChunks
from feedline.store.gather import RowSource
from feedline.store.lists import ListSource
from feedline.store.slices import Numbers

# Tables take some bytes for each row.
_MOST_ROWS = 2**18


@dataclass(frozen=True, eq=False)
class Stacked:
    """A column of equal rows: those of each chunk follow each other, and lie anywhere.

    Args:
        memory: The bytes of the file; they are kept.
        addresses: Where the first row of each chunk lies in memory.
        row_bytes: The number of bytes of a row.
    """

    memory: NDArray[np.uint8]
    addresses: Numbers
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes of the table of places."""
        return self.addresses.nbytes


#: A column of a table: chunks of rows in the file, or all rows one after another.
TableColumn = Stacked | RowSource | ListSource


@dataclass(frozen=True, eq=False)
class RowTable:
    """The rows of consecutive chunks of a file.

    Args:
        path: The file.
        columns: Its columns; each has the rows of all chunks.
        num_bytes_held: The bytes of ordinary memory that this takes.
    """

    path: Path
    columns: Mapping[str, TableColumn]
    num_bytes_held: int
    num_files: int = 1
    shares_file: bool = True


class RowTables:
    """Which chunks of a store can be opened as tables, and the open ones.

    Args:
        files: The file of each chunk.
        sizes: The number of rows of each chunk.
        open_: Opens the chunks from one to another, which are of one file; None if it cannot.
        max_files: The number of files that may be open at once.
        max_bytes: The bytes of places that may be kept.
    """

    def __init__(
        self,
        files: Numbers,
        sizes: Numbers,
        open_: Callable[[int, int], RowTable | None],
        max_files: int,
        max_bytes: int,
    ) -> None:
        edges = np.cumsum(sizes) - sizes
        firsts = np.flatnonzero(np.diff(files, prepend=-1))
        inside = edges - edges[firsts].repeat(np.diff(np.append(firsts, len(files))))
        parts = inside // _MOST_ROWS
        is_new = (np.diff(files, prepend=-1) != 0) | (np.diff(parts, prepend=-1) != 0)
        #: The first chunk of each table.
        self.firsts = np.flatnonzero(is_new)
        #: The table of each chunk.
        self.of_chunk = np.cumsum(is_new) - 1
        #: The row of each chunk's first row in its table.
        self.first_rows = edges - edges[self.firsts].take(self.of_chunk)
        self._open = open_
        self._sizes = sizes
        self._tables = OpenChunks(self._opened, max_files, max_bytes)

    def get(self, number: int) -> RowTable | None:
        """Return an open table; None if its chunks must be opened one by one."""
        try:
            return self._tables.get(number)
        except _NotATableError:
            return None

    def has_all(self, numbers: Sequence[int]) -> bool:
        """Whether all of these tables are open."""
        return self._tables.has_all(numbers)

    def clear(self) -> None:
        """Close all tables."""
        self._tables.clear()

    def chunks_of(self, number: int) -> range:
        """Return the chunks of a table."""
        ends = np.append(self.firsts[1:], len(self.of_chunk))
        return range(int(self.firsts[number]), int(ends[number]))

    @lazy
    def most_rows(self) -> int:
        """The most rows of a chunk."""
        return int(self._sizes.max()) if len(self._sizes) else 0

    def _opened(self, number: int) -> RowTable:
        chunks = self.chunks_of(number)
        found = self._open(chunks.start, chunks.stop)
        if found is None:
            raise _NotATableError
        return found


class _NotATableError(Exception):
    """Chunks must be opened one by one."""
