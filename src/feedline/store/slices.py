"""Copying byte strings of any lengths, from anywhere in memory, one after another.

numpy has no call for it. Here strings are cut into pieces of one width, and many pieces are copied
by two calls, through views of the memory whose items overlap: each begins one byte after the one
before. The last piece of a string ends where the string ends, so it may write some bytes twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
# Of the pieces that strings are cut into: the largest that is not longer than the string.
_WIDTHS = np.array([1, 16, 128, 1024, 8192])
# What lies between the two calls: it stays in a core's cache, and malloc keeps it.
_BYTES_AT_ONCE = 96 * 1024


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
            _copy_pieces(
                np.asarray(Windows(low, size, width, is_read_only=True)),
                (starts.take(mine), lengths.take(mine), places.take(mine)),
                out,
            )


def copy_rows(addresses: Numbers, row_bytes: int, out: NDArray[Any]) -> None:
    """Copy the bytes at each address to a row of `out`, which is C-contiguous.

    Args:
        addresses: Where each row begins in this process's memory. The caller keeps it alive.
        row_bytes: The number of bytes of a row.
        out: What they are written to; it has as many bytes as all rows together.
    """
    if not out.size:
        return
    low = int(addresses.min())
    size = int(addresses.max()) - low + row_bytes
    items = np.asarray(Windows(low, size, row_bytes, is_read_only=True))
    into, places = out.reshape(-1).view(items.dtype), addresses - low
    step = max(1, _BYTES_AT_ONCE // row_bytes)
    for first in range(0, len(places), step):
        into[first : first + step] = items[places[first : first + step]]


def _copy_pieces(
    source: NDArray[Any], strings: tuple[Numbers, Numbers, Numbers], out: NDArray[np.uint8]
) -> None:
    """Copy strings in pieces of one width, at most their length."""
    starts, lengths, places = strings
    width = source.dtype.itemsize
    address = out.__array_interface__["data"][0]
    target = np.asarray(Windows(address, out.size, width, is_read_only=False))
    counts = -(-lengths // width)
    ends = np.cumsum(counts)
    owners = np.repeat(np.arange(len(counts)), counts)
    inside = np.arange(int(ends[-1]))
    inside -= (ends - counts).take(owners)
    inside *= width
    np.minimum(inside, (lengths - width).take(owners), out=inside)
    to = inside + places.take(owners)
    inside += starts.take(owners)
    step = _BYTES_AT_ONCE // width
    for first in range(0, len(to), step):
        target[to[first : first + step]] = source[inside[first : first + step]]


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
