"""MosaicML Streaming's own format: `index.json` beside `shard.00000.mds` and others."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import DamagedDataError, InvalidValueError, UnsafeDataError
from feedline.store.columns import Column
from feedline.store.foreign.fields import Digits, Field, Plain, Ragged
from feedline.store.foreign.hashes import check_hashes
from feedline.store.foreign.headers import (
    Bytes,
    Found,
    Pictures,
    Span,
    check_axes,
    check_found,
    check_one,
    numbers_at,
    type_of,
)
from feedline.store.foreign.indexes import INDEX, Table, begins_with_key, read_index
from feedline.store.foreign.inflating import CODECS, inflate
from feedline.store.foreign.records import Records, RecordShards, offsets_in
from feedline.store.mapped import map_file
from feedline.store.paths import check_relative, file_in
from feedline.words import several

_TYPES = {
    **{8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32"},
    **{33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64"},
}
_NUMBERS = {name: name for name in _TYPES.values()} | {"int": "int64"}
_TEXTS = ("str", "json", "str_decimal")
_BYTES = ("bytes", "jpeg", "png")
# Several images in one value: there are no columns of lists of bytes.
_SEVERAL = ("jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")
_KNOWN = (*_NUMBERS, *_TEXTS, *_BYTES, *_SEVERAL, "ndarray", "pil", "str_int", "str_float")


def matches(path: Path) -> bool:
    """Return whether a folder has an index of shards."""
    return begins_with_key(path / INDEX, "shards")


def open_shards(path: Path) -> MdsShards:
    """Return what is in a folder with an index of shards."""
    shards = MdsShards(path)
    _ = shards.columns
    return shards


class MdsShards(RecordShards):
    """The shards that MosaicML's MDSWriter has written.

    A shard may be compressed; one that also lies there inflated is read as that.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        index = Table(path / INDEX, read_index(path / INDEX))
        listed = [index.inner(shard, "a shard") for shard in index.list_at("shards")]
        if not listed:
            raise DamagedDataError(f"{path / INDEX}: lists 0 shards and must list at least 1")
        for shard in listed:
            _check_format(shard)
        fields = _fields(listed[0])
        for shard in listed[1:]:
            if _described(shard) != _described(listed[0]):
                raise DamagedDataError(
                    f"{path / INDEX}: columns of {_name_of(shard)!r:.80} differ from those of "
                    f"{_name_of(listed[0])!r:.80}; all shards must have the same; write it again"
                )
        self._unverified: set[int] = set()
        self._stored = [_Stored.of(path, shard) for shard in listed]
        files = [stored.path for stored in self._stored]
        sizes = [shard.count_at("samples") for shard in listed]
        super().__init__(path, files, sizes, fields, path / INDEX)

    @property
    def compression(self) -> str | None:
        """The name of the compression of shards; None if all are read as they lie."""
        return next((stored.codec for stored in self._stored if stored.codec), None)

    def verified(self) -> MdsShards:
        """Return the same, which compares each shard with its hash when it is first read."""
        missing = next((stored.path for stored in self._stored if not stored.hashes), None)
        if missing is not None:
            raise InvalidValueError(
                f"verify=True cannot be used: {self._index} has no hash of {missing.name}; write "
                "the data with hashes, such as hashes=['sha1'], or omit it"
            )
        other = copy.copy(self)
        other._unverified = set(range(len(self._stored)))
        return other

    def records(self, chunk: int) -> Records:
        """Return the bytes of a shard: mapped, or inflated into memory."""
        stored = self._stored[chunk]
        data = map_file(stored.path)
        if data.size != stored.num_bytes:
            raise DamagedDataError(
                f"{stored.path}: has {several(data.size, 'byte')} but should have "
                f"{stored.num_bytes:,}; copy or write it again"
            )
        if chunk in self._unverified:
            check_hashes(stored.path, data, stored.hashes)
            self._unverified.discard(chunk)
        num_bytes_held = 0
        if stored.codec is not None:
            data = inflate(data, stored.codec, stored.num_raw_bytes, stored.path)
            num_bytes_held = data.nbytes
        if data.size != stored.num_raw_bytes:
            raise DamagedDataError(
                f"{stored.path}: inflates to {several(data.size, 'byte')} but should to "
                f"{stored.num_raw_bytes:,}; copy or write it again"
            )
        offsets = offsets_in(stored.path, data, int(self._sizes[chunk]))
        return Records(stored.path, data, offsets, num_bytes_held + offsets.nbytes)


@dataclass(frozen=True)
class _Stored:
    """The file of a shard."""

    path: Path
    num_bytes: int
    codec: str | None
    num_raw_bytes: int
    hashes: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, shard: Table) -> _Stored:
        raw = shard.table_at("raw_data")
        name, num_raw_bytes = raw.text_at("basename"), raw.count_at("bytes")
        compression = shard.optional_text_at("compression")
        is_there = (folder / check_relative(folder, name)).exists()
        if compression is None or is_there:
            hashes = _hashes(raw)
            return cls(file_in(folder, name), num_raw_bytes, None, num_raw_bytes, hashes)
        codec = compression.partition(":")[0]
        if codec not in CODECS:
            raise InvalidValueError(
                f"{shard.path}: compression {compression!r:.80} must be one of "
                f"{', '.join(CODECS)}; write the data again"
            )
        packed = shard.table_at("zip_data")
        path = file_in(folder, packed.text_at("basename"))
        hashes = _hashes(packed)
        return cls(path, packed.count_at("bytes"), codec, num_raw_bytes, hashes)


def _check_format(shard: Table) -> None:
    """Raise unless a shard is of the one known version."""
    version, name = shard.get("version"), shard.get("format")
    if version != 2 or name != "mds":
        raise InvalidValueError(
            f"{shard.path}: has a shard of format {name!r:.80} and version {version!r:.80}, which "
            "must be 'mds' and 2; write the data again with MDSWriter"
        )


def _hashes(file: Table) -> Mapping[str, Any]:
    return file.inner(file.get("hashes") or {}, "hashes").values


def _name_of(shard: Table) -> str:
    return shard.table_at("raw_data").text_at("basename")


def _described(shard: Table) -> list[Any]:
    return [shard.list_at(f"column_{part}") for part in ("names", "encodings", "sizes")]


def _fields(shard: Table) -> list[Field]:
    """Return the fields of every record."""
    names, encodings, sizes = _described(shard)
    if not (len(names) == len(encodings) == len(sizes)) or not names:
        raise DamagedDataError(
            f"{shard.path}: has {len(names)} names, {len(encodings)} encodings and {len(sizes)} "
            "sizes of columns, which must be equally many; write it again"
        )
    fields = []
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if not isinstance(name, str) or not isinstance(encoding, str):
            raise DamagedDataError(
                f"{shard.path}: column {name!r:.80} with encoding {encoding!r:.80} must be texts; "
                "write it again"
            )
        field = _field(f"{shard.path}: column {name!r:.80}", name, encoding)
        if field.size != size:
            raise DamagedDataError(
                f"{shard.path}: column {name!r:.80} of {encoding!r:.80} has size {size!r:.80}, "
                f"which must be {field.size}; write it again"
            )
        fields.append(field)
    return fields


def _field(where: str, name: str, encoding: str) -> Field:
    kind, _, options = encoding.partition(":")
    if kind == "pkl":
        raise UnsafeDataError(
            f"{where}: has encoding 'pkl': unpickling runs code from the file; write it again as "
            "json, ndarray or bytes"
        )
    if kind == "ndarray":
        return _array(where, name, options)
    if encoding in _NUMBERS:
        column = Column(name, _NUMBERS[encoding])
        return Plain(name, column.row_bytes, column)
    if encoding in _TEXTS or encoding in _BYTES:
        lists = "text" if encoding in _TEXTS else "bytes"
        return Plain(name, None, Column(name, "uint8", kind=lists))
    if encoding in _SEVERAL:
        name = f"{name}/{encoding}"
        return Plain(name, None, Column(name, "uint8", kind="bytes"))
    if encoding == "pil":
        return Ragged(name, None, Pictures())
    if encoding in ("str_int", "str_float"):
        return Digits(name, None, "int64" if encoding == "str_int" else "float64")
    raise InvalidValueError(
        f"{where}: encoding {encoding!r:.80} must be one of {', '.join(_KNOWN)}; write it again"
    )


def _array(where: str, name: str, options: str) -> Field:
    type_name, _, sizes = options.partition(":")
    if type_name and type_name not in _TYPES.values():
        raise InvalidValueError(
            f"{where}: arrays of {type_name!r:.80} must be of {', '.join(_TYPES.values())}"
        )
    shape: tuple[int, ...] | None = None
    if sizes:
        digits = sizes.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 16 for part in digits):
            raise InvalidValueError(f"{where}: shape {sizes!r:.80} must be integers of at least 1")
        shape = tuple(map(int, digits))
        if len(shape) > 32 or not math.prod(shape):
            raise InvalidValueError(f"{where}: shape {sizes!r:.80} must be integers of at least 1")
        column = Column(name, type_name, shape)
        return Plain(name, column.row_bytes, column)
    return Ragged(name, None, ArrayHeader(type_name or None))


@dataclass(frozen=True)
class ArrayHeader:
    """Reads arrays with a byte for the type if that is not known, and one for the axes.

    The latter tells how many axes there are, and the bytes of each size.

    Args:
        type_name: The type of all arrays, if it is known.
    """

    type_name: str | None

    def __call__(self, memory: Bytes, span: Span, where: str) -> Found:
        """Return the arrays of a chunk."""
        type_name = self.type_name
        if type_name is None:
            span, types = span.without(1, where), memory[span.starts]
            type_name = type_of(_TYPES, check_one("type", types, where), where)
        sizes, codes = span.without(1, where), memory[span.starts]
        num_axes = check_axes(check_one("number of axes", codes >> 2, where), where)
        width = np.int64(1) << (codes & 3)
        values = sizes.without(num_axes * width, where)
        shapes = np.empty((len(codes), num_axes), np.uint64)
        for code in np.unique(codes).tolist():
            rows = np.flatnonzero(codes == code)
            dtype = f"<u{1 << (code & 3)}"
            shapes[rows] = numbers_at(memory, sizes.starts[rows], num_axes, dtype)
        return check_found(type_name, shapes, values, where)
