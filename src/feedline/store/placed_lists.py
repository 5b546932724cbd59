"""Bytes and texts that lie in mapped files, and become Python values where they are delivered.

Copied to a batch's memory first, every byte would be copied twice, and both times through memory
that no core's cache holds. Instead, a thread that reads ahead only touches the pages that values
lie on, so that they are there when the values are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.store.lists import text_of
from feedline.store.pool import keep_freed
from feedline.store.slices import Numbers, Windows

_PAGE_BYTES = 4096


class PlacedLists:
    """Some byte strings or texts, of which only the places are known.

    Args:
        addresses: Where each of them begins in this process's memory.
        lengths: The number of bytes of each.
        kind: `"bytes"` or `"text"`.
        owner: What keeps the memory.

    Examples:
        >>> memory = np.frombuffer(b"hello, world", np.uint8)
        >>> first = memory.__array_interface__["data"][0]
        >>> places = np.array([first + 7, first]), np.array([5, 5])
        >>> PlacedLists(*places, "text", memory)[1:].tolist()
        ['hello']
    """

    def __init__(self, addresses: Numbers, lengths: Numbers, kind: str, owner: Any) -> None:
        self._addresses, self._lengths = addresses, lengths
        self._kind, self._owner = kind, owner

    def __len__(self) -> int:
        return len(self._addresses)

    def __getitem__(self, part: slice) -> PlacedLists:
        """Return those of a slice."""
        return PlacedLists(self._addresses[part], self._lengths[part], self._kind, self._owner)

    def tolist(self) -> list[Any]:
        """Return all of them as Python values, which share no memory with the file."""
        addresses, lengths = self._addresses, self._lengths
        if not len(self):
            return []
        keep_freed(int(lengths.sum()))
        low = int(addresses.min())
        size = int((addresses + lengths).max()) - low
        starts = addresses - low
        longest = int(lengths.max())
        if self._kind == "bytes" and longest and longest == lengths.min():
            rows = np.asarray(Windows(low, size, longest, is_read_only=True))
            return [rows.item(place) for place in starts.tolist()]
        if not size:
            return [b"" if self._kind == "bytes" else ""] * len(self)
        view = np.asarray(Windows(low, size, 1, is_read_only=True)).view(np.uint8).data
        edges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        if self._kind == "bytes":
            return [view[first:end].tobytes() for first, end in edges]
        return [text_of(view[first:end]) for first, end in edges]

    def touch(self) -> None:
        """Read a byte of every page that they lie on; other threads run meanwhile."""
        is_filled = self._lengths > 0
        addresses, lengths = self._addresses[is_filled], self._lengths[is_filled]
        if not len(addresses):
            return
        pages = addresses // _PAGE_BYTES
        counts = (addresses + lengths - 1) // _PAGE_BYTES - pages + 1
        ends = np.cumsum(counts)
        places = np.repeat(pages - (ends - counts), counts)
        places += np.arange(len(places))
        places *= _PAGE_BYTES
        # The first page of a value may begin before its memory does.
        np.maximum(places, np.repeat(addresses, counts), out=places)
        low = int(addresses.min())
        size = int((addresses + lengths).max()) - low
        memory = np.asarray(Windows(low, size, 1, is_read_only=True)).view(np.uint8)
        memory.take(places - low, mode="clip")
