"""What the messages of Arrow files and streams say, without decoding the data that follows them.

pyarrow can open any batch of a file, but of a stream only the next; and it counts the nulls and the
values of a batch only after decoding it. All of it is in the metadata of the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import StoreError

_MAGIC = b"ARROW1"
_MARK = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
# The mark behind the last message of a stream; no type of message.
_END = -1
_LAST_KIND = 5
_REMEDY = "pyarrow.feather.write_feather(table, path)"


class Message(NamedTuple):
    """A record batch: where its message is in the file, and what it says.

    `nodes` has the length and the number of nulls of every field, depth first. `buffers` has where
    each buffer begins, from `body` on, and its bytes.
    """

    first: int
    body: int
    end: int
    num_rows: int
    nodes: NDArray[np.int64]
    buffers: NDArray[np.int64]
    is_compressed: bool


def is_stream(path: Path, bytes_: NDArray[np.uint8]) -> bool:
    """Whether this is an Arrow stream and not a file; raises if it is a Feather file of old."""
    start = bytes_[:8].tobytes()
    if start[:4] == b"FEA1":
        raise StoreError(
            f"{path}: is a Feather file of version 1, which must be of version 2 (Arrow); write it "
            f"again with {_REMEDY}"
        )
    # A message of a stream begins with this mark, and the first of them is a schema.
    return start[:4] == _MARK and 0 < int.from_bytes(start[4:], "little") < bytes_.size


class Blocks(NamedTuple):
    """Where the messages of an Arrow file are: the place, and the bytes of the head and body."""

    dictionaries: NDArray[np.int64]
    batches: NDArray[np.int64]


def footer_bytes(bytes_: NDArray[np.uint8]) -> int:
    """Return the bytes of the footer of an Arrow file, with what follows it."""
    ending = bytes_[-10:].tobytes()
    length = int.from_bytes(ending[:4], "little", signed=True)
    if ending[4:] != _MAGIC or not 0 < length <= bytes_.size - 10:
        raise ValueError("it has no footer")
    return length + 10


def blocks_of_file(bytes_: NDArray[np.uint8]) -> Blocks:
    """Return where the footer of an Arrow file says that its messages are."""
    footer = bytes_[bytes_.size - footer_bytes(bytes_) : -10].tobytes()
    try:
        table = struct.unpack_from("<I", footer)[0]
        found = [_vector(footer, table, field, 24).view("<i8").reshape(-1, 3) for field in (2, 3)]
    except struct.error as error:
        raise ValueError(f"its footer is damaged ({error})") from None
    for blocks in found:
        # Padding follows these four bytes.
        blocks[:, 1] = blocks.view("<i4").reshape(-1, 6)[:, 2]
    _check_nothing_follows(bytes_, np.concatenate(found))
    return Blocks(*found)


def _check_nothing_follows(bytes_: NDArray[np.uint8], blocks: NDArray[np.int64]) -> None:
    """Raise if a message follows the last one that a footer lists: its rows would be missing."""
    end = int(blocks.sum(axis=1).max()) if len(blocks) else 0
    if not 0 < end <= bytes_.size - 8:
        return
    start = bytes_[end : end + 8].tobytes()
    # A writer ends its messages as a stream, and a remote file is 0 where it was not fetched.
    if start[:4] == _MARK and int.from_bytes(start[4:], "little"):
        raise ValueError("its footer does not list all record batches")


def batches_of_file(bytes_: NDArray[np.uint8]) -> Iterator[Message]:
    """Yield the record batches that the footer of an Arrow file lists."""
    for first in blocks_of_file(bytes_).batches[:, 0].tolist():
        kind, message, _ = _message_at(bytes_, first)
        if kind != _BATCH or message is None:
            raise ValueError("its footer lists a message that is not a record batch")
        yield message


def batches_of_stream(path: Path, bytes_: NDArray[np.uint8]) -> Iterator[Message]:
    """Yield the record batches of an Arrow stream."""
    place = schema_of_stream(bytes_)[1]
    while True:
        # A stream without its end may have lost its last batches.
        if place == bytes_.size:
            raise ValueError("the stream has no end")
        kind, message, place = _message_at(bytes_, place)
        if kind == _END:
            if place != bytes_.size:
                raise ValueError(f"the stream ends at byte {place} of {bytes_.size}")
            break
        if message is None:
            what = "dictionaries" if kind == _DICTIONARY else f"messages of type {kind}"
            raise StoreError(
                f"{path}: is an Arrow stream with {what}, in which batches cannot be read alone; "
                f"read it with pyarrow.ipc.open_stream and write it again with {_REMEDY}"
            )
        yield message


def schema_of_stream(bytes_: NDArray[np.uint8]) -> tuple[int, int]:
    """Return where the message with the schema begins and ends."""
    kind, _, end = _message_at(bytes_, 0)
    if kind != _SCHEMA:
        raise ValueError("it does not begin with a schema")
    return 0, end


class NumbersAt(NamedTuple):
    """Where the numbers are in the head of a message that differ from batch to batch.

    Args:
        num_bytes: Where the bytes of the body are counted.
        spans: Where each of these begins, and its bytes: that count, the number of rows, the nodes
            and the buffers.
    """

    num_bytes: int
    spans: tuple[tuple[int, int], ...]


def numbers_in(bytes_: NDArray[np.uint8], message: Message) -> NumbersAt | None:
    """Return where the numbers of a record batch are; None if some are not there."""
    head = bytes_[message.first : message.body].tobytes()
    if head[:4] != _MARK:
        return None
    data = head[8:]
    table = struct.unpack_from("<I", data)[0]
    batch = _child(data, table, 2)
    num_bytes, num_rows = _place(data, table, 3), _place(data, batch, 0)
    nodes, buffers = (_child(data, batch, field) for field in (1, 2))
    # A number that is 0 may be left out.
    if not (num_bytes and num_rows and nodes and buffers):
        return None
    spans = (
        (8 + num_bytes, 8),
        (8 + num_rows, 8),
        (12 + nodes, message.nodes.nbytes),
        (12 + buffers, message.buffers.nbytes),
    )
    return NumbersAt(8 + num_bytes, spans)


def _message_at(bytes_: NDArray[np.uint8], first: int) -> tuple[int, Message | None, int]:
    """Return the type of a message, what it says if it is a record batch, and where it ends."""
    if not 0 <= first <= bytes_.size - 4:
        raise ValueError(f"a message begins at byte {first} of {bytes_.size}")
    start = bytes_[first : first + 8].tobytes()
    # Files of old have no mark.
    begin = first + (8 if start[:4] == _MARK else 4)
    if begin > bytes_.size:
        raise ValueError("the last message is cut")
    length = int.from_bytes(start[begin - first - 4 : begin - first], "little", signed=True)
    if not length:
        return _END, None, begin
    if not 0 < length <= bytes_.size - begin:
        raise ValueError(f"the metadata of a message claims {length} bytes")
    data = bytes_[begin : begin + length].tobytes()
    table = struct.unpack_from("<I", data)[0]
    kind = _scalar(data, table, 1, "<B")
    if not 0 < kind <= _LAST_KIND:
        raise ValueError(f"a message has the unknown type {kind}")
    num_bytes = _scalar(data, table, 3, "<q")
    end = begin + length + num_bytes
    if num_bytes < 0 or end > bytes_.size:
        raise ValueError(f"a message claims {num_bytes} bytes, which reach out of the file")
    if kind != _BATCH:
        return kind, None, end
    batch = _child(data, table, 2)
    num_rows = _scalar(data, batch, 0, "<q")
    nodes, buffers = (
        _vector(data, batch, field, 16).view("<i8").reshape(-1, 2) for field in (1, 2)
    )
    is_compressed = bool(_place(data, batch, 3))
    body = begin + length
    return kind, Message(first, body, end, num_rows, nodes, buffers, is_compressed), end


def _place(data: bytes, table: int, field: int) -> int:
    """Return where a field of a flatbuffer's table is, or 0 if it is absent."""
    if not 0 < table < len(data):
        raise ValueError("a table lies outside of its message")
    fields = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * field
    if not 0 <= fields <= len(data) - 4:
        raise ValueError("a table lies outside of its message")
    if entry >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, fields + entry)[0]
    return table + offset if offset else 0


def _scalar(data: bytes, table: int, field: int, format_: str) -> int:
    place = _place(data, table, field)
    found: int = struct.unpack_from(format_, data, place)[0] if place else 0
    return found


def _child(data: bytes, table: int, field: int) -> int:
    place = _place(data, table, field)
    found: int = place + struct.unpack_from("<I", data, place)[0] if place else 0
    return found


def _vector(data: bytes, table: int, field: int, item_bytes: int) -> NDArray[Any]:
    """Return the bytes of a list of structs."""
    place = _child(data, table, field)
    if not place:
        return np.empty(0, np.uint8)
    count = struct.unpack_from("<I", data, place)[0]
    if count * item_bytes > len(data) - place - 4:
        raise ValueError(f"a list of {count} entries lies outside of its message")
    return np.frombuffer(data, np.uint8, count * item_bytes, place + 4).copy()
