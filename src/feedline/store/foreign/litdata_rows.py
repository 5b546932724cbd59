"""litdata's chunks of plain rows, which hold a table of Arrow instead of records.

litdata writes samples of texts, numbers, lists and dicts in this way if pyarrow is installed. Each
chunk has types of its own, by what is in it, so all of them are looked through once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, FeedlineError, InvalidValueError
from feedline.lazy import lazy
from feedline.store.chunk import OpenChunk
from feedline.store.columns import MISSING, Column
from feedline.store.extras import import_extra
from feedline.store.foreign.headers import Bytes
from feedline.store.foreign.surveys import kept_survey
from feedline.store.lists import ListSource
from feedline.store.mapped import map_file
from feedline.store.shards import ListedShards
from feedline.words import several

_MAGIC = b"LDARW01\0"
_TAIL_BYTES = len(_MAGIC) + 4
_MOST_LEVELS = 32
_NUMBERS = ("int64", "float64", "bool")
_FORMS = (*_NUMBERS, "text", "bytes", "json", "null", "list:int64", "list:float64", "list:null")
# What a chunk has of a column: its form, whether values are missing, and the bytes of all.
_About = tuple[str, bool, int]


def has_table(path: Path) -> bool:
    """Return whether a chunk has a table, and no records beside it."""
    data = map_file(path)
    if data.size < 8 + _TAIL_BYTES or data[-len(_MAGIC) :].tobytes() != _MAGIC:
        return False
    end = 4 * (int(data[:4].view("<u4")[0]) + 2)
    return end <= data.size and bool(np.all(data[4:end].view("<u4") == end))


class RowShards(ListedShards):
    """The chunks of litdata that hold rows of tables.

    Args:
        path: The folder.
        files: The file of each chunk.
        sizes: The number of samples in each chunk.
        index: The file that lists the chunks.
        num_bytes: The bytes of each chunk.
        compression: The name of the compression of tables, if the index has it.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        sizes: Sequence[int],
        index: Path,
        num_bytes: Sequence[int],
        compression: object = None,
    ) -> None:
        super().__init__(path, files, sizes, index)
        self._num_bytes = tuple(num_bytes)
        self._compression = compression if isinstance(compression, str) else None

    @property
    def compression(self) -> str | None:
        """The name of the compression of tables; None if they are read as they lie."""
        return self._compression

    @lazy
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sample, by what is in all chunks."""
        columns = {}
        num_samples = max(1, int(self._sizes.sum()))
        for name, (form, has_missing, num_bytes) in self._forms.items():
            kind, _, type_name = form.rpartition(":")
            mean = -(-num_bytes // num_samples)
            if form in _NUMBERS:
                columns[name] = Column(name, form)
            elif kind == "list":
                # Of lists that are all empty, the type is not known.
                type_name = "int64" if type_name == "null" else type_name
                columns[name] = Column(name, type_name, kind="list", mean_bytes=mean)
            else:
                lists = "bytes" if form == "bytes" else "text"
                columns[name] = Column(name, "uint8", kind=lists, mean_bytes=mean)
            if has_missing:
                columns[name + MISSING] = Column(name + MISSING, "bool")
        return columns

    @lazy
    def _forms(self) -> dict[str, _About]:
        return kept_survey("rows of litdata", self.files, self._survey, _checked)

    def _survey(self) -> list[Any]:
        """Return what all chunks have of each column."""
        found: dict[str, _About] = {}
        num_before = 0
        for path in self._files:
            with _table_of(path) as (table, _, _):
                about: dict[str, _About] = {}
                for name, array in _leaves(path, table):
                    if name in about:
                        raise InvalidValueError(
                            f"{path}: has column {name!r:.80} twice, in a dict and by a key with a "
                            "slash; write it again with another name"
                        )
                    form = _form_of(array)
                    if form == "json":
                        _check_json(f"{path}: column {name!r:.80}", array.type)
                    about[name] = (form, array.null_count > 0, array.nbytes)
                num_rows = table.num_rows
            for name in found.keys() | about.keys():
                # A key that no sample of a chunk has is missing in all of them.
                old = found.get(name, ("null", num_before > 0, 0))
                found[name] = _merged(path, name, old, about.get(name, ("null", num_rows > 0, 0)))
            # The order is that of the first chunk, then that of new keys.
            found = {name: found[name] for name in (*about, *found)} if not num_before else found
            num_before += num_rows
        return list(found.items())

    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open one chunk; what is neither numbers nor text is written as JSON."""
        path, arrays = self._files[chunk], {}
        with _table_of(path) as (table, data, num_bytes_held):
            if data.size != self._num_bytes[chunk]:
                raise DamagedDataError(
                    f"{path}: has {several(data.size, 'byte')} but should have "
                    f"{self._num_bytes[chunk]:,}; copy or write it again"
                )
            leaves = dict(_leaves(path, table))
            for name, (form, _, _) in self._forms.items():
                wanted = [column for column in (name, name + MISSING) if column in names]
                if not wanted:
                    continue
                array = leaves.get(name)
                if array is None:
                    array = _arrow().nulls(table.num_rows)
                is_missing = np.asarray(array.is_null())
                if name in wanted:
                    where = f"{path}: column {name!r:.80}"
                    arrays[name] = _values(where, array, form, is_missing, data)
                if name + MISSING in wanted:
                    arrays[name + MISSING] = is_missing
        num_bytes_held += sum(array.nbytes for array in arrays.values() if _is_own(array))
        return OpenChunk(path, arrays, num_bytes_held=num_bytes_held)


def _checked(found: Any) -> dict[str, _About]:
    """Return what a survey found, or raise `ValueError` if that is not what surveys find."""
    forms = {name: (str(form), bool(has), int(size)) for name, (form, has, size) in found}
    for name, (form, _, _) in forms.items():
        if not isinstance(name, str) or form not in _FORMS:
            raise ValueError(f"{form!r} is not a form of a column")
    return forms


def _is_own(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _arrow() -> Any:
    return import_extra("pyarrow", extra="litdata", what="chunks of litdata with rows of texts")


@contextmanager
def _table_of(path: Path) -> Iterator[tuple[Any, Bytes, int]]:
    """Yield the table of a chunk, its mapped file, and the bytes of memory that it takes."""
    arrow = _arrow()
    data = map_file(path)
    size = int.from_bytes(data[-_TAIL_BYTES : -len(_MAGIC)].tobytes(), "little")
    first = data.size - _TAIL_BYTES - size
    if not has_table(path) or first < 0:
        raise DamagedDataError(
            f"{path}: has no table of Arrow at its end, as the first chunk has; copy or write it "
            "again"
        )
    try:
        table = _read_table(arrow, data[first : first + size])
        # Buffers that are shorter than they should be are found here, not by reading beyond them.
        table.validate(full=True)
        address = data.__array_interface__["data"][0]
        yield table, data, _num_bytes_outside(table, address, address + data.size)
    except FeedlineError:
        raise
    except (arrow.ArrowException, OSError, ValueError, LookupError) as error:
        raise DamagedDataError(
            f"{path}: its table cannot be read ({error!s:.200}); copy or write it again"
        ) from None


def _read_table(arrow: Any, data: Bytes) -> Any:
    buffer = arrow.BufferReader(arrow.py_buffer(data))
    # Readers are threads already, and pyarrow's own threads do not survive a fork.
    options = arrow.ipc.IpcReadOptions(use_threads=False)
    is_file = data[:6].tobytes() == b"ARROW1"
    opened = arrow.ipc.open_file if is_file else arrow.ipc.open_stream
    table = opened(buffer, options=options).read_all()
    # What has its bytes in one place is read from there; the rest is small.
    columns = [
        column if _has_bytes(column.type) else column.combine_chunks() for column in table.columns
    ]
    return arrow.table(columns, names=table.column_names)


def _has_bytes(type_: Any) -> bool:
    types = _arrow().types
    return bool(types.is_string(type_) or types.is_binary(type_))


def _num_bytes_outside(table: Any, low: int, high: int) -> int:
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    return sum(buffer.size for buffer in buffers if not low <= buffer.address < high)


def _leaves(path: Path, table: Any) -> Iterator[tuple[str, Any]]:
    """Yield each column as one array, texts and bytes as they lie; dicts as their values, named by
    their paths."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _has_bytes(column.type):
            yield name, column
            continue
        array = column.chunk(0) if column.num_chunks else _arrow().nulls(0, column.type)
        yield from _leaves_of(path, name, array, 0)


def _leaves_of(path: Path, name: str, array: Any, level: int) -> Iterator[tuple[str, Any]]:
    types = _arrow().types
    if not types.is_struct(array.type) or not array.type.num_fields:
        yield name, array
        return
    if level > _MOST_LEVELS:
        raise InvalidValueError(
            f"{path}: {name!r:.80} has more than {_MOST_LEVELS} levels of dicts"
        )
    for field, inner in zip(array.type, array.flatten(), strict=True):
        yield from _leaves_of(path, f"{name}/{field.name}", inner, level + 1)


def _form_of(array: Any) -> str:
    """Return what an array becomes: a type, `list:` and a type, text, bytes, or JSON."""
    types, type_ = _arrow().types, array.type
    if types.is_null(type_):
        return "null"
    if types.is_boolean(type_):
        return "bool"
    if types.is_int64(type_) or types.is_float64(type_):
        return "int64" if types.is_int64(type_) else "float64"
    if types.is_string(type_) or types.is_binary(type_):
        return "text" if types.is_string(type_) else "bytes"
    if types.is_list(type_) and types.is_null(type_.value_type):
        return "list:null" if not array.flatten().null_count else "json"
    if types.is_list(type_) and not array.flatten().null_count:
        inner = _form_of(array.values)
        return f"list:{inner}" if inner in ("int64", "float64") else "json"
    return "json"


def _check_json(where: str, type_: Any) -> None:
    """Raise if values of a type cannot be written as JSON."""
    if _arrow().types.is_binary(type_):
        raise InvalidValueError(
            f"{where}: has bytes inside of lists, for which there is no column; write them as a "
            "column of their own"
        )
    for number in range(type_.num_fields):
        _check_json(where, type_.field(number).type)


def _merged(path: Path, name: str, one: _About, other: _About) -> _About:
    """Return what two chunks have of a column, or raise if one column cannot hold both."""
    forms = {one[0], other[0]}
    for inner in ("", "list:"):
        if forms == {f"{inner}int64", f"{inner}float64"}:
            forms = {f"{inner}float64"}
    if len(forms) > 1:
        forms -= {"null"}
    if len(forms) > 1 and all(form == "json" or form.startswith("list:") for form in forms):
        forms -= {"list:null"}
        forms = forms if len(forms) == 1 else {"json"}
    if len(forms) > 1:
        raise InvalidValueError(
            f"{path}: column {name!r:.80} is {' and '.join(sorted(forms))} in different chunks, "
            "and must be the same in all; write it again"
        )
    return forms.pop(), one[1] or other[1], one[2] + other[2]


def _values(where: str, array: Any, form: str, is_missing: NDArray[np.bool_], data: Bytes) -> Any:
    """Return the values of a leaf in the form that all chunks have; zeros where one is missing."""
    mine = _form_of(array)
    if mine == "null":
        if form in _NUMBERS:
            return np.zeros(len(array), form)
        return _strings([b""] * len(array), form, where)
    if form in _NUMBERS:
        filled = array.fill_null(False if form == "bool" else 0) if array.null_count else array
        return _converted(where, filled.to_numpy(zero_copy_only=False), form)
    if form == "json":
        values = array.to_pylist()
        return _strings([b"" if v is None else json.dumps(v).encode() for v in values], form, where)
    if form.startswith("list:"):
        type_name = form.partition(":")[2]
        type_name = "int64" if type_name == "null" else type_name
        starts, lengths = _edges(array, is_missing)
        inner = np.empty(0, type_name) if mine == "list:null" else array.values.to_numpy()
        inner = np.ascontiguousarray(_converted(where, inner, type_name))
        memory = inner.view(np.uint8)
        width = inner.dtype.itemsize
        return ListSource(memory, starts * width, lengths * width, type_name=type_name, where=where)
    return _texts(where, array, form, is_missing, data)


def _texts(
    where: str, column: Any, form: str, is_missing: NDArray[np.bool_], data: Bytes
) -> ListSource:
    """Return texts or bytes, where they lie in the mapped file; copied if they are elsewhere."""
    pieces = getattr(column, "chunks", [column])
    address = data.__array_interface__["data"][0]
    contents = [piece.buffers()[2] for piece in pieces]
    places = [0 if one is None else one.address - address for one in contents]
    sizes = [0 if one is None else one.size for one in contents]
    if not all(0 <= p <= data.size - size for p, size in zip(places, sizes, strict=True)):
        array = pieces[0] if len(pieces) == 1 else column.combine_chunks()
        data = np.frombuffer(array.buffers()[2], np.uint8)
        pieces, places = [array], [0]
    edges = np.cumsum([0, *map(len, pieces)])
    tables = [
        _edges(piece, is_missing[first : first + len(piece)])
        for piece, first in zip(pieces, edges.tolist(), strict=False)
    ]
    starts = [place + table[0] for place, table in zip(places, tables, strict=True)]
    lengths = [table[1] for table in tables]
    none = [np.empty(0, np.int64)]
    return ListSource(
        data,
        np.concatenate(starts or none),
        np.concatenate(lengths or none),
        kind=form,
        where=where,
    )


def _converted(where: str, values: NDArray[Any], type_name: str) -> NDArray[Any]:
    """Return numbers as another type, or raise if they change."""
    converted = values.astype(type_name, copy=False)
    if converted.dtype != values.dtype and np.any(converted.astype(values.dtype) != values):
        raise InvalidValueError(
            f"{where}: has integers that are not exact as {type_name}, the type that other chunks "
            "have; write it again as one type"
        )
    return converted


def _edges(array: Any, is_missing: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return where each list or text begins, and how long it is."""
    offsets = np.frombuffer(array.buffers()[1] or b"\0" * 4, np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    lengths[is_missing] = 0
    return offsets[:-1], lengths


def _strings(encoded: list[bytes], form: str, where: str) -> ListSource:
    lengths = np.array([len(item) for item in encoded], np.int64)
    memory = np.frombuffer(b"".join(encoded), np.uint8)
    kind, _, type_name = form.rpartition(":")
    starts = np.cumsum(lengths) - lengths
    if kind == "list":
        type_name = "int64" if type_name == "null" else type_name
        return ListSource(memory, starts, lengths, type_name=type_name, where=where)
    return ListSource(
        memory, starts, lengths, kind="bytes" if form == "bytes" else "text", where=where
    )
