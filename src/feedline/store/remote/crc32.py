"""CRC-32s of parts, combined to that of the whole, so that parts can be summed as they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

# The polynomial, and 1 and x in it; bits are in the order that CRC-32 has them.
_POLYNOMIAL, _ONE, _X = 0xEDB88320, 1 << 31, 1 << 30


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32 of parts that follow each other, from the CRC-32 and the bytes of each.

    Examples:
        >>> import zlib
        >>> combine([(zlib.crc32(b"feed"), 4), (zlib.crc32(b"line"), 4)]) == zlib.crc32(b"feedline")
        True
    """
    total = 0
    for crc, num_bytes in parts:
        total = _product(_shift(num_bytes), total) ^ crc
    return total


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials, modulo that of CRC-32."""
    found = 0
    while a:
        if a & _ONE:
            found ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return found


@cache
def _power(number: int) -> int:
    """Return x to the power of 2**number."""
    return _X if not number else _product(_power(number - 1), _power(number - 1))


def _shift(num_bytes: int) -> int:
    """Return x to the power of the bits in so many bytes."""
    found, number = _ONE, 3
    while num_bytes:
        if num_bytes & 1:
            found = _product(_power(number), found)
        num_bytes >>= 1
        number += 1
    return found
