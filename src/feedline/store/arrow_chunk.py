"""Chunks in parquet and Arrow files: each row group or record batch of a file is a chunk."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, FeedlineError, StoreError
from feedline.store.chunk import OpenChunk
from feedline.store.extras import import_arrow
from feedline.store.mapped import map_file
from feedline.words import several

_OTHERS = "select other columns with columns=[...]"
# Parquet may store many equal values in few bytes, so only absurd sizes can be refused: more than
# this, and more than this many times the file.
_PLAUSIBLE_BYTES = 2**32
_PLAUSIBLE_RATIO = 1000
_Names = Sequence[str] | None


def group_sizes(path: Path) -> tuple[int, ...]:
    """Return the number of samples in each row group or record batch of a file."""
    arrow = import_arrow()
    bytes_ = map_file(path)
    with _errors_named(arrow, path):
        if path.suffix == ".parquet":
            metadata = _open_parquet(arrow, bytes_).metadata
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            return tuple(_check_size(path, group.num_rows) for group in groups)
        _check_kind(path, bytes_)
        # Only batches know their size; where they are decoded, one column is enough.
        reader = _open_ipc(arrow, bytes_, [0] if _is_compressed(arrow, bytes_) else None)
        numbers = range(reader.num_record_batches)
        return tuple(_check_size(path, reader.get_batch(number).num_rows) for number in numbers)


def column_names(path: Path) -> list[str]:
    """Return the names of all columns of a file."""
    arrow = import_arrow()
    bytes_ = map_file(path)
    with _errors_named(arrow, path):
        if path.suffix == ".parquet":
            return list(_open_parquet(arrow, bytes_).schema_arrow.names)
        return list(_open_ipc(arrow, bytes_).schema.names)


def open_group(path: Path, group: int, columns: Sequence[str] | None = None) -> OpenChunk:
    """Open one row group or record batch of a file; only `columns` are read.

    Numbers and bools give one value per sample, and lists of one length add an axis. Arrow files
    that are not compressed stay mapped, except for bools, which are stored as bits.
    """
    arrow = import_arrow()
    bytes_ = map_file(path)
    with _errors_named(arrow, path):
        read = _read_row_group if path.suffix == ".parquet" else _read_record_batch
        table = read(arrow, path, bytes_, group, columns)
        # Buffers that are shorter than they should be are found here, not by reading beyond them.
        table.validate()
        names = table.schema.names if columns is None else columns
        arrays = {name: _column_values(arrow, path, name, table.column(name)) for name in names}
    held = sum(a.nbytes for a in arrays.values() if not np.may_share_memory(a, bytes_))
    return OpenChunk(path, arrays, num_bytes_held=held)


@contextmanager
def _errors_named(arrow: Any, path: Path) -> Iterator[None]:
    """Name the file in errors of pyarrow; a damaged file may cause almost any error."""
    try:
        yield
    except FeedlineError:
        raise
    except (arrow.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
        raise DamagedDataError(
            f"{path}: cannot be read ({error!s:.200}); it is truncated or damaged; write it again"
        ) from None


def _check_kind(path: Path, bytes_: NDArray[np.uint8]) -> None:
    """Raise if this is a sound file of a kind that has no random access."""
    start = bytes_[:8].tobytes()
    remedy = "pyarrow.feather.write_feather(table, path)"
    if start[:4] == b"FEA1":
        raise StoreError(
            f"{path}: is a Feather file of version 1, which must be of version 2 (Arrow); write it "
            f"again with {remedy}"
        )
    # A message of a stream begins with this mark, and the first of them is a schema.
    if start[:4] == b"\xff\xff\xff\xff" and 0 < int.from_bytes(start[4:], "little") < bytes_.size:
        raise StoreError(
            f"{path}: is an Arrow stream, which must be an Arrow file for random access; read it "
            f"with pyarrow.ipc.open_stream and write it again with {remedy}"
        )


def _check_group(path: Path, group: int, num_groups: int) -> None:
    if not 0 <= group < num_groups:
        raise DamagedDataError(f"{path}: group={group} must be in [0, {num_groups}); pack again")


def _check_size(path: Path, size: int) -> int:
    if size < 0:
        raise DamagedDataError(f"{path}: a group has {size} samples, which must be at least 0")
    return size


def _open_parquet(arrow: Any, bytes_: NDArray[np.uint8]) -> Any:
    return import_arrow("pyarrow.parquet").ParquetFile(arrow.BufferReader(arrow.py_buffer(bytes_)))


def _open_ipc(arrow: Any, bytes_: NDArray[np.uint8], fields: list[int] | None = None) -> Any:
    # Readers are threads already, and pyarrow's own threads do not survive a fork.
    options = arrow.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return arrow.ipc.open_file(arrow.BufferReader(arrow.py_buffer(bytes_)), options=options)


def _read_row_group(
    arrow: Any, path: Path, bytes_: NDArray[np.uint8], group: int, columns: _Names
) -> Any:
    file = _open_parquet(arrow, bytes_)
    _check_group(path, group, file.metadata.num_row_groups)
    names = _names_to_read(arrow, path, file.schema_arrow, columns)
    # pyarrow makes room for as many rows as the file claims, before it reads one. Asking for the
    # metadata of a column would tell more, but ends the whole process if that is damaged.
    num_rows = _check_size(path, file.metadata.row_group(group).num_rows)
    claimed = num_rows * sum(
        _row_bytes(arrow, file.schema_arrow.field(name).type) for name in names
    )
    if claimed > max(_PLAUSIBLE_BYTES, _PLAUSIBLE_RATIO * bytes_.size):
        found = f"claims {claimed} bytes but the file has {bytes_.size}"
        raise DamagedDataError(f"{path}: row group {group} {found}; write smaller row groups")
    table = file.read_row_group(group, columns=names, use_threads=False)
    if table.num_rows != num_rows:
        found = f"has {several(table.num_rows, 'sample')} but claims {num_rows}"
        raise DamagedDataError(f"{path}: row group {group} {found}; write it again")
    return table


def _read_record_batch(
    arrow: Any, path: Path, bytes_: NDArray[np.uint8], group: int, columns: _Names
) -> Any:
    reader = _open_ipc(arrow, bytes_)
    _check_group(path, group, reader.num_record_batches)
    names = _names_to_read(arrow, path, reader.schema, columns)
    if _is_compressed(arrow, bytes_):
        fields = [reader.schema.get_field_index(name) for name in names]
        return _open_ipc(arrow, bytes_, fields).get_batch(group)
    # Choosing columns would copy them; all of them cost nothing while they stay mapped.
    return reader.get_batch(group)


def _is_compressed(arrow: Any, bytes_: NDArray[np.uint8]) -> bool:
    """Whether the first record batch is compressed; pyarrow does not show it."""
    # The messages of a file begin after its magic, in the format of a stream.
    for message in arrow.ipc.MessageReader.open_stream(arrow.py_buffer(bytes_[8:])):
        if message.type == "record batch":
            data = message.metadata.to_pybytes()
            batch = _flatbuffer_child(data, struct.unpack_from("<I", data)[0], 2)
            return bool(batch and _flatbuffer_child(data, batch, 3))
    return False


def _flatbuffer_child(data: bytes, table: int, field: int) -> int:
    """Return the place of the table in a field of another table, or 0 if the field is absent."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * field
    if entry >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, fields + entry)[0]
    place: int = table + offset + struct.unpack_from("<I", data, table + offset)[0]
    return place if offset else 0


def _names_to_read(arrow: Any, path: Path, schema: Any, columns: _Names) -> list[str]:
    """Return the columns to read, or raise if one is missing or its type has no numpy array."""
    names = list(schema.names if columns is None else dict.fromkeys(columns))
    unknown = [name for name in names if name not in schema.names]
    if unknown or not names:
        raise DamagedDataError(
            f"{path}: has columns {schema.names!s:.200} and must have {unknown or 'at least one'}; "
            f"write it again, or {_OTHERS}"
        )
    for name in names:
        if schema.names.count(name) > 1:
            raise DamagedDataError(
                f"{path}: column {name!r} appears {schema.names.count(name)} times and must appear "
                f"once; rename one, or {_OTHERS}"
            )
        type_ = inner = schema.field(name).type
        while _is_list(arrow, inner):
            inner = inner.value_type
        kinds = ("is_boolean", "is_integer", "is_floating")
        if not any(getattr(arrow.types, kind)(inner) for kind in kinds):
            raise DamagedDataError(
                f"{path}: column {name!r} has type {type_!s:.80} and must have bools, integers or "
                f"floats, or lists of them; convert it, or {_OTHERS}"
            )
    return names


def _is_list(arrow: Any, type_: Any) -> bool:
    kinds = ("is_fixed_size_list", "is_list", "is_large_list")
    return any(getattr(arrow.types, kind)(type_) for kind in kinds)


def _row_bytes(arrow: Any, type_: Any) -> int:
    """Return the minimum bytes of a row; lists of any length may be empty."""
    if arrow.types.is_fixed_size_list(type_):
        return int(type_.list_size) * _row_bytes(arrow, type_.value_type)
    return 8 if _is_list(arrow, type_) else -(-int(type_.bit_width) // 8)


def _column_values(arrow: Any, path: Path, name: str, column: Any) -> NDArray[Any]:
    where = f"{path}: column {name!r}"
    pieces = column.chunks if isinstance(column, arrow.ChunkedArray) else [column]
    pieces = [piece for piece in pieces if len(piece)] or [arrow.array([], column.type)]
    arrays = [_values(arrow, where, piece) for piece in pieces]
    if len({array.shape[1:] for array in arrays}) > 1:
        raise _ragged(where, [array.shape[1] for array in arrays])
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _values(arrow: Any, where: str, array: Any) -> NDArray[Any]:
    """Return an Arrow array without nulls as numpy's, with an axis for each level of lists."""
    if array.null_count:
        raise DamagedDataError(
            f"{where} has {several(array.null_count, 'null')} and must have none; fill them, or "
            f"{_OTHERS}"
        )
    if not _is_list(arrow, array.type):
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    if arrow.types.is_fixed_size_list(array.type):
        length, inner = array.type.list_size, array.flatten()
    else:
        length, inner = _equal_lists(where, array)
    items = _values(arrow, where, inner)
    return items.reshape(len(array), length, *items.shape[1:])


def _equal_lists(where: str, array: Any) -> tuple[int, Any]:
    """Return the common length of all lists, and their values."""
    if not len(array):
        return 0, array.values.slice(0, 0)
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    first, length = int(offsets[0]), int(offsets[1]) - int(offsets[0])
    last = first + length * len(array)
    # With both ends inside, no offset in between can be outside or overflow.
    is_inside = first >= 0 and length >= 0 and last <= len(array.values)
    if not is_inside or not np.array_equal(offsets, first + length * np.arange(len(array) + 1)):
        raise _ragged(where, np.diff(offsets))
    return length, array.values.slice(first, last - first)


def _ragged(where: str, lengths: Any) -> DamagedDataError:
    return DamagedDataError(
        f"{where} has lists of {np.min(lengths)} to {np.max(lengths)} values, which must all have "
        f"the same length; pad them, or {_OTHERS}"
    )


def compression_of(path: Path) -> str | None:
    """Return the name of the compression of a parquet or Arrow file; None if it has none."""
    arrow = import_arrow()
    bytes_ = map_file(path)
    with _errors_named(arrow, path):
        if path.suffix != ".parquet":
            return "lz4 or zstd" if _is_compressed(arrow, bytes_) else None
        # Parquet encodes values even where it does not compress them.
        return "parquet"
