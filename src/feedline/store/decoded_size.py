"""How large compressed bytes are once decoded, known before any of them is decoded.

A few bytes can decode to gigabytes, and decoders believe what the bytes say of themselves. So the
most that they can decode to is worked out from their structure, or found by decoding up to a limit.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

Bytes = bytes | memoryview

#: What decoding may take beyond the size that is expected.
SLACK = 2**24

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK = 2**17
# The most that deflate can make of one byte.
_DEFLATE_RATIO = 1032
_WORD = struct.Struct("<I")


def check_decoded(data: Bytes, compressor: str, expected: int) -> None:
    """Raise `ValueError` if bytes may decode to much more than expected.

    Examples:
        >>> check_decoded(zlib.compress(bytes(2**26)), "zlib", 1000)
        Traceback (most recent call last):
            ...
        ValueError: it decodes to more than 1000 bytes
    """
    view = memoryview(data)
    most = expected + SLACK
    if compressor == "zstd":
        declared, bound = _zstd_sizes(view)
        is_sound = declared <= most and (bound <= most or _fits_zstd(view, most))
    elif compressor in ("blosc", "lz4"):
        is_sound = _word_at(view, 4 if compressor == "blosc" else 0) <= most
    else:
        is_sound = len(view) * _DEFLATE_RATIO <= most or _fits_deflate(view, compressor, most)
    if not is_sound:
        raise ValueError(f"it decodes to more than {expected} bytes")


def decode(data: Bytes, compressor: str, most: int) -> bytes:
    """Return what compressed bytes decode to, or raise `ValueError` if that is too much."""
    check_decoded(data, compressor, most)
    if compressor in ("gzip", "zlib"):
        return bytes(_inflater(compressor).decompress(data, most + SLACK))
    import numcodecs

    return bytes(numcodecs.get_codec({"id": compressor}).decode(bytes(memoryview(data))))


def _word_at(view: memoryview, place: int) -> int:
    if len(view) < place + 4:
        raise ValueError("it is cut short")
    return int(_WORD.unpack_from(view, place)[0])


def _zstd_sizes(view: memoryview) -> tuple[int, int]:
    """Return the size that frames declare, and the most that their blocks can decode to."""
    declared = bound = place = 0
    while place < len(view):
        magic = _word_at(view, place)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            place += 8 + _word_at(view, place + 4)
            continue
        if magic != _ZSTD_MAGIC or place + 5 >= len(view):
            raise ValueError("it is not zstd, or is cut short")
        flags = view[place + 4]
        is_single = flags >> 5 & 1
        size_bytes = (is_single, 2, 4, 8)[flags >> 6]
        place += 5 + (not is_single) + (0, 1, 2, 4)[flags & 3]
        declared += int.from_bytes(view[place : place + size_bytes], "little")
        declared += 256 if size_bytes == 2 else 0
        place += size_bytes
        is_last = False
        while not is_last:
            if place + 3 > len(view):
                raise ValueError("it is cut short")
            header = int.from_bytes(view[place : place + 3], "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            bound += _ZSTD_BLOCK if kind == 2 else min(size, _ZSTD_BLOCK)
            place += 3 + (1 if kind == 1 else size)
        place += 4 * (flags >> 2 & 1)
    return declared, bound


def _fits_zstd(view: memoryview, most: int) -> bool:
    """Return whether frames decode to at most so many bytes; encoders may write small blocks."""
    import numcodecs.zstd
    import numpy as np

    try:
        numcodecs.zstd.decompress(bytes(view), np.empty(most, np.uint8))
    except (RuntimeError, ValueError):
        return False
    return True


def _inflater(compressor: str) -> Any:
    return zlib.decompressobj(wbits=31 if compressor == "gzip" else 15)


def _fits_deflate(view: memoryview, compressor: str, most: int) -> bool:
    left = bytes(view)
    # A gzip file may have several members, one after another.
    while left:
        inflater = _inflater(compressor)
        try:
            while left and not inflater.eof:
                most -= len(inflater.decompress(left, 2**20))
                left = inflater.unconsumed_tail
                if most < 0:
                    return False
        except zlib.error as error:
            raise ValueError(str(error)) from None
        left = inflater.unused_data if compressor == "gzip" else b""
    return True
