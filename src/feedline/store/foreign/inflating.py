"""Compressed files of others: inflated whole, and never to more than their index says."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.extras import import_extra
from feedline.words import several

Bytes = NDArray[np.uint8]

_PIECE = 2**22
# A copy of 64 bytes is the most that three bytes of snappy can ask for.
_SNAPPY_RATIO = 22


def inflate(data: Bytes, codec: str, most: int, path: Path) -> Bytes:
    """Return what compressed bytes inflate to, or raise if that is more than `most` bytes.

    Args:
        data: The compressed bytes.
        codec: One of `CODECS`.
        most: The most bytes that they may inflate to.
        path: The file, for errors.
    """
    try:
        pieces = _INFLATERS[codec](data, most)
        found = _joined(pieces, most)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DamagedDataError(
            f"{path}: cannot be inflated as {codec} ({str(error) or 'it is truncated':.120}); copy "
            "or write it again"
        ) from None
    if len(found) > most:
        raise DamagedDataError(
            f"{path}: inflates to more than {several(most, 'byte')}, which is the most that its "
            "index allows; copy or write it again"
        )
    return np.frombuffer(found, np.uint8)


def _joined(pieces: Iterable[Any], most: int) -> bytearray:
    """Return all pieces, or some that are too much."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) > most:
            break
    return found


def _by_arrow(name: str) -> Callable[[Bytes, int], Iterator[Any]]:
    def pieces(data: Bytes, most: int) -> Iterator[Any]:
        arrow = _arrow(name)
        with arrow.CompressedInputStream(arrow.py_buffer(data), name) as stream:
            while piece := stream.read(min(_PIECE, most + 1)):
                yield piece

    return pieces


def _gzip(data: Bytes, most: int) -> Iterator[bytes]:
    left = data.tobytes()
    # A file may have several members, one after another.
    while left:
        inflater = zlib.decompressobj(wbits=31)
        while not inflater.eof:
            piece = inflater.decompress(left, _PIECE)
            if not piece and not inflater.unconsumed_tail and not inflater.eof:
                raise EOFError
            yield piece
            left = inflater.unconsumed_tail
        left = inflater.unused_data


def _bzip2(data: Bytes, most: int) -> Iterator[bytes]:
    left = data.tobytes()
    while left:
        inflater = bz2.BZ2Decompressor()
        while not inflater.eof:
            piece = inflater.decompress(left, _PIECE)
            left = b""
            if not piece and inflater.needs_input and not inflater.eof:
                raise EOFError
            yield piece
        left = inflater.unused_data


def _snappy(data: Bytes, most: int) -> Iterator[bytes]:
    arrow = _arrow("snappy")
    declared = 0
    for place, byte in enumerate(data[:5].tolist()):
        declared |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    if declared > most or declared > _SNAPPY_RATIO * data.size:
        raise ValueError(f"it declares {several(declared, 'byte')}, of {most:,} at most")
    codec = arrow.Codec("snappy")
    yield codec.decompress(arrow.py_buffer(data), decompressed_size=declared, asbytes=True)


def _arrow(name: str) -> Any:
    return import_extra("pyarrow", extra="arrow", what=f"files compressed with {name}")


_INFLATERS: dict[str, Callable[[Bytes, int], Iterator[Any]]] = {
    "br": _by_arrow("brotli"),
    "bz2": _bzip2,
    "gz": _gzip,
    "snappy": _snappy,
    "zstd": _by_arrow("zstd"),
}
#: The codecs, by the ending that files have.
CODECS = tuple(_INFLATERS)
