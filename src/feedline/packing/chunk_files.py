"""Whole chunks: the rows of one, its files, and what the journal says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.formats import chunk_name, write_chunk
from feedline.packing.rows import Rows, concatenate_rows
from feedline.packing.workshop import Entry
from feedline.store.checksums import sums_of_files
from feedline.store.columns import Column
from feedline.store.lists import Lists
from feedline.store.manifest import ChunkFile
from feedline.store.paths import files_of
from feedline.store.writing import remove, reported


class Finished:
    """The finished chunks of all splits, by number, and the bytes of their columns of lists.

    Args:
        num_splits: The number of splits.
    """

    def __init__(self, num_splits: int) -> None:
        self.files: list[dict[int, ChunkFile]] = [{} for _ in range(num_splits)]
        #: The bytes of each column of lists in each finished chunk.
        self.list_bytes: list[dict[int, dict[str, int]]] = [{} for _ in range(num_splits)]

    @classmethod
    def taken_over(
        cls, folders: Sequence[Path], format_: str, entries: Iterable[Entry]
    ) -> Finished:
        """Keep the finished chunks that still exist in the folders, and remove everything else."""
        found = cls(len(folders))
        with reported(folders[0]):
            for entry in entries:
                if "chunk" not in entry or not 0 <= entry["split"] < len(folders):
                    continue
                path = folders[entry["split"]] / chunk_name(format_, entry["chunk"])
                size = sum(file.stat().st_size for file in files_of(path)) if path.exists() else -1
                if size == entry["bytes"]:
                    found.add(entry)
            for folder, finished in zip(folders, found.files, strict=True):
                folder.mkdir(parents=True, exist_ok=True)
                known = {file.path for file in finished.values()}
                for path in folder.iterdir():
                    if path.name not in known and path not in folders:
                        remove(path)
        return found

    def add(self, entry: Entry) -> None:
        """Take what the journal says about a chunk."""
        split, number = entry["split"], entry["chunk"]
        self.list_bytes[split][number] = entry["lists"]
        self.files[split][number] = ChunkFile.from_entry(entry)

    def __len__(self) -> int:
        return sum(map(len, self.files))


def write_whole_chunk(
    format_: str, path: Path, rows: Rows, first: int, type_names: Mapping[str, str]
) -> dict[str, Any]:
    """Write a chunk, and return what the journal says of its files; `first` is its first sample."""
    num_samples = len(next(iter(rows.values())))
    with reported(path):
        write_chunk(format_, path, rows, first, type_names)
        files = files_of(path)
        checksum, sums = sums_of_files(files)
        names = [file.relative_to(path).as_posix() for file in files]
    file = ChunkFile(
        path=path.name,
        num_samples=num_samples,
        num_bytes=sum(size for size, _ in sums),
        checksum=checksum,
        groups=(num_samples,) if format_ == "parquet" else None,
        crc32=sums[0][1] if files == [path] else None,
        files=None if files == [path] else dict(zip(names, sums, strict=True)),
    )
    list_bytes = {n: c.values.nbytes for n, c in rows.items() if isinstance(c, Lists)}
    return {**file.entry(), "lists": list_bytes}


class Filling:
    """The rows of a chunk that is being filled.

    Arrays have their room from the start where the number of rows is known; all else is joined in
    the end.
    """

    def __init__(self, columns: list[Column], num_rows: int | None) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        if num_rows is not None:
            plain = [column for column in columns if not column.has_lists]
            self._arrays = {c.name: np.empty((num_rows, *c.shape), c.dtype) for c in plain}
        self._names = [column.name for column in columns]
        self._parts: list[Rows] = []
        self.num_rows = self.num_bytes = 0

    def add(self, rows: Rows, num_rows: int, num_bytes: int) -> None:
        """Take rows."""
        place = slice(self.num_rows, self.num_rows + num_rows)
        for name, array in self._arrays.items():
            array[place] = rows[name]
        if rest := {name: rows[name] for name in self._names if name not in self._arrays}:
            self._parts.append(rest)
        self.num_rows += num_rows
        self.num_bytes += num_bytes

    def rows(self) -> Rows:
        """Return all rows; this is asked once."""
        parts, self._parts = self._parts, []
        joined = concatenate_rows(parts) if parts else {}
        return {
            name: self._arrays[name][: self.num_rows] if name in self._arrays else joined[name]
            for name in self._names
        }
