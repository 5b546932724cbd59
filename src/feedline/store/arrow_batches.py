"""All record batches of an Arrow file or stream: their sizes, and where their buffers are.

A writer gives the metadata of all batches of a file the same layout: only some numbers differ. So
the first batch is parsed, and the numbers of all others are read at once from where they are in it,
if all the rest of their metadata is equal. Otherwise batches are parsed one by one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.store.arrow_messages import (
    Message,
    batches_of_file,
    batches_of_stream,
    blocks_of_file,
    numbers_in,
    schema_of_stream,
)
from feedline.store.mapped import map_file
from feedline.store.slices import Numbers, copy_rows
from feedline.words import several

# As many heads of messages are looked at together.
_HEADS_AT_ONCE = 4096
_MARK = 0xFFFFFFFF


class Batches(NamedTuple):
    """The record batches of a file.

    Args:
        firsts: Where each message begins.
        bodies: Where its data begins.
        ends: Where that ends.
        sizes: The number of rows of each batch.
        nodes: The length and the number of nulls of each field of each batch; None if batches
            differ in the number of fields.
        buffers: Where each buffer of each batch begins in the file, and its bytes; None likewise.
        is_compressed: Whether values are compressed.
    """

    firsts: Numbers
    bodies: Numbers
    ends: Numbers
    sizes: Numbers
    nodes: Numbers | None
    buffers: Numbers | None
    is_compressed: bool

    @classmethod
    def of_file(cls, bytes_: NDArray[np.uint8]) -> Batches:
        """Return the record batches that the footer of an Arrow file lists."""
        firsts = blocks_of_file(bytes_).batches[:, 0].astype(np.int64)
        found = _alike(bytes_, firsts, next(batches_of_file(bytes_))) if len(firsts) > 1 else None
        return found or _one_by_one(batches_of_file(bytes_))

    @classmethod
    def of_stream(cls, path: Path, bytes_: NDArray[np.uint8]) -> Batches:
        """Return the record batches of an Arrow stream."""
        first = next(batches_of_stream(path, bytes_), None)
        found = None
        if first is not None and (firsts := _chained(bytes_, first)) is not None:
            found = _alike(bytes_, firsts, first)
        return found or _one_by_one(batches_of_stream(path, bytes_))


def batches_in_stream(path: Path, bytes_: NDArray[np.uint8]) -> Batches:
    """Return the record batches of an Arrow stream; they are looked for once for each file."""
    if os.fspath(path) != str(path):
        # A remote file in the cache: errors have to name the remote one.
        return Batches.of_stream(path, bytes_)
    status = path.stat()
    return _found(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


# One takes some bytes for each field of each batch.
@lru_cache(maxsize=256)
def _found(path: str, *_: int) -> Batches:
    return Batches.of_stream(Path(path), map_file(Path(path)))


def _one_by_one(messages: Iterator[Message]) -> Batches:
    listed = list(messages)
    nodes = _stacked([message.nodes for message in listed])
    buffers = _stacked([message.buffers for message in listed])
    edges = [(message.first, message.body, message.end, message.num_rows) for message in listed]
    firsts, bodies, ends, sizes = np.array(edges, np.int64).reshape(-1, 4).T
    _check_rows(sizes, nodes)
    if buffers is not None:
        buffers = _within(buffers, bodies, ends)
    is_compressed = any(message.is_compressed for message in listed)
    return Batches(firsts, bodies, ends, sizes, nodes, buffers, is_compressed)


def _check_rows(sizes: Numbers, nodes: Numbers | None) -> None:
    """Raise if a batch claims other rows than its first column has."""
    if nodes is None or not nodes.shape[1]:
        return
    found = nodes[:, 0, 0]
    if (wrong := np.flatnonzero(found != sizes)).size:
        number = int(wrong[0])
        raise ValueError(
            f"record batch {number} claims {several(int(sizes[number]), 'row')}, and its first "
            f"column {int(found[number])}"
        )


def _stacked(tables: Sequence[Numbers]) -> Numbers | None:
    if len({len(table) for table in tables}) > 1:
        return None
    return np.stack(tables) if tables else np.empty((0, 0, 2), np.int64)


def _within(buffers: Numbers, bodies: Numbers, ends: Numbers) -> Numbers | None:
    """Return buffers with their places in the file; None if one is not in its message."""
    starts, sizes = buffers[:, :, 0], buffers[:, :, 1]
    room = (ends - bodies)[:, None]
    if (starts < 0).any() or (sizes < 0).any() or (starts > room).any():
        return None
    if (sizes > room - starts).any():
        return None
    return np.stack([starts + bodies[:, None], sizes], axis=2)


def _chained(bytes_: NDArray[np.uint8], first: Message) -> Numbers | None:
    """Return where the messages of a stream begin if all are like the first; None if not."""
    at = numbers_in(bytes_, first)
    if at is None:
        return None
    size, data = bytes_.size, bytes_.data
    head_bytes = first.body - first.first
    firsts: list[int] = []
    place = schema_of_stream(bytes_)[1]
    while place <= size - 8:
        mark, length = struct.unpack_from("<Ii", data, place)
        if mark == _MARK and not length:
            return np.array(firsts, np.int64) if place == size - 8 else None
        if mark != _MARK or length != head_bytes - 8 or place > size - head_bytes:
            return None
        (body,) = struct.unpack_from("<q", data, place + at.num_bytes)
        if not 0 <= body <= size - place - head_bytes:
            return None
        firsts.append(place)
        place += head_bytes + body
    return None


def _alike(bytes_: NDArray[np.uint8], firsts: Numbers, first: Message) -> Batches | None:
    """Return batches whose messages differ from the first in some numbers only; None if more."""
    at = numbers_in(bytes_, first)
    head_bytes = first.body - first.first
    if at is None or not len(firsts):
        return None
    if firsts.min() < 0 or firsts.max() > bytes_.size - head_bytes:
        return None
    is_equal = np.ones(head_bytes, np.bool_)
    for start, num_bytes in at.spans:
        is_equal[start : start + num_bytes] = False
    expected = bytes_[first.first : first.body][is_equal]
    address = bytes_.__array_interface__["data"][0]
    parts: list[list[Numbers]] = []
    edges = [*range(0, len(firsts), _HEADS_AT_ONCE), len(firsts)]
    for low, high in pairwise(edges):
        heads = np.empty((high - low, head_bytes), np.uint8)
        copy_rows(address + firsts[low:high], head_bytes, heads)
        if not (heads[:, is_equal] == expected).all():
            return None
        parts.append(
            [
                np.ascontiguousarray(heads[:, start : start + num_bytes]).view("<i8")
                for start, num_bytes in at.spans
            ]
        )
    body_bytes, sizes, nodes, buffers = (np.concatenate(part) for part in zip(*parts, strict=True))
    bodies = firsts + head_bytes
    if body_bytes.min() < 0 or (body_bytes[:, 0] > bytes_.size - bodies).any():
        return None
    ends = bodies + body_bytes[:, 0]
    placed = _within(buffers.reshape(len(firsts), -1, 2), bodies, ends)
    nodes = nodes.reshape(len(firsts), -1, 2)
    _check_rows(sizes[:, 0], nodes)
    return Batches(firsts, bodies, ends, sizes[:, 0], nodes, placed, first.is_compressed)
