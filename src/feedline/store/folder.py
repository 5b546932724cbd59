"""A folder of chunks: `metadata.json` and the files that it lists."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    StoreError,
    check_flag,
    check_integer,
    check_sequence,
)
from feedline.lazy import lazy
from feedline.store.arrow_chunk import column_names, group_sizes
from feedline.store.arrow_columns import check_recorded_lists, columns_of_files
from feedline.store.arrow_tables import may_be_table, open_table
from feedline.store.checksums import check_file
from feedline.store.chunk import OpenChunk, max_open_files
from feedline.store.columns import (
    MISSING,
    Column,
    check_columns,
    with_masks,
)
from feedline.store.file_store import FileStore
from feedline.store.formats import is_grouped, open_chunk
from feedline.store.lists import empty_arrays
from feedline.store.manifest import Manifest, read_manifest
from feedline.store.paths import file_in, files_of, will_need
from feedline.store.plain_files import manifest_of_files
from feedline.store.row_tables import RowTable, RowTables
from feedline.words import path_shown, several


class FolderStore(FileStore):
    """The samples of a folder of chunks, read from mapped files.

    Chunks are `.pt` files as torch.save writes them, `.safetensors`, folders of `.npy` columns, or
    parquet and Arrow files, whose row groups and record batches are chunks. No code from a file is
    run, and no file outside the folder is read.

    Args:
        folder: The folder with `metadata.json`.
        columns: The columns to read; by default all.
        last_steps: Read only this many last steps of every column that has steps.
        verify: Compare each file with its checksum when it is first opened. This reads the whole
            file.
        cache_bytes: Bytes of decoded parquet and Arrow data to keep.
        lists: Columns of parquet and Arrow files to read as lists of any length, even if those that
            were looked at have one length.

    Examples:
        >>> import tempfile
        >>> from feedline.store import pack
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     _ = pack({"x": np.arange(10)}, f"{parent}/data", chunk_samples=4)
        ...     store = FolderStore(f"{parent}/data")
        ...     store.chunk_sizes.tolist(), store.read(1, [3, 0])["x"].tolist()
        ([4, 4, 2], [7, 4])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        columns: Iterable[str] | None = None,
        last_steps: int | None = None,
        verify: bool = False,
        cache_bytes: int = 2**28,
        lists: Iterable[str] = (),
    ) -> None:
        self._lists = check_sequence("lists", lists)
        self._open_manifest(
            read_manifest(Path(folder)), columns, last_steps, verify=verify, cache_bytes=cache_bytes
        )

    @classmethod
    def of_file(
        cls,
        path: str | os.PathLike[str],
        *,
        columns: Iterable[str] | None = None,
        cache_bytes: int = 2**28,
        lists: Iterable[str] = (),
    ) -> FolderStore:
        """Return the samples of one chunk file or table, without a `metadata.json`."""
        # The user's own path may be a link; links inside the data must not lead out.
        real = Path(path).resolve()
        given = {"columns": columns, "cache_bytes": cache_bytes, "lists": lists}
        return cls.of_files(path, real.parent, [real.name], **given)

    @classmethod
    def of_files(
        cls,
        path: str | os.PathLike[str],
        folder: Path,
        names: Sequence[str],
        *,
        columns: Any = None,
        cache_bytes: Any = 2**28,
        lists: Any = (),
    ) -> FolderStore:
        """Return the samples of some files in a folder; `path` is what the user has opened."""
        store = cls.__new__(cls)
        store._lists = check_sequence("lists", lists)
        manifest = manifest_of_files(folder, names)
        store._open_manifest(manifest, columns, None, verify=False, cache_bytes=cache_bytes)
        store._path = path if isinstance(path, Path) else Path(path)
        store._is_plain = True
        return store

    def _open_manifest(
        self,
        manifest: Manifest,
        columns: Iterable[str] | None,
        last_steps: int | None,
        *,
        verify: bool,
        cache_bytes: int,
    ) -> None:
        # Absolute, because the process may change its working directory.
        self.folder = manifest.folder.absolute()
        self._path = manifest.folder
        self._is_plain = False
        self.manifest = manifest
        self._last_steps = (
            None if last_steps is None else check_integer("last_steps", last_steps, 1)
        )
        self._verify = check_flag("verify", verify)
        self._verified: set[int] = set()
        self._begin(len(manifest), columns, cache_bytes)

    def _check_selection(self, columns: Iterable[str]) -> tuple[str, ...]:
        names = check_sequence("columns", columns)
        if not names:
            raise InvalidValueError("columns=[] must name at least 1 column; omit it to read all")
        return tuple(names)

    @property
    def _where(self) -> str:
        return f" {path_shown(self._path)!r}"

    @property
    def num_samples(self) -> int:
        """The number of samples in all chunks together."""
        return self.manifest.num_samples

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk."""
        return self._layout[1]

    @lazy
    def columns(self) -> dict[str, Column]:
        """The columns, as recorded, or else as in the first chunk that is not empty."""
        stored = self._stored_columns
        names = list(stored) if self._selected is None else with_masks(self._selected, stored)
        self._check_selected(list(stored))
        return {name: self._with_last(stored[name]) for name in names}

    @lazy
    def _stored_columns(self) -> dict[str, Column]:
        if self.manifest.columns is not None:
            check_recorded_lists(self.manifest.columns, self._lists)
            return self.manifest.columns
        filled = np.flatnonzero(self.chunk_sizes)
        if not len(filled):
            raise DamagedDataError(
                f"{self.folder}: has 0 samples and must have at least 1; pack again with samples"
            )
        path = self._path_of(int(self._layout[0][filled[0]]))
        if not is_grouped(path.name):
            return self._open_file(int(filled[0])).columns
        if self._selected is not None:
            # Only those are read, so that the file could not say which it has.
            names = column_names(path)
            self._check_selected([*names, *(name + MISSING for name in names)], names)
        files = dict.fromkeys(self._layout[0][filled].tolist())
        paths = self._paths_of_tables(files, self._is_plain)
        return columns_of_files(paths, self._selected, self._lists, must_agree=self._is_plain)

    def _paths_of_tables(self, files: Iterable[int], must_exist: bool) -> Iterator[Path]:
        ignored = () if must_exist else (StoreError,)
        for number in files:
            if is_grouped(self.manifest.entries[number]["path"]):
                with suppress(*ignored):
                    yield self._table_path(number)

    def _table_path(self, number: int) -> Path:
        """Return the path of a table, which may be opened at any time."""
        return self._path_of(number)

    def _check_selected(self, known: list[str], shown: list[str] | None = None) -> None:
        missing = [name for name in self._selected or () if name not in known]
        if missing:
            raise InvalidValueError(
                f"columns={missing!s:.200} must be among those of {self._path}: "
                f"{', '.join(shown or known):.300}"
            )

    def _path_of(self, number: int) -> Path:
        return file_in(self.folder, self.manifest.file(number).path, may_be_folder=True)

    def _name_of(self, number: int) -> str:
        return str(self.folder / self.manifest.file(number).path)

    def _described(self, number: int) -> str:
        return json.dumps(self.manifest.file(number).describe())

    @lazy
    def _layout(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the file, the size and the group of each chunk."""
        if not any(is_grouped(entry["path"]) for entry in self.manifest.entries):
            num_files = len(self.manifest)
            return np.arange(num_files), self.manifest.samples, np.zeros(num_files, np.int64)
        sizes = [self._group_sizes(number) for number in range(len(self.manifest))]
        counts = [len(of_file) for of_file in sizes]
        files = np.repeat(np.arange(len(counts)), counts)
        groups = np.concatenate([np.arange(count) for count in counts])
        return files, np.array(list(chain(*sizes)), np.int64), groups

    def _group_sizes(self, number: int) -> tuple[int, ...]:
        file = self.manifest.file(number)
        if not is_grouped(file.path):
            return (file.num_samples,)
        if file.groups is not None:
            return file.groups
        path = self._path_of(number)
        sizes = group_sizes(path)
        _check_count(path, sum(sizes), file.num_samples)
        return sizes

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the file and the row in it."""
        number, group = int(self._layout[0][chunk]), int(self._layout[2][chunk])
        file = self.manifest.file(number)
        where = f", group {group}" if is_grouped(file.path) else ""
        return f"{self._name_of(number)}{where}, row {row}"

    def check_chunk(self, number: int) -> None:
        """Open one file of the folder, and raise unless it matches its record."""
        number = check_integer("number", number, 0, len(self.manifest) - 1)
        for chunk in np.flatnonzero(self._layout[0] == number).tolist():
            self._open(chunk)

    def path_of(self, number: int) -> Path:
        """Return the path of one file or folder of the manifest; raise if it is not there."""
        return self._path_of(check_integer("number", number, 0, len(self.manifest) - 1))

    def files_of_chunk(self, chunk: int) -> list[Path]:
        """Return the files that a chunk is read from."""
        return files_of(self._path_of(int(self._layout[0][chunk])))

    def prefetch(self, chunk: int) -> None:
        """Ask the kernel to read a chunk's files; this does not wait."""
        for path in self.files_of_chunk(chunk):
            will_need(path)

    @lazy
    def _tables(self) -> RowTables | None:
        names = [entry["path"] for entry in self.manifest.entries]
        if self._last_steps is not None or not all(map(may_be_table, names)):
            return None
        files, sizes, _ = self._layout
        return RowTables(files, sizes, self._open_table, max_open_files(), self._cache_bytes)

    def _open_table(self, first: int, end: int) -> RowTable | None:
        """Open some chunks of a file as one; None if they must be opened one by one."""
        number, groups = int(self._layout[0][first]), self._layout[2]
        try:
            path = self._unchanged(number)
            sizes = self.chunk_sizes[first:end]
            part = range(int(groups[first]), int(groups[end - 1]) + 1)
            return open_table(path, part, sizes, list(self.columns), self._stored_columns)
        except StoreError:
            # Chunks that can be read are not lost by others, and the error is that of its chunk.
            return None

    def _unchanged(self, number: int) -> Path:
        """Return the path of a file that is as it was; it is verified once."""
        path = self._digests.unchanged(number)
        if self._verify and number not in self._verified:
            check_file(path, self.manifest.file(number))
            self._verified.add(number)
        return path

    def _open(self, chunk: int) -> OpenChunk:
        opened = self._open_file(chunk, self._stored_columns)
        if not self.chunk_sizes[chunk]:
            # Without rows, a list in a table does not tell how long it would be.
            return OpenChunk(opened.path, empty_arrays(self.columns))
        expected = {name: self._stored_columns[name] for name in self.columns}
        check_columns(opened.path, expected, opened.columns)
        arrays = {name: opened.arrays[name] for name in self.columns}
        if self._last_steps is not None:
            steps = slice(-self._last_steps, None)
            arrays = {
                name: a[:, steps] if isinstance(a, np.ndarray) and a.ndim > 1 else a
                for name, a in arrays.items()
            }
        return replace(opened, arrays=arrays)

    def _open_file(self, chunk: int, expected: Mapping[str, Column] | None = None) -> OpenChunk:
        number = int(self._layout[0][chunk])
        path = self._unchanged(number)
        names = self._selected
        if names is not None and expected is not None:
            names = tuple(with_masks(names, expected))
        opened = open_chunk(path, int(self._layout[2][chunk]), names, expected)
        recorded = self.manifest.columns or {}
        if names is not None and is_grouped(path.name):
            # Others are not read.
            recorded = {name: recorded[name] for name in names if name in recorded}
        opened = opened.with_lists(recorded)
        _check_count(path, opened.num_samples, int(self.chunk_sizes[chunk]))
        return opened

    def _with_last(self, column: Column) -> Column:
        """Return a column with only its last steps."""
        if self._last_steps is None or not column.shape or column.has_lists:
            return column
        shape = (min(column.shape[0], self._last_steps), *column.shape[1:])
        return replace(column, shape=shape)


def _check_count(path: Path, found: int, recorded: int) -> None:
    if found != recorded:
        raise DamagedDataError(
            f"{path}: has {several(found, 'sample')}, but metadata.json says {recorded}; pack again"
        )
