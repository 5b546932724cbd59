"""Open chunks: arrays whose first axis counts samples, mapped from a file or decoded."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.lazy import lazy
from feedline.store.columns import Arrays, Column, columns_of
from feedline.store.gather import RowSource
from feedline.store.lists import LIST_PARTS, ListSource, source_of_parts
from feedline.store.scattered import Rows

try:
    import resource
except ModuleNotFoundError:  # not on Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class OpenChunk:
    """The arrays of one chunk, and a `ListSource` for each column of lists, bytes or text.

    A chunk that is stored row by row has `ScatteredRows` instead of arrays.

    Arrays may be views of a mapped file, with any strides and alignment, and are never written to.
    `type_names` names at least the types that numpy lacks. `num_bytes_held` counts ordinary memory:
    it is 0 for a mapped file. `num_files` counts the files that stay open; if the chunk shares its
    file with others (`shares_file`), that is the same file for all of them.
    """

    path: Path
    arrays: Mapping[str, Any]
    type_names: Mapping[str, str] = field(default_factory=dict)
    num_bytes_held: int = 0
    num_files: int = 1
    shares_file: bool = False

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name."""
        return {column.name: column for column in columns_of(self.arrays, self.type_names)}

    @lazy
    def rows(self) -> dict[str, Rows]:
        """The columns, prepared for copying rows."""
        return {
            name: RowSource(array) if isinstance(array, np.ndarray) else array
            for name, array in self.arrays.items()
        }

    def read(self, rows: NDArray[np.int64], columns: Mapping[str, Column], out: Arrays) -> Arrays:
        """Return some rows, written to `out`; lists are added to it."""
        for name in columns:
            source = self.rows[name]
            if isinstance(source, ListSource):
                out[name] = source.gather(rows)
            else:
                source.gather(rows, out[name])
        return out

    def with_lists(self, columns: Mapping[str, Column] | None) -> OpenChunk:
        """Return the chunk with a source for each column that is recorded as lists, and with dates.

        Formats of arrays hold the values and the offsets of lists as arrays of their own. Those
        without dates hold these as int64.
        """
        known = (columns or {}).values()
        if not any(column.has_lists or column.dtype.kind in "mM" for column in known):
            return self
        arrays, type_names = dict(self.arrays), dict(self.type_names)
        for column in known:
            stored = f"{column.name}/{LIST_PARTS[0]}" if column.has_lists else column.name
            array = arrays.get(stored)
            if column.dtype.kind in "mM" and isinstance(array, np.ndarray):
                if array.dtype == np.int64:
                    arrays[stored] = array.view(column.dtype)
                type_names[stored] = arrays[stored].dtype.name
            if column.has_lists and not isinstance(arrays.get(column.name), ListSource):
                type_name = type_names.get(stored)
                arrays[column.name] = self._lists_in(arrays, column, type_name)
        return replace(self, arrays=arrays, type_names=type_names)

    def _lists_in(
        self, arrays: dict[str, Any], column: Column, type_name: str | None
    ) -> ListSource:
        """Return the lists of a column, of which some chunks may have an array of equal ones."""
        where = f"{self.path}: column {column.name!r:.80}"
        equal = arrays.pop(column.name, None)
        if isinstance(equal, np.ndarray) and equal.ndim > 1:
            values = equal.reshape(-1, *equal.shape[2:])
            offsets = np.arange(len(equal) + 1) * equal.shape[1]
            name = self.type_names.get(column.name)
            return source_of_parts(values, offsets, column.kind, name, where)
        values, offsets = (arrays.pop(f"{column.name}/{part}", None) for part in LIST_PARTS)
        if not isinstance(values, np.ndarray) or not isinstance(offsets, np.ndarray):
            raise DamagedDataError(
                f"{self.path}: has no {' and '.join(LIST_PARTS)} of column {column.name!r:.80}; "
                "write this chunk again"
            )
        return source_of_parts(values, offsets, column.kind, type_name, where)

    @property
    def num_samples(self) -> int:
        """The number of samples, or an error if the columns do not agree."""
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise DamagedDataError(
                f"{self.path}: columns must have equally many samples, but "
                f"{listed or 'there are no columns'}; write this chunk again"
            )
        return next(iter(lengths.values()))


_MAX_FILES = 128
# What a chunk takes beside its bytes: objects for each of its columns.
_MAX_CHUNKS = 4096


def max_open_files() -> int:
    """Return the number of files to keep open, well below the limit of the process."""
    if resource is None:
        return _MAX_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILES if soft == resource.RLIM_INFINITY else max(1, min(_MAX_FILES, soft // 4))


class Kept(Protocol):
    """What `OpenChunks` keeps: a chunk, or several as one."""

    @property
    def path(self) -> Path: ...
    @property
    def num_bytes_held(self) -> int: ...
    @property
    def num_files(self) -> int: ...
    @property
    def shares_file(self) -> bool: ...


AnyKept = TypeVar("AnyKept", bound=Kept)


class OpenChunks(Generic[AnyKept]):
    """A cache of open chunks that threads share.

    The least recently used chunks are closed when there are more than `max_files` files,
    `max_bytes` of decoded data or some thousand chunks, except the latest. A chunk in use stays
    open until its reader is done.
    """

    def __init__(self, open_chunk: Callable[[int], AnyKept], max_files: int, max_bytes: int):
        self._open = open_chunk
        self._max_files = max_files
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Close all chunks."""
        self._process = os.getpid()
        self._lock = Lock()
        self._opening: dict[int, Lock] = {}
        self._chunks: OrderedDict[int, AnyKept] = OrderedDict()
        self._sharing: Counter[Path] = Counter()
        self._num_files = self._num_bytes = 0
        self._is_tight = False

    def get(self, number: int) -> AnyKept:
        """Return an open chunk; two threads never open the same one twice."""
        if self._process != os.getpid():
            # A fork copies locks as they are, also those that another thread was holding.
            self.clear()
        found = self._chunks.get(number)
        if found is not None and not self._is_tight:
            # As long as all fit, it does not matter which was used last.
            return found
        with self._lock:
            found = self._chunks.get(number)
            if found is not None:
                self._chunks.move_to_end(number)
                return found
            turn = self._opening.setdefault(number, Lock())
        with turn:
            with self._lock:
                found = self._chunks.get(number)
            if found is None:
                found = self._open(number)
                self._keep(number, found)
        return found

    def has_all(self, numbers: Iterable[int]) -> bool:
        """Whether all of these chunks are open."""
        with self._lock:
            return all(number in self._chunks for number in numbers)

    def drop(self, number: int) -> None:
        """Close a chunk, if it is open."""
        if self._process != os.getpid():
            return
        with self._lock:
            found = self._chunks.pop(number, None)
            if found is not None:
                self._count(found, -1)

    def _keep(self, number: int, chunk: AnyKept) -> None:
        with self._lock:
            self._opening.pop(number, None)
            if number in self._chunks:
                return
            self._chunks[number] = chunk
            self._count(chunk, 1)
            self._is_tight = self._is_over(2)
            while len(self._chunks) > 1 and self._is_over(1):
                _, oldest = self._chunks.popitem(last=False)
                self._count(oldest, -1)

    def _is_over(self, times: int) -> bool:
        """Whether this many times as much as there is would be too much."""
        return (
            times * self._num_files > self._max_files
            or times * self._num_bytes > self._max_bytes
            or times * len(self._chunks) > _MAX_CHUNKS
        )

    def _count(self, chunk: Kept, sign: int) -> None:
        self._num_bytes += sign * chunk.num_bytes_held
        if chunk.shares_file and chunk.num_files:
            before = self._sharing[chunk.path]
            self._sharing[chunk.path] += sign
            if before and self._sharing[chunk.path]:
                return
            if not self._sharing[chunk.path]:
                del self._sharing[chunk.path]
        self._num_files += sign * chunk.num_files
