"""Stores over files that others wrote: each format says what is in its shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_sequence
from feedline.lazy import lazy
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column, check_columns, with_masks
from feedline.store.file_store import FileStore
from feedline.store.paths import will_need
from feedline.words import path_shown, several


class Shards(ABC):
    """What a format says about the files of a dataset. A shard is a chunk.

    It is pickled for workers, so it holds tables and paths, and no open file.

    Args:
        path: What the user has opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sample."""

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """All files of the data, in a fixed order; inside `path`, or `path` itself."""

    @abstractmethod
    def files_of(self, chunk: int) -> Sequence[Path]:
        """Return the files that a chunk is read from."""

    @abstractmethod
    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open one chunk; columns that are not in `names` need not be decoded."""

    def prefetch(self, chunk: int) -> None:
        """Ask the kernel to read the files of a chunk; this does not wait."""
        for path in self.files_of(chunk):
            will_need(path)

    @property
    def compression(self) -> str | None:
        """The name of the compression of the chunks; None if they are read as they lie."""
        return None

    def verified(self) -> Shards:
        """Return the same, which compares each file with its checksum when it is first read."""
        raise InvalidValueError(
            f"verify=True cannot be used: {self.path} has no checksums that could be compared; "
            "omit it"
        )

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the origin of a row, for messages."""
        return f"{self.files_of(chunk)[0]}, sample {row}"


class ListedShards(Shards):
    """Shards that are a file each, and an index that lists them.

    Args:
        path: What the user has opened.
        files: The file of each shard.
        sizes: The number of samples in each shard.
        index: The file that lists the shards.
    """

    def __init__(
        self, path: Path, files: Sequence[Path], sizes: Sequence[int], index: Path
    ) -> None:
        super().__init__(path)
        self._files, self._index = tuple(files), index
        if len(set(self._files)) < len(self._files):
            twice = next(file for file in self._files if self._files.count(file) > 1)
            raise DamagedDataError(
                f"{index}: lists {twice.name!r:.80} twice, so its samples would come twice; write "
                "it again"
            )
        self._sizes = np.array(sizes, np.int64)

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each shard."""
        return self._sizes

    @property
    def files(self) -> Sequence[Path]:
        """The index and all shards."""
        return (self._index, *self._files)

    def files_of(self, chunk: int) -> Sequence[Path]:
        """Return the file of a shard."""
        return (self._files[chunk],)


class ShardStore(FileStore):
    """The samples of files that others wrote, opened in place.

    Shards that are compressed are decoded whole, and the latest ones are kept.

    Args:
        shards: What is in the files.
        columns: The columns to read; by default all.
        cache_bytes: Bytes of decoded shards to keep.
    """

    def __init__(
        self, shards: Shards, *, columns: Iterable[str] | None = None, cache_bytes: int = 2**28
    ) -> None:
        self.shards = shards
        self._begin(len(shards.files), columns, cache_bytes)
        if not len(self.chunk_sizes) or not self.num_samples:
            raise DamagedDataError(f"{shards.path}: has 0 samples and must have at least 1")

    def _check_selection(self, columns: Iterable[str]) -> tuple[str, ...]:
        names = check_sequence("columns", columns)
        known = self.shards.columns
        missing = [name for name in names if name not in known]
        if missing or not names:
            raise InvalidValueError(
                f"columns={list(names)!s:.200} must be some of those in {self.shards.path}: "
                f"{', '.join(known):.300}"
            )
        return tuple(names)

    @property
    def _where(self) -> str:
        return f" {path_shown(self.shards.path)!r}"

    @lazy
    def num_samples(self) -> int:
        """The number of samples in all chunks together."""
        return int(self.chunk_sizes.sum())

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk."""
        return self.shards.chunk_sizes

    @lazy
    def columns(self) -> dict[str, Column]:
        """The columns of every sample."""
        known = self.shards.columns
        return {name: known[name] for name in with_masks(self._selected or list(known), known)}

    def _path_of(self, number: int) -> Path:
        return self.shards.files[number]

    def _name_of(self, number: int) -> str:
        return str(self.shards.files[number])

    def _described(self, number: int) -> str:
        return self.shards.files[number].name

    @lazy
    def _number_of(self) -> dict[Path, int]:
        return {path: number for number, path in enumerate(self.shards.files)}

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the origin of a row, for messages."""
        return self.shards.describe_row(chunk, row)

    def prefetch(self, chunk: int) -> None:
        """Ask the kernel to read a chunk's files; this does not wait."""
        self.shards.prefetch(chunk)

    def _check_unchanged(self, chunk: int) -> None:
        for path in self.shards.files_of(chunk):
            self._digests.unchanged(self._number_of[path])

    def _open(self, chunk: int) -> OpenChunk:
        self._check_unchanged(chunk)
        opened = self.shards.open(chunk, list(self.columns))
        found, expected = opened.num_samples, int(self.chunk_sizes[chunk])
        if found != expected:
            raise DamagedDataError(
                f"{opened.path}: has {several(found, 'sample')} but should have {expected}; write "
                "it again, or open the data again if it has changed"
            )
        check_columns(opened.path, self.columns, opened.columns)
        return opened
