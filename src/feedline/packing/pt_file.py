"""`.pt` chunks, written as torch.save lays them out, without torch.

A `.pt` file is a zip file of records that are stored, not compressed, and begin at multiples of 64
bytes, so that they can be mapped. `data.pkl` says how tensors lie in the records `data/0` etc.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.store.columns import Column

ID_NAMES = ("sequence_ids", "subsequence_ids", "start_positions")
_DICT_NAMES = ("sequences", "targets")
_ALIGNMENT = 64
_BLOCK_BYTES = 2**23
_STORAGES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
}


def check_pt_columns(columns: list[Column]) -> None:
    """Raise unless the columns have a place in the tuple of five."""
    for column in columns:
        place, _, key = column.name.partition("/")
        if column.name in ID_NAMES:
            if column.dtype.kind not in "iu" or column.shape:
                raise InvalidValueError(
                    f"column {column.name!r} is {column} and must be one integer a row in "
                    "format='pt'; convert it, or rename it by columns={'sequences/id': …}"
                )
        elif place not in _DICT_NAMES or not key:
            raise InvalidValueError(
                f"column {column.name!r:.80} has no place in format='pt', which has sequences/…, "
                f"targets/…, {', '.join(ID_NAMES)}; rename it by columns={{'sequences/item': "
                f"{column.name!r:.80}}}, or use another format"
            )


def add_ids(arrays: Mapping[str, NDArray[Any]], start: int) -> dict[str, NDArray[Any]]:
    """Return the columns and those that the tuple needs beside them.

    Without ids of their own, sequences are numbered in the order of the folder: `start` is the
    first number.
    """
    num_rows = len(next(iter(arrays.values())))
    zeros = np.zeros(num_rows, np.int64)
    ids = dict.fromkeys(ID_NAMES, zeros) | {"sequence_ids": np.arange(start, start + num_rows)}
    return {**arrays, **{name: values for name, values in ids.items() if name not in arrays}}


def write_pt(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write columns as the tuple (sequences, targets, and the three of `ID_NAMES`)."""
    names = [*(n for p in _DICT_NAMES for n in arrays if n.startswith(f"{p}/")), *ID_NAMES]
    with open(path, "wb") as file:
        archive = _Archive(file)
        archive.add("data.pkl", [_pickle(arrays, names)])
        archive.add("byteorder", [b"little"])
        for number, name in enumerate(names):
            archive.add(f"data/{number}", _blocks_of(arrays[name]))
        archive.add("version", [b"3\n"])
        archive.finish()


def _blocks_of(array: NDArray[Any]) -> list[memoryview]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [flat[at : at + _BLOCK_BYTES].data for at in range(0, flat.size, _BLOCK_BYTES)]


def _pickle(arrays: Mapping[str, NDArray[Any]], names: list[str]) -> bytes:
    """Return a pickle of protocol 2 with the opcodes that torch.save uses."""
    tensors = {name: _tensor(number, arrays[name]) for number, name in enumerate(names)}
    content = b"\x80\x02("
    for place in _DICT_NAMES:
        items = [n for n in names if n.startswith(f"{place}/")]
        content += b"}("
        content += b"".join(_text(n.removeprefix(f"{place}/")) + tensors[n] for n in items)
        content += b"u"
    return content + b"".join(tensors[name] for name in ID_NAMES) + b"t."


def _tensor(number: int, array: NDArray[Any]) -> bytes:
    """Return the opcodes of a call that rebuilds a tensor from a record."""
    storage = _STORAGES.get(array.dtype.name)
    strides = [math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    # Unsigned types came late to torch: their storages have no type of their own, tensors do.
    rebuild = "_rebuild_tensor_v2" if storage else "_rebuild_tensor_v3"
    kind = f"torch\n{storage}Storage" if storage else "torch.storage\nUntypedStorage"
    size = array.size if storage else array.nbytes
    return (
        f"ctorch._utils\n{rebuild}\n((".encode()
        + _text("storage")
        + f"c{kind}\n".encode()
        + _text(str(number))
        + _text("cpu")
        + _number(size)
        + b"tQ"
        + _number(0)
        + _numbers(array.shape)
        + _numbers(strides)
        + b"\x89ccollections\nOrderedDict\n)R"
        + (b"" if storage else f"ctorch\n{array.dtype.name}\n".encode())
        + b"tR"
    )


def _text(text: str) -> bytes:
    body = text.encode()
    return b"X" + struct.pack("<I", len(body)) + body


def _number(number: int) -> bytes:
    if number < 2**8:
        return b"K" + struct.pack("<B", number)
    if number < 2**31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x09" + number.to_bytes(9, "little")


def _numbers(numbers: Any) -> bytes:
    return b"(" + b"".join(_number(number) for number in numbers) + b"t"


class _Archive:
    """A zip file of stored records, each aligned; sizes of 4 GiB and more are written as zip64."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._directory = b""
        self._num_records = 0

    def add(self, name: str, blocks: list[Any]) -> None:
        """Append a record."""
        path = f"archive/{name}".encode()
        offset = self._file.tell()
        size = sum(len(block) for block in blocks)
        crc = 0
        for block in blocks:
            crc = zlib.crc32(block, crc)
        is_large = size >= 2**32 - 1
        extra = struct.pack("<HHQQ", 1, 16, size, size) if is_large else b""
        # The padding is an extra field, with the two letters that torch uses.
        padding = -(offset + 30 + len(path) + len(extra) + 4) % _ALIGNMENT
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        short = 2**32 - 1 if is_large else size
        common = struct.pack(
            "<HHHHHIII", 45 if is_large else 20, 0x800, 0, 0, 0x21, crc, short, short
        )
        self._file.write(b"PK\3\4" + common + struct.pack("<HH", len(path), len(extra)))
        self._file.write(path + extra)
        for block in blocks:
            self._file.write(block)
        self._add_to_directory(path, common, offset, size if is_large else None)

    def _add_to_directory(
        self, path: bytes, common: bytes, offset: int, large_size: int | None
    ) -> None:
        fields = [large_size, large_size] if large_size is not None else []
        fields += [offset] if offset >= 2**32 - 1 else []
        extra = b"".join(struct.pack("<Q", field) for field in fields)
        extra = struct.pack("<HH", 1, len(extra)) + extra if fields else b""
        self._directory += b"PK\1\2" + struct.pack("<H", 45) + common
        self._directory += struct.pack("<HHHHHI", len(path), len(extra), 0, 0, 0, 0)
        self._directory += struct.pack("<I", min(offset, 2**32 - 1)) + path + extra
        self._num_records += 1

    def finish(self) -> None:
        """Append the directory."""
        start, size, count = self._file.tell(), len(self._directory), self._num_records
        self._file.write(self._directory)
        if start >= 2**32 - 1 or count >= 2**16 - 1:
            record = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, start)
            self._file.write(b"PK\6\6" + record)
            self._file.write(b"PK\6\7" + struct.pack("<IQI", 0, start + size, 1))
        short = min(count, 2**16 - 1)
        end = struct.pack("<HHHHIIH", 0, 0, short, short, size, min(start, 2**32 - 1), 0)
        self._file.write(b"PK\5\6" + end)
