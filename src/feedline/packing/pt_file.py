"""`.pt` chunks in the layout of torch.save, written without torch.

A `.pt` file is a zip file of records that are stored, not compressed, and begin at multiples of 64
bytes, so that they can be mapped. `data.pkl` describes the tensors in the records `data/0` etc.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.store.columns import Column

ID_NAMES = ("sequence_ids", "subsequence_ids", "start_positions")
_DICT_NAMES = ("sequences", "targets")
_ALIGNMENT = 64
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
    """Raise unless the columns fit into the tuple of five."""
    for column in columns:
        place, _, key = column.name.partition("/")
        if column.name in ID_NAMES:
            if column.dtype.kind not in "iu" or column.shape or column.has_lists:
                raise InvalidValueError(
                    f"column {column.name!r} is {column} and must be one integer per row in "
                    "format='pt'; convert it, or rename it with columns={'sequences/id': …}"
                )
        elif place not in _DICT_NAMES or not key:
            raise InvalidValueError(
                f"column {column.name!r:.80} does not fit into format='pt', which has sequences/…, "
                f"targets/…, {', '.join(ID_NAMES)}; rename it with columns={{'sequences/item': "
                f"{column.name!r:.80}}}, or use another format"
            )


def add_ids(
    arrays: Mapping[str, NDArray[Any]], start: int, num_rows: int
) -> dict[str, NDArray[Any]]:
    """Return the columns and the other columns that the tuple needs.

    Without ids, sequences are numbered in the order of the folder: `start` is the
    first number.
    """
    zeros = np.zeros(num_rows, np.int64)
    ids = dict.fromkeys(ID_NAMES, zeros) | {"sequence_ids": np.arange(start, start + num_rows)}
    return {**arrays, **{name: values for name, values in ids.items() if name not in arrays}}


def write_pt(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write columns as the tuple (sequences, targets, and the three of `ID_NAMES`)."""
    names = [*(n for p in _DICT_NAMES for n in arrays if n.startswith(f"{p}/")), *ID_NAMES]
    records: dict[str, Any] = {"data.pkl": _pickle(arrays, names), "byteorder": b"little"}
    for number, name in enumerate(names):
        flat = np.ascontiguousarray(arrays[name]).reshape(-1)
        records[f"data/{number}"] = flat.view(np.uint8).data
    records["version"] = b"3\n"
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, data in records.items():
            record = zipfile.ZipInfo(f"archive/{name}")
            # The size of a large record is also in an extra field of 20 bytes.
            is_large = len(data) >= 2**31 - 1
            start = file.tell() + 30 + len(record.filename) + 20 * is_large + 4
            # The padding is an extra field, with the two letters that torch uses.
            padding = -start % _ALIGNMENT
            record.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
            with archive.open(record, "w", force_zip64=is_large) as out:
                out.write(data)


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
    # Unsigned types came late to torch: their storages have no type, tensors do.
    rebuild = "_rebuild_tensor_v2" if storage else "_rebuild_tensor_v3"
    kind = f"torch\n{storage}Storage" if storage else "torch.storage\nUntypedStorage"
    place = _text("storage") + f"c{kind}\n".encode() + _text(str(number)) + _text("cpu")
    return (
        f"ctorch._utils\n{rebuild}\n((".encode()
        + place
        + _numbers([array.size if storage else array.nbytes])
        + b"tQ"
        + _numbers([0])
        + b"(%bt(%bt" % (_numbers(array.shape), _numbers(strides))
        + b"\x89ccollections\nOrderedDict\n)R"
        + (b"" if storage else f"ctorch\n{array.dtype.name}\n".encode())
        + b"tR"
    )


def _text(text: str) -> bytes:
    body = text.encode()
    return b"X" + struct.pack("<I", len(body)) + body


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"".join(b"\x8a\x09" + number.to_bytes(9, "little") for number in numbers)
