"""Open parquet and Arrow files: their schema, their groups, and what they say about them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, FeedlineError
from feedline.lazy import lazy
from feedline.store.arrow_batches import Batches, batches_in_stream
from feedline.store.arrow_messages import batches_of_file, is_stream, schema_of_stream
from feedline.store.arrow_types import Form, Leaf, count_parts, is_any, storage_type
from feedline.store.extras import import_arrow
from feedline.store.mapped import map_shared
from feedline.store.parquet_footer import column_counts
from feedline.store.parquet_times import fields_with_int96, refuse_wrapped
from feedline.words import several

# Parquet may store many equal values in few bytes, so only absurd sizes can be refused: more than
# this, and more than this many times the file.
_PLAUSIBLE_BYTES = 2**32
_PLAUSIBLE_RATIO = 1000


class Counts(NamedTuple):
    """What a file says about a column in each of its groups.

    `num_nulls` is -1 where it says nothing, or where it counts empty lists too. `num_values` is the
    values in all lists, or None; parquet counts an empty list as one. `num_bytes` is about what it
    takes to look, and 0 if that is little.
    """

    num_nulls: NDArray[np.int64]
    num_values: NDArray[np.int64] | None
    num_bytes: NDArray[np.int64]


class ArrowFile(Protocol):
    """An open file; `bytes_` are its mapped bytes, `num_bytes_filled` those that memory holds."""

    path: Path
    bytes_: NDArray[np.uint8]
    schema: Any
    num_bytes_filled: int

    @property
    def compression(self) -> str | None:
        """The name of its compression; None if values are read as they lie."""

    def sizes(self) -> tuple[int, ...]:
        """Return the number of rows in each group."""

    def read(self, group: int, leaves: Sequence[tuple[Leaf, Form]]) -> Any:
        """Return a table or record batch with at least some leaves of a group."""

    def counts(self, leaves: Sequence[tuple[Leaf, Form]]) -> list[Counts]:
        """Return what the file says about some leaves; this decodes no data."""


@contextmanager
def opened_file(path: Path) -> Iterator[ArrowFile]:
    """Open a file, and name it in errors of pyarrow; a damaged file may cause almost any error."""
    arrow = import_arrow()
    # A remote file may be there in part.
    image: Callable[[], NDArray[np.uint8]] | None = getattr(path, "image", None)
    bytes_ = map_shared(path) if image is None else image()
    try:
        if path.suffix == ".parquet":
            yield _ParquetFile(arrow, path, bytes_)
        elif is_stream(path, bytes_):
            yield _Stream(arrow, path, bytes_)
        else:
            yield _IpcFile(arrow, path, bytes_)
    except FeedlineError:
        raise
    except (arrow.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
        raise DamagedDataError(
            f"{path}: cannot be read ({error!s:.200}); it is truncated or damaged; write it again"
        ) from None


class _ParquetFile:
    num_bytes_filled = 0

    def __init__(self, arrow: Any, path: Path, bytes_: NDArray[np.uint8]) -> None:
        self.path, self.bytes_, self._arrow = path, bytes_, arrow
        self._file = self._opened()
        self.schema = self._file.schema_arrow

    def _opened(self, **options: Any) -> Any:
        buffer = self._arrow.BufferReader(self._arrow.py_buffer(self.bytes_))
        return import_arrow("pyarrow.parquet").ParquetFile(buffer, **options)

    @property
    def compression(self) -> str | None:
        # Parquet encodes values even where it does not compress them.
        return "parquet"

    def sizes(self) -> tuple[int, ...]:
        metadata = self._file.metadata
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        return tuple(_check_size(self.path, group.num_rows) for group in groups)

    def read(self, group: int, leaves: Sequence[tuple[Leaf, Form]]) -> Any:
        _check_group(self.path, group, self._file.metadata.num_row_groups)
        # pyarrow makes room for as many rows as the file claims, before it reads one.
        num_rows = _check_size(self.path, self._file.metadata.row_group(group).num_rows)
        claimed = num_rows * sum(form.min_bytes for _, form in leaves)
        if claimed > max(_PLAUSIBLE_BYTES, _PLAUSIBLE_RATIO * self.bytes_.size):
            found = f"claims {claimed} bytes but the file has {self.bytes_.size}"
            raise DamagedDataError(f"{self.path}: row group {group} {found}; write smaller ones")
        if fill := getattr(self.path, "fill", None):
            fill(self.bytes_, self._file.metadata, group)
        names = [".".join(leaf.steps) for leaf, _ in leaves]
        table = self._file.read_row_group(group, columns=names, use_threads=False)
        if table.num_rows != num_rows:
            found = f"has {several(table.num_rows, 'sample')} but claims {num_rows}"
            raise DamagedDataError(f"{self.path}: row group {group} {found}; write it again")
        if old := [name for name in fields_with_int96(self._file) if name in table.column_names]:
            file = self._opened(coerce_int96_timestamp_unit="s")
            seconds = file.read_row_group(group, columns=old, use_threads=False)
            refuse_wrapped(self.path, self._arrow, table.select(old), seconds.select(old))
        return table

    def counts(self, leaves: Sequence[tuple[Leaf, Form]]) -> list[Counts]:
        num_columns = sum(count_parts(self._arrow, field.type)[0] for field in self.schema)
        found = column_counts(self.bytes_, num_columns)
        result = []
        for leaf, form in leaves:
            values, nulls, num_bytes = found[:, leaf.leaf].T
            if not leaf.is_nullable:
                nulls = np.zeros_like(nulls)
            elif form.axes:
                # Empty lists are among them.
                nulls = np.where(nulls > 0, -1, nulls)
            result.append(Counts(nulls, values if form.may_be_lists else None, num_bytes))
        return result


class MessageFile:
    """An Arrow file or stream: its record batches are messages."""

    num_bytes_filled = 0

    def __init__(self, arrow: Any, path: Path, bytes_: NDArray[np.uint8]) -> None:
        self.path, self.bytes_, self._arrow = path, bytes_, arrow
        self.schema: Any = None

    @lazy
    def batches(self) -> Batches:
        """The record batches, and where they are."""
        raise NotImplementedError

    @property
    def compression(self) -> str | None:
        return "lz4 or zstd" if self.batches.is_compressed else None

    def sizes(self) -> tuple[int, ...]:
        batches = self.batches
        # No value takes less than a bit, unless it is compressed.
        if not batches.is_compressed and (batches.sizes > 8 * self.bytes_.size).any():
            most = several(int(batches.sizes.max()), "row")
            raise ValueError(f"a record batch claims {most}, and the file has fewer bits")
        return tuple(_check_size(self.path, size) for size in batches.sizes.tolist())

    def counts(self, leaves: Sequence[tuple[Leaf, Form]]) -> list[Counts]:
        num_nodes = sum(count_parts(self._arrow, field.type)[1] for field in self.schema)
        table = self.batches.nodes
        if len(self.batches.sizes) and (table is None or table.shape[1] != num_nodes):
            raise ValueError(f"a record batch has other than {num_nodes} fields")
        if table is None or not len(table):
            table = np.empty((0, num_nodes, 2), np.int64)
        result = []
        for leaf, form in leaves:
            nulls = table[:, list(leaf.nodes), 1]
            total = np.where((nulls < 0).any(axis=1), -1, nulls.sum(axis=1))
            stored = storage_type(self._arrow, leaf.type_)
            is_list = is_any(self._arrow, stored, "is_list", "is_large_list")
            values = table[:, leaf.nodes[-1] + 1, 0] if is_list and form.may_be_lists else None
            result.append(Counts(total, values, np.zeros_like(total)))
        return result


class _IpcFile(MessageFile):
    def __init__(self, arrow: Any, path: Path, bytes_: NDArray[np.uint8]) -> None:
        super().__init__(arrow, path, bytes_)
        self._reader = self._open()
        self.schema = self._reader.schema

    def _open(self, fields: list[int] | None = None) -> Any:
        # Readers are threads already, and pyarrow's own threads do not survive a fork.
        options = self._arrow.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        buffer = self._arrow.BufferReader(self._arrow.py_buffer(self.bytes_))
        return self._arrow.ipc.open_file(buffer, options=options)

    @lazy
    def batches(self) -> Batches:
        """The record batches that the footer lists."""
        return Batches.of_file(self.bytes_)

    def read(self, group: int, leaves: Sequence[tuple[Leaf, Form]]) -> Any:
        _check_group(self.path, group, self._reader.num_record_batches)
        if fill := getattr(self.path, "fill", None):
            self.num_bytes_filled = fill(self.bytes_, group)
        if (first := next(batches_of_file(self.bytes_), None)) and first.is_compressed:
            names = dict.fromkeys(leaf.steps[0] for leaf, _ in leaves)
            fields = [self.schema.get_field_index(name) for name in names]
            return self._open(fields).get_batch(group)
        # Choosing columns would copy them; all of them cost nothing while they stay mapped.
        return self._reader.get_batch(group)


class _Stream(MessageFile):
    def __init__(self, arrow: Any, path: Path, bytes_: NDArray[np.uint8]) -> None:
        super().__init__(arrow, path, bytes_)
        first, end = schema_of_stream(bytes_)
        self.schema = arrow.ipc.read_schema(arrow.py_buffer(bytes_[first:end]))

    @lazy
    def batches(self) -> Batches:
        """The record batches up to the end of the stream."""
        return batches_in_stream(self.path, self.bytes_)

    def read(self, group: int, leaves: Sequence[tuple[Leaf, Form]]) -> Any:
        batches = self.batches
        _check_group(self.path, group, len(batches.sizes))
        first, end = int(batches.firsts[group]), int(batches.ends[group])
        message = self._arrow.py_buffer(self.bytes_[first:end])
        return self._arrow.ipc.read_record_batch(message, self.schema)


def _check_group(path: Path, group: int, num_groups: int) -> None:
    if not 0 <= group < num_groups:
        raise DamagedDataError(f"{path}: group={group} must be in [0, {num_groups}); pack again")


def _check_size(path: Path, size: int) -> int:
    if size < 0:
        raise DamagedDataError(f"{path}: a group has {size} samples, which must be at least 0")
    return size
