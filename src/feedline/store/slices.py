"""Copying byte strings of any lengths, from anywhere in memory, one after another.

numpy has no call for it. Here strings are cut into pieces of one width, and many pieces are copied
by two calls, through views of the memory whose items overlap: each begins one byte after the one
before. The last piece of a string ends where the string ends, so it may write some bytes twice.

numpy lets other threads run only while it copies more than 500 items, and what lies between the two
calls should stay in a core's cache, where malloc keeps it too. So pieces are narrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
# Of the pieces that strings are cut into: the largest that is not longer than the string.
_WIDTHS = np.array([1, 16, 64, 256])
_MOST_WIDE = int(_WIDTHS[-1])
# Rows whose bytes have no divisor between these two are cut as strings are.
_LEAST_WIDE = 64
_ITEMS_AT_ONCE = 504
_BYTES_AT_ONCE = _ITEMS_AT_ONCE * _MOST_WIDE


def copy_slices(addresses: Numbers, lengths: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy the bytes at each address to `out`, one string after another.

    Args:
        addresses: Where each string begins in this process's memory. The caller keeps it alive.
        lengths: The number of bytes of each string.
        out: What they are written to; it has as many bytes as all strings together.
    """
    if not out.size:
        return
    ends = np.cumsum(lengths)
    low = int(addresses.min())
    if np.array_equal(addresses[1:], (addresses + lengths)[:-1]):
        out[:] = np.asarray(Windows(low, out.size, 1, is_read_only=True)).view(np.uint8)
        return
    if np.all(lengths == lengths[0]):
        copy_rows(addresses, int(lengths[0]), out)
        return
    starts, places = addresses - low, ends - lengths
    size = int((starts + lengths).max())
    kinds = np.searchsorted(_WIDTHS, lengths, side="right")
    for kind, width in enumerate(_WIDTHS.tolist(), 1):
        mine = np.flatnonzero(kinds == kind)
        if len(mine):
            strings = (starts.take(mine), lengths.take(mine), places.take(mine))
            _copy_pieces(low, size, width, strings, out)


def copy_rows(addresses: Numbers, row_bytes: int, out: NDArray[Any]) -> None:
    """Copy the bytes at each address to a row of `out`, which is C-contiguous.

    Args:
        addresses: Where each row begins in this process's memory. The caller keeps it alive.
        row_bytes: The number of bytes of a row.
        out: What they are written to; it has as many bytes as all rows together.
    """
    if not out.size:
        return
    width = _width_of(row_bytes)
    low = int(addresses.min())
    size = int(addresses.max()) - low + row_bytes
    if not width:
        lengths = np.full(len(addresses), row_bytes)
        strings = (addresses - low, lengths, np.arange(len(addresses)) * row_bytes)
        _copy_pieces(low, size, _MOST_WIDE, strings, out.reshape(-1).view(np.uint8))
        return
    items = np.asarray(Windows(low, size, width, is_read_only=True))
    places = addresses - low
    if width < row_bytes:
        places = (places[:, None] + np.arange(0, row_bytes, width)).reshape(-1)
    into = out.reshape(-1).view(items.dtype)
    step = _BYTES_AT_ONCE // width
    for first in range(0, len(places), step):
        into[first : first + step] = items[places[first : first + step]]


def _width_of(row_bytes: int) -> int:
    """Return the width of the pieces that rows are cut into; 0 if there is no good one.

    Examples:
        >>> [_width_of(size) for size in (7, 256, 4096, 2000, 257)]
        [7, 256, 256, 250, 0]
    """
    if row_bytes <= _MOST_WIDE:
        return row_bytes
    widths = range(_MOST_WIDE, _LEAST_WIDE - 1, -1)
    return next((width for width in widths if row_bytes % width == 0), 0)


def _copy_pieces(
    low: int,
    size: int,
    width: int,
    strings: tuple[Numbers, Numbers, Numbers],
    out: NDArray[np.uint8],
) -> None:
    """Copy strings in pieces of one width, at most their length.

    Args:
        low: The address of the memory that the strings lie in.
        size: Its bytes.
        width: The bytes of a piece.
        strings: Where each begins in that memory, its bytes, and where it goes in `out`.
        out: What they are written to.
    """
    starts, lengths, places = strings
    source = np.asarray(Windows(low, size, width, is_read_only=True))
    address = out.__array_interface__["data"][0]
    target = np.asarray(Windows(address, out.size, width, is_read_only=False))
    counts = -(-lengths // width)
    ends = np.cumsum(counts)
    # Summed up, these are where the pieces begin.
    pieces = np.full(int(ends[-1]), width)
    pieces[0] = starts[0]
    latest = starts[:-1] + (counts[:-1] - 1) * width
    pieces[ends[:-1]] = starts[1:] - latest
    np.cumsum(pieces, out=pieces)
    pieces[ends - 1] = starts + lengths - width
    to = np.repeat(places - starts, counts)
    to += pieces
    step = _BYTES_AT_ONCE // width
    for first in range(0, len(to), step):
        target[to[first : first + step]] = source[pieces[first : first + step]]


class Windows:
    """Shows memory to numpy as items of one width, of which one begins at every byte."""

    def __init__(self, address: int, num_bytes: int, width: int, *, is_read_only: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, is_read_only),
            "shape": (num_bytes - width + 1,),
            "strides": (1,),
            "typestr": f"|V{width}",
        }
