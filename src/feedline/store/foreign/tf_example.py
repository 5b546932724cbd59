"""`tf.train.Example`: which bytes of a record are the values of which feature.

A small parser of the protobuf wire format. It is strict: anything that TensorFlow would not write
into an Example makes a record something else. The values of a feature are spans of bytes. Joined,
those of one record are its strings, its packed floats, or its packed varints.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.foreign.kept_index import compact

#: The kinds of features.
KINDS = ("bytes", "float", "int64")

_LEN_1, _LEN_2, _LEN_3 = 0x0A, 0x12, 0x1A
_VARINT_1, _FIXED32_1 = 0x08, 0x0D
_KIND_OF_TAG = {_LEN_1: "bytes", _LEN_2: "float", _LEN_3: "int64"}
_LENGTH_OF = {_VARINT_1: 0, _FIXED32_1: 4}
_HIGH_BYTES = bytes(range(0x80, 0x100))
_MAX_VARINT = 10

# The kind of a feature, the number of its values and the spans of their bytes.
Found = tuple[str, int, list[tuple[int, int]]]


class NotAnExampleError(Exception):
    """A record is not a `tf.train.Example`; it may be sound all the same."""


def features_of(record: bytes) -> dict[str, Found]:
    """Return the features of a record, or raise `NotAnExampleError`.

    Examples:
        >>> example = bytes.fromhex("0a0d 0a0b 0a01 78 1206 1a04 0a02 9601")
        >>> features_of(example)
        {'x': ('int64', 1, [(13, 2)])}
    """
    found: dict[str, Found] = {}
    for tag, first, end in _fields(record, 0, len(record)):
        _expect(tag == _LEN_1)
        for entry_tag, entry_first, entry_end in _fields(record, first, end):
            _expect(entry_tag == _LEN_1)
            name, feature = b"", None
            for part, part_first, part_end in _fields(record, entry_first, entry_end):
                if part == _LEN_1:
                    name = record[part_first:part_end]
                else:
                    # A second value would be merged with the first, which nobody writes.
                    _expect(part == _LEN_2 and feature is None)
                    feature = _feature(record, part_first, part_end)
            try:
                key = name.decode()
            except UnicodeDecodeError:
                raise NotAnExampleError from None
            # As in every protobuf map, the last entry of a name counts.
            found.pop(key, None)
            if feature is not None and feature[0]:
                found[key] = feature
    return found


def _feature(record: bytes, first: int, end: int) -> Found:
    """Return the values of one feature; its kind is empty if none is set."""
    kind, count, spans = "", 0, []
    for tag, list_first, list_end in _fields(record, first, end):
        # One kind, once.
        _expect(not kind and tag in _KIND_OF_TAG)
        kind = _KIND_OF_TAG[tag]
        for part, value_first, value_end in _fields(record, list_first, list_end):
            if kind == "bytes":
                _expect(part == _LEN_1)
                count += 1
            elif part == _LEN_1:
                count += _num_packed(record, value_first, value_end, kind)
            else:
                _expect(part == (_FIXED32_1 if kind == "float" else _VARINT_1))
                count += 1
            spans.append((value_first, value_end - value_first))
    return kind, count, spans


def _num_packed(record: bytes, first: int, end: int, kind: str) -> int:
    """Return the number of values in a packed list."""
    if kind == "float":
        _expect((end - first) % 4 == 0)
        return (end - first) // 4
    _expect(first == end or record[end - 1] < 0x80)
    return len(record[first:end].translate(None, _HIGH_BYTES))


def _fields(record: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tag, the start and the end of each field of a message."""
    while at < end:
        tag = record[at]
        at += 1
        if tag == _FIXED32_1:
            length = 4
        elif tag == _VARINT_1:
            length = _varint(record, at, end)[1] - at
        elif at < end and record[at] < 0x80:
            length = record[at]
            at += 1
        else:
            length, at = _varint(record, at, end)
        if length > end - at:
            raise NotAnExampleError
        yield tag, at, at + length
        at += length


def _varint(record: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a varint and its end."""
    value = shift = 0
    for place in range(at, min(end, at + _MAX_VARINT)):
        byte = record[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise NotAnExampleError


def _expect(is_right: bool) -> None:
    if not is_right:
        raise NotAnExampleError


class FeatureSpans:
    """The spans of one feature in all records of a shard.

    Args:
        kind: The kind of the feature.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.least, self.most = 2**62, 0
        self.present = array("q")
        self._rows, self._starts, self._lengths = (array("q") for _ in range(3))

    def add(self, row: int, base: int, count: int, spans: list[tuple[int, int]]) -> None:
        """Add the values of a record that begins at byte `base` of its shard."""
        self.present.append(row)
        self.least, self.most = min(self.least, count), max(self.most, count)
        for start, length in spans:
            self._rows.append(row)
            self._starts.append(base + start)
            self._lengths.append(length)

    def told(self, name: str) -> list[Any]:
        """Return what is known of the feature, as JSON values."""
        num_filled = len(np.unique(self._rows))
        num_bytes = sum(self._lengths)
        return [name, self.kind, len(self.present), num_filled, self.least, self.most, num_bytes]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the spans, as arrays of an index."""
        parts = {"rows": self._rows, "starts": self._starts, "lengths": self._lengths}
        return {name: compact(part) for name, part in parts.items()} | {
            "present": compact(self.present)
        }


def decode_varints(packed: NDArray[np.uint8], where: str) -> tuple[NDArray[np.int64], Any]:
    """Return the integers of packed varints, and the byte after each.

    Examples:
        >>> decode_varints(np.array([1, 0x96, 1], np.uint8), "x")[0].tolist()
        [1, 150]
    """
    ends = np.flatnonzero(packed < 0x80) + 1
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    lengths = ends - starts
    longest = int(lengths.max(initial=0))
    if longest > _MAX_VARINT or (packed.size and packed[-1] >= 0x80):
        raise DamagedDataError(
            f"{where}: an integer has more than {_MAX_VARINT} bytes or does not end; the file is "
            "damaged; write it again"
        )
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        mine = np.flatnonzero(lengths > place)
        part = packed.take(starts.take(mine) + place) & np.uint8(0x7F)
        values[mine] |= part.astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64), ends
