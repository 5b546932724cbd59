"""What stores over files share: open chunks that are kept, selected columns, and digests."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from feedline.errors import check_integer
from feedline.lazy import lazy
from feedline.store.checksums import digest_texts
from feedline.store.chunk import OpenChunk, OpenChunks, max_open_files
from feedline.store.columns import Arrays, make_out
from feedline.store.file_digests import FileDigests
from feedline.store.protocol import Store, check_rows
from feedline.store.row_tables import RowTables
from feedline.store.scattered import Rows


class FileStore(Store):
    """A store over files, of which columns can be selected."""

    def _begin(self, num_files: int, columns: Iterable[str] | None, cache_bytes: int) -> None:
        """Prepare the store, once all is known that the other methods ask for.

        Args:
            num_files: The number of files.
            columns: The columns to read; None means all.
            cache_bytes: Bytes of decoded data to keep.
        """
        self._cache_bytes = check_integer("cache_bytes", cache_bytes, 0)
        self._selected = None if columns is None else self._check_selection(columns)
        self._digests = FileDigests(num_files, self._path_of, self._name_of, self._described)
        self._open_chunks = self._fresh_chunks()

    @abstractmethod
    def _check_selection(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the columns to read, or raise."""

    @abstractmethod
    def _path_of(self, number: int) -> Path:
        """Return the path of a file; raise if it is not there."""

    @abstractmethod
    def _name_of(self, number: int) -> str:
        """Return the path of a file, for messages."""

    @abstractmethod
    def _described(self, number: int) -> str:
        """Return what else is known of a file, for its digest."""

    @abstractmethod
    def _open(self, chunk: int) -> OpenChunk:
        """Open a chunk with the selected columns, and check it."""

    def select(self, columns: Iterable[str]) -> Self:
        """Return the same store with fewer columns."""
        other = copy.copy(self)
        other._selected = self._check_selection(columns)
        other.__dict__.pop("columns", None)
        other.__dict__.pop("_tables", None)
        other._open_chunks = other._fresh_chunks()
        return other

    def _fresh_chunks(self) -> OpenChunks[OpenChunk]:
        return OpenChunks(self._open, max_open_files(), self._cache_bytes)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_open_chunks", "_tables")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_chunks = self._fresh_chunks()

    @property
    def fingerprint(self) -> str:
        """A short string that changes when the data does; asking reads a little of every file."""
        return digest_texts(self.part_digests, size=16)

    @property
    def part_digests(self) -> list[str]:
        """A digest for each file, or for each group of files if there are very many."""
        return self._digests.parts

    def describe_part(self, number: int) -> str:
        """Return the file, or the first and the last one, of a part."""
        return self._digests.describe(number)

    def read(self, chunk: int, rows: Any, out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, column by column; written to `out` if given."""
        chunk = check_integer("chunk", chunk, 0, len(self.chunk_sizes) - 1)
        source = self._open_chunks.get(chunk)
        rows = check_rows(rows, int(self.chunk_sizes[chunk]), str(source.path))
        return source.read(rows, self.columns, make_out(self.columns, len(rows), out))

    def row_sources(self, chunk: int) -> Mapping[str, Rows] | None:
        """Return the columns of a chunk; None if a subclass reads in its own way."""
        if type(self).read is not FileStore.read:
            return None
        return self._open_chunks.get(chunk).rows

    def row_tables(self) -> RowTables | None:
        """Return how many chunks are opened as one; None if a subclass reads in its own way."""
        kind = type(self)
        is_own = kind.read is not FileStore.read or kind.row_sources is not FileStore.row_sources
        return None if is_own else self._tables

    @lazy
    def _tables(self) -> RowTables | None:
        """How many chunks are opened as one; None if each is opened on its own."""
        return None

    def keeps_open(self, chunks: Sequence[int]) -> bool:
        """Whether all of these chunks are open, of which no more are than may be at once."""
        return self._open_chunks.has_all(chunks)

    def close(self) -> None:
        """Close open files; a later read opens them again."""
        self._open_chunks.clear()
        tables: RowTables | None = self.__dict__.get("_tables")
        if tables is not None:
            tables.clear()
