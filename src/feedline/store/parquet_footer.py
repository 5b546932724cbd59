"""The footer of a parquet file: how many values and nulls each column of each row group has.

pyarrow shows them too, but ends the whole process if that part of a file is damaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_MAX_DEPTH = 32
# The fields that are looked at, by the path of their numbers from the top.
_WANTED: dict[int, Any] = {4: {1: {3: {5: None, 6: None, 12: {3: None}}}, 3: None}}


def column_counts(bytes_: NDArray[np.uint8], num_columns: int) -> NDArray[np.int64]:
    """Return the values, the nulls and the bytes of each column in each row group.

    The result has shape `(row groups, columns, 3)`. Nulls are -1 if the file does not say. An empty
    list counts as a value and as a null here, and bytes are those after decompression.
    """
    ending = bytes_[-8:].tobytes()
    length = int.from_bytes(ending[:4], "little")
    if ending[4:] != b"PAR1" or not 0 < length <= bytes_.size - 8:
        raise ValueError("it has no footer")
    data = bytes_[bytes_.size - 8 - length : -8].tobytes()
    footer, _ = _struct(data, 0, _WANTED, 0)
    groups = _field(footer, 4, [])
    found = np.full((len(groups), num_columns, 3), -1, np.int64)
    for number, group in enumerate(groups):
        columns = _field(group, 1, [])
        if len(columns) != num_columns:
            raise ValueError(f"row group {number} has {len(columns)} columns, not {num_columns}")
        for place, column in enumerate(columns):
            about = _field(column, 3, {})
            nulls = _field(_field(about, 12, {}), 3, -1)
            found[number, place] = _field(about, 5, 0), nulls, _field(about, 6, 0)
    return found


def _field(value: Any, number: int, default: Any) -> Any:
    """Return a field of a struct, or raise if it is not of the type of `default`."""
    found = value.get(number, default) if isinstance(value, dict) else None
    if type(found) is not type(default) or (type(found) is int and not -1 <= found < 2**62):
        raise ValueError(f"the footer has an odd value in field {number}")
    return found


def _struct(data: bytes, at: int, wanted: Any, depth: int) -> tuple[dict[int, Any], int]:
    """Return the wanted fields of a struct, and where it ends."""
    found: dict[int, Any] = {}
    number = 0
    while True:
        header = data[at]
        at += 1
        if not header:
            return found, at
        kind = header & 15
        if header >> 4:
            number += header >> 4
        else:
            number, at = _integer(data, at)
        if kind in (_TRUE, _FALSE):
            continue
        value, at = _value(data, at, kind, wanted.get(number) if wanted else None, depth + 1)
        if wanted and number in wanted:
            found[number] = value


def _value(data: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the footer is nested in more than {_MAX_DEPTH} levels")
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        if length > len(data) - at:
            raise ValueError("a text reaches out of the footer")
        return None, at + length
    if kind == _STRUCT:
        return _struct(data, at, wanted, depth)
    if kind in (_LIST, _SET):
        return _list(data, at, wanted, depth)
    if kind in (_TRUE, _FALSE, _BYTE):
        # In a list, a bool is a byte.
        return None, at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise ValueError(f"the footer has a field of type {kind}")


def _list(data: bytes, at: int, wanted: Any, depth: int) -> tuple[list[Any], int]:
    header = data[at]
    at += 1
    count = header >> 4
    if count == 15:
        count, at = _varint(data, at)
    # Each entry has at least a byte.
    if count > len(data) - at:
        raise ValueError("a list reaches out of the footer")
    found = []
    for _ in range(count):
        value, at = _value(data, at, header & 15, wanted, depth + 1)
        if wanted:
            found.append(value)
    return found, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number = byte & 127
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
    raise ValueError("a number in the footer is too long")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at
