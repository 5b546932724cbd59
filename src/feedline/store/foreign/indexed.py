"""Shards that are read by an index of ours, because their format has none."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.checksums import digest_parts, digest_texts
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column
from feedline.store.foreign.content import Content
from feedline.store.foreign.kept_index import Index, keep_index, read_index, read_told
from feedline.store.paths import announced, size_of
from feedline.store.progress import Progress, open_progress
from feedline.store.shards import Shards

# Yields the indexes of some shards of all, in order.
Builder = Callable[["IndexedShards", Sequence[int], Progress], Iterable[Index]]
# A bar for less would only flicker.
_BYTES_WORTH_A_BAR = 2**26
# What a sample takes at least, in every format here.
_LEAST_BYTES = 16
# Remote shards that are fetched while one is indexed, itself included.
_AHEAD = 5


_builder: ContextVar[Builder | None] = ContextVar("builder", default=None)


@contextmanager
def building_by(builder: Builder) -> Iterator[None]:
    """Have the indexes that are missing built by an engine, inside of the block."""
    token = _builder.set(builder)
    try:
        yield
    finally:
        _builder.reset(token)


class IndexedShards(Shards):
    """Shards with an index each. What is held for a shard does not grow with its samples.

    Args:
        path: What the user has opened.
        files: The shards, in order.
    """

    #: The name of the format in its indexes; another version gets another name.
    kind: str

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        super().__init__(path.absolute())
        self._files = [file.absolute() for file in files]
        self._digests = [_digest(file) for file in files]
        # What an index must say of its shard, or it is built again.
        self._keys = [_key(*both) for both in zip(self._files, self._digests, strict=True)]
        # The indexes that could not be kept.
        self._held: dict[int, Index] = {}
        self._told = self._index_all()
        self._drop_empty()
        self._sizes = np.array([told["num_samples"] for told in self._told], np.int64)
        self._columns = self.columns_of(self._told)

    @abstractmethod
    def content(self, file: Path, num_bytes: int | None) -> Content:
        """Return the bytes of a shard; `num_bytes` is their number if it is known."""

    @abstractmethod
    def build(self, file: Path, content: Content, on_bytes: Callable[[int], None]) -> Index:
        """Read a whole shard and return its index; `told` has at least `num_samples`."""

    @abstractmethod
    def columns_of(self, told: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
        """Return the columns of all shards, from what is told of each, or raise."""

    @abstractmethod
    def arrays_of(
        self, chunk: int, content: Content, index: Index, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return arrays and `ListSource`s of the named columns of a shard."""

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each shard."""
        return self._sizes

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of every sample."""
        return self._columns

    @property
    def files(self) -> Sequence[Path]:
        """The shards."""
        return self._files

    def files_of(self, chunk: int) -> Sequence[Path]:
        """Return the file of a shard."""
        return [self._files[chunk]]

    @property
    def compression(self) -> str | None:
        """The compression of shards, if some are compressed."""
        return "deflate" if any(told.get("is_compressed") for told in self._told) else None

    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open one shard."""
        file = self._files[chunk]
        if _digest(file) != self._digests[chunk]:
            raise _changed(file)
        content = self.content(file, self._told[chunk]["num_bytes"])
        key = _key(file, self._digests[chunk])
        kept = self._held.get(chunk) if key == self._keys[chunk] else None
        index = kept or read_index(file, key, self.kind)
        if index is None:
            index = self._build(file, content, Progress())
            # Columns were decided by what was told when the data was opened.
            if json.dumps(index.told) != json.dumps(self._told[chunk]):
                raise _changed(file)
        try:
            arrays = self.arrays_of(chunk, content, index, names)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, StoreError):
                raise
            raise DamagedDataError(
                f"{file}: its index does not fit ({error}); remove the folder .feedline-index "
                "beside it, and open the data again"
            ) from None
        # Sources of lists hold parts of the index and what was decoded.
        held = content.num_bytes_held + sum(
            array.nbytes if isinstance(array, np.ndarray) else _held_by(array, content)
            for array in arrays.values()
        )
        return OpenChunk(file, arrays, num_bytes_held=held)

    def _index_all(self) -> list[dict[str, Any]]:
        """Return what is told of each shard; those without an index get one."""
        told = [
            self._checked(read_told(file, key, self.kind))
            for file, key in zip(self._files, self._keys, strict=True)
        ]
        missing = [number for number, found in enumerate(told) if found is None]
        total = sum(size_of(self._files[number]) for number in missing)
        with open_progress(None if total >= _BYTES_WORTH_A_BAR else False) as bars:
            bars.begin("indexing", total, unit="bytes")
            build = _builder.get() if missing else None
            found = build(self, missing, bars) if build else self.build_in_turn(missing, bars)
            for number, index in zip(missing, found, strict=True):
                told[number] = dict(index.told)
                if not keep_index(self._files[number], self._keys[number], index):
                    self._held[number] = index
        return [one for one in told if one is not None]

    def build_in_turn(self, missing: Sequence[int], bars: Progress) -> Iterator[Index]:
        """Yield the indexes of some of the shards that were given, in order."""
        for place, number in enumerate(missing):
            with announced([self._files[ahead] for ahead in missing[place : place + _AHEAD]]):
                yield self.built(number, bars)

    def file_of(self, number: int) -> Path:
        """Return one of the shards that were given."""
        return self._files[number]

    def built(self, number: int, bars: Progress) -> Index:
        """Return the index of one of the shards that were given, built from all of it."""
        file = self._files[number]
        return self._build(file, self.content(file, None), bars)

    def _drop_empty(self) -> None:
        """Leave out shards without samples, unless there are no others."""
        kept = [number for number, told in enumerate(self._told) if told["num_samples"]] or [0]
        self._files = [self._files[number] for number in kept]
        self._digests = [self._digests[number] for number in kept]
        self._keys = [self._keys[number] for number in kept]
        self._told = [self._told[number] for number in kept]
        self._held = {
            place: self._held[number] for place, number in enumerate(kept) if number in self._held
        }

    def _checked(self, told: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what an index tells, if it makes sense; the file is not trusted."""
        if told is None:
            return None
        num_samples, num_bytes = told.get("num_samples"), told.get("num_bytes")
        if type(num_samples) is not int or type(num_bytes) is not int:
            return None
        if not 0 <= num_samples * _LEAST_BYTES <= num_bytes < 2**62:
            return None
        try:
            columns = self.columns_of([told])
        except (StoreError, LookupError, TypeError, ValueError, AttributeError):
            return None
        is_sound = all(
            isinstance(name, str) and type(column.mean_bytes) is int and column.mean_bytes >= 0
            for name, column in columns.items()
        )
        return told if is_sound else None

    def _build(self, file: Path, content: Content, bars: Progress) -> Index:
        index = self.build(file, content, bars.advance)
        told = {
            **index.told,
            "kind": self.kind,
            "num_bytes": int(content.memory.size),
            "is_compressed": content.num_bytes_held > 0,
        }
        return Index(told, index.arrays)


def _held_by(source: Any, content: Content) -> int:
    own = 0 if source.memory is content.memory else source.memory.nbytes
    return int(own + source.starts.nbytes + source.lengths.nbytes)


def _digest(file: Path) -> str:
    if hasattr(file, "identity"):
        return digest_texts(map(str, file.identity))
    if file.exists() and not file.is_file():
        raise StoreError(f"{file}: must be a regular file")  # A pipe would be waited for.
    try:
        return digest_parts(file)
    except OSError as error:
        raise StoreError(f"{file}: cannot be read ({error.strerror}); check its rights") from None


def _changed(file: Path) -> DamagedDataError:
    return DamagedDataError(f"{file}: has changed since the data was opened; open the data again")


def _key(file: Path, digest: str) -> str:
    """Return what changes with a file: a digest is of some parts of it only, so its time counts."""
    return digest if hasattr(file, "identity") else f"{digest} {file.stat().st_mtime_ns}"
