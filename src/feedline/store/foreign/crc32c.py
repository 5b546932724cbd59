"""The checksums of many byte strings at once: CRC-32C, as TFRecord files have it.

Strings are cut into pieces of one length, and all pieces take the same steps together, two bytes at
a time. The first piece of a string is short and gets zeros in front; its CRC begins with what these
zeros turn into the right beginning. A CRC is linear, so it passes over a whole piece by a table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.slices import Numbers, copy_slices

_POLYNOMIAL = np.uint32(0x82F63B78)
# The lengths of pieces, for short strings and for long ones.
_SHORT, _LONG = 64, 1024
_BYTES_AT_ONCE = 2**23
_PIECES_AT_ONCE = 64
_ONES = 0xFFFFFFFF
_MASK_DELTA = np.uint32(0xA282EAD8)
_HALF, _LOW_HALF = np.uint32(16), np.uint32(0xFFFF)
_BYTE = np.uint32(0xFF)

Checksums = NDArray[np.uint32]


def masked_crc32c(memory: NDArray[np.uint8], starts: Any, lengths: Any) -> Checksums:
    """Return the checksums of slices of the memory, masked as TFRecord files store them."""
    crc = crc32c(memory, starts, lengths)
    masked: Checksums = (crc >> np.uint32(15) | crc << np.uint32(17)) + _MASK_DELTA
    return masked


def crc32c(memory: NDArray[np.uint8], starts: Any, lengths: Any) -> Checksums:
    """Return the CRC-32C of slices of the memory.

    Examples:
        >>> memory = np.frombuffer(b"123456789", np.uint8)
        >>> hex(crc32c(memory, [0], [9])[0])
        '0xe3069283'
    """
    starts, lengths = (np.asarray(part, np.int64) for part in (starts, lengths))
    piece = _SHORT if lengths.sum() < _LONG * len(lengths) else _LONG
    counts = -(-lengths // piece)
    found = np.full(len(lengths), _ONES, np.uint32)
    pieces = _crc_of_pieces(memory, (starts, lengths, counts), piece)
    found[counts > 0] = _folded(pieces, counts[counts > 0], piece)
    return found ^ np.uint32(_ONES)


def _crc_of_pieces(
    memory: NDArray[np.uint8], strings: tuple[Numbers, Numbers, Numbers], piece: int
) -> Checksums:
    """Return a CRC for each piece. It begins at 0, but for the first piece of a string."""
    starts, lengths, counts = strings
    owners, inside = _places(counts)
    lacking = counts * piece - lengths
    fill = np.where(inside == 0, lacking[owners], 0)
    begins = starts[owners] + np.maximum(0, inside * piece - lacking[owners])
    crc = np.where(inside == 0, _before_zeros()[fill], 0).astype(np.uint32)
    zeros = np.zeros(piece, np.uint8)
    address, nothing = (a.__array_interface__["data"][0] for a in (memory, zeros))
    step = _BYTES_AT_ONCE // piece
    for first in range(0, len(owners), step):
        part = slice(first, first + step)
        filled = fill[part]
        # Before each piece, as many zeros as it lacks.
        places = np.stack([np.full(len(filled), nothing), address + begins[part]], axis=1)
        sizes = np.stack([filled, piece - filled], axis=1)
        out = np.empty(len(filled) * piece, np.uint8)
        copy_slices(places.reshape(-1), sizes.reshape(-1), out)
        words = np.ascontiguousarray(out.view("<u2").reshape(len(filled), -1).T)
        crc[part] = _steps(crc[part], words)
    return crc


def _places(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return, for each of all pieces, the string it belongs to and its number in it."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]


def _folded(crc: Checksums, counts: Numbers, piece: int) -> Checksums:
    """Return one CRC for each string, of those of its pieces: some at once, until one is left."""
    while len(crc) > len(counts):
        width = min(_PIECES_AT_ONCE, int(counts.max()))
        rows = -(-counts // width)
        owners, inside = _places(counts)
        firsts = (np.cumsum(rows) - rows) * width + rows * width - counts
        grid = np.zeros((int(rows.sum()), width), np.uint32)
        grid.reshape(-1)[firsts[owners] + inside] = crc
        crc = grid[:, 0]
        for column in range(1, width):
            crc = _pass_zeros(crc, piece) ^ grid[:, column]
        counts, piece = rows, piece * width
    return crc


def _steps(crc: Checksums, words: Any) -> Checksums:
    """Return checksums after two bytes of each string at a time."""
    table = _table()
    for word in words:
        crc = table.take((crc ^ word) & _LOW_HALF) ^ (crc >> _HALF)
    return crc


@cache
def _table() -> Checksums:
    """Return what two bytes, xored with the lower half of a CRC, make of it."""
    crc = np.arange(2**16, dtype=np.uint32)
    for _ in range(16):
        crc = crc >> np.uint32(1) ^ (crc & np.uint32(1)) * _POLYNOMIAL
    return crc


@cache
def _before_zeros() -> Checksums:
    """Return, for each number of zeros less than a piece, what they turn into all ones."""
    of_byte = [int(_table()[byte << 8]) for byte in range(256)]
    by_top = {crc >> 24: byte for byte, crc in enumerate(of_byte)}
    found = [_ONES]
    while len(found) < _LONG:
        byte = by_top[found[-1] >> 24]
        found.append(((found[-1] ^ of_byte[byte]) << 8 | byte) & _ONES)
    return np.array(found, np.uint32)


@cache
def _tables_of_zeros(count: int) -> Checksums:
    """Return what each byte of a CRC becomes after zeros."""
    after = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if count <= _LONG:
        after = _steps(after, np.zeros((count // 2, 1), np.uint32))
    else:
        for _ in range(_PIECES_AT_ONCE):
            after = _pass_zeros(after, count // _PIECES_AT_ONCE)
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        row, low = tables[bit // 8], 1 << bit % 8
        row[low : 2 * low] = row[:low] ^ after[bit]
    return tables


def _pass_zeros(crc: Checksums, count: int) -> Checksums:
    """Return checksums after zeros."""
    tables = _tables_of_zeros(count)
    passed: Checksums = tables[0].take(crc & _BYTE)
    for byte in (1, 2, 3):
        passed ^= tables[byte].take(crc >> np.uint32(8 * byte) & _BYTE)
    return passed
