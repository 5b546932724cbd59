"""Batches from worker processes without a copy.

torch sends a tensor from a worker by copying it into fresh shared memory, which costs a page fault
for every page, and by passing a file descriptor through a socket for every tensor. Here a worker
gathers some batches at once right into shared memory, sends only where each of them is, and uses
the memory again when the training process has dropped them.

A region is a file in memory (`memfd`) that the receiver opens through `/proc`. Its last bytes are
marks, one for everything that was sent; the receiver sets a mark when it no longer holds that.
Where either is missing (any system but Linux), torch's own way is used.
"""

from __future__ import annotations

import copy
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.store import Lists
from feedline.torch.lists import TensorLists, as_tensor

# Where the values of a column of a batch lie: their first byte, their shape and their type.
_Place = tuple[int, tuple[int, ...], str]
# The place of a column; the offsets and the kind of its lists follow, if it has lists.
_Part = tuple[_Place] | tuple[_Place, NDArray[np.int64], str]
# A region, and how often it had been lent.
_Key = tuple[bytes, int]
# The numpy types that carry those which numpy does not have.
_CARRIERS = {"bfloat16": "uint16"}
_MARK_BYTES = 4096
_ALIGNMENT = 64
_HELD, _DROPPED = 0, 1


def can_share() -> bool:
    """Whether this system supports regions."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Regions:
    """A worker's regions: each is lent for some batches, and again when these are dropped."""

    def __init__(self) -> None:
        self._regions: list[Region] = []

    def lend(self, num_bytes: int, *, is_once: bool = False) -> Region:
        """Return an unused region that holds this many bytes.

        With `is_once` it is a new one, which goes when it is dropped: for batches that are far
        larger than others.
        """
        self._regions = [r for r in self._regions if not (r.is_once and r.is_free)]
        region: Region | None = None
        if not is_once:
            region = next(
                (r for r in self._regions if r.num_bytes >= num_bytes and r.is_free), None
            )
            if region is None:
                self._regions = [r for r in self._regions if not r.is_free]
        if region is None:
            region = Region(num_bytes, is_once=is_once)
            self._regions.append(region)
        return region


class Area:
    """A region that is lent, and given away piece by piece from its front."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._memory = region.lend()
        self._num_taken = 0

    @property
    def num_left(self) -> int:
        """The bytes that were not given away yet."""
        return self.region.num_bytes - self._num_taken

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return the next bytes; or memory of this process alone, if there are not enough left."""
        start = self._num_taken
        if num_bytes > self.num_left:
            return np.empty(num_bytes, np.uint8)
        # The last piece may be shorter than its share.
        self._num_taken = min(start + aligned(num_bytes), self.region.num_bytes)
        return self._memory[start : start + num_bytes]

    def holds(self, array: NDArray[Any]) -> bool:
        """Whether an array lies in this region."""
        return not array.size or np.may_share_memory(array, self._memory)


def aligned(num_bytes: int) -> int:
    """Return the bytes that an area gives away for this many."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class Region:
    """Shared memory for some batches at a time."""

    def __init__(self, num_bytes: int, *, is_once: bool = False) -> None:
        self.num_bytes = num_bytes
        self.is_once = is_once
        self.descriptor = os.memfd_create("feedline-batches", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = num_bytes + _MARK_BYTES
        os.ftruncate(self.descriptor, self.size)
        self._map = mmap.mmap(self.descriptor, self.size)
        self._address = np.frombuffer(self._map, np.uint8).ctypes.data
        self._lease: weakref.ref[Any] | None = None
        self._num_sent = 0
        # Numbers of processes and descriptors are used again; this never is.
        self._name = os.urandom(16)
        self._num_lent = 0

    @property
    def is_free(self) -> bool:
        """Whether neither this process nor the receiver still uses its latest contents."""
        if self._lease is not None and self._lease() is not None:
            return False
        return _HELD not in self._map[self.num_bytes : self.num_bytes + self._num_sent]

    def lend(self) -> NDArray[np.uint8]:
        """Return the memory; it is in use until its last view is deleted."""
        self._num_sent = 0
        self._num_lent += 1
        # A view of a map points to the array that it was made from; see SlabPool.
        lease = np.frombuffer(self._map, np.uint8, self.num_bytes)
        self._lease = weakref.ref(lease)
        return lease

    def send(self) -> tuple[_Key, str, int, int] | None:
        """Return what the receiver needs to open this region, or None if all marks are in use."""
        if self._num_sent == _MARK_BYTES:
            return None
        mark = self.num_bytes + self._num_sent
        self._map[mark] = _HELD
        self._num_sent += 1
        path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return (self._name, self._num_lent), path, self.size, mark

    def part(self, column: Any) -> _Part:
        """Return where a column lies in this region."""
        if isinstance(column, TensorLists):
            return self._place(column.values), column.offsets, "list"
        if isinstance(column, Lists):
            values = column.values
            address = values.__array_interface__["data"][0]
            start = address - self._address if values.size else 0
            return (start, values.shape, values.dtype.name), column.offsets, column.kind
        return (self._place(column),)

    def _place(self, tensor: torch.Tensor) -> _Place:
        start = tensor.data_ptr() - self._address if tensor.numel() else 0
        return start, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


class SharedColumns(dict[str, Any]):
    """Columns of a batch in a region; pickled, they become a plain dict in the receiver.

    A column is a tensor, or the lists of a batch whose values lie in the region.
    """

    def __init__(self, columns: Mapping[str, Any], region: Region) -> None:
        super().__init__(columns)
        self._shared = dict(columns)
        self._region = region

    def __copy__(self) -> SharedColumns:
        # torch copies a mapping before it puts converted entries in.
        other = SharedColumns(self, self._region)
        other._shared = self._shared
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> Any:
        # If other tensors were added, all are sent in torch's way.
        is_whole = self.keys() == self._shared.keys()
        if is_whole and all(self[name] is self._shared[name] for name in self):
            ticket = self._region.send()
            if ticket is not None:
                parts = {name: self._region.part(column) for name, column in self.items()}
                return _receive, (*ticket, parts)
        return dict, (dict(self),)


class _Opened(mmap.mmap):
    """A region opened by the receiver, which sets its marks when all of it is dropped."""

    marks: list[int]
    process: int

    # As default arguments, because the module's names are gone when the interpreter ends.
    def __del__(self, getpid: Callable[[], int] = os.getpid, dropped: int = _DROPPED) -> None:
        # A fork has copied this object; what counts is when the receiver itself drops it.
        if self.process == getpid():
            for mark in self.marks:
                self[mark] = dropped


# Regions that are in use here: the batches of one lending share a mapping. The latest few stay open
# although their batches were dropped, because more batches of them are on their way.
_opened: weakref.WeakValueDictionary[_Key, _Opened] = weakref.WeakValueDictionary()
_latest: deque[_Opened] = deque(maxlen=4)


def _receive(key: _Key, path: str, size: int, mark: int, parts: dict[str, _Part]) -> dict[str, Any]:
    opened = _opened.get(key)
    if opened is None or opened.process != os.getpid():
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            opened = _opened[key] = _Opened(file, size)
        finally:
            os.close(file)
        opened.marks, opened.process = [], os.getpid()
        _latest.append(opened)
    opened.marks.append(mark)
    return {name: _column(opened, *part) for name, part in parts.items()}


def _column(
    opened: _Opened, place: _Place, offsets: NDArray[np.int64] | None = None, kind: str = ""
) -> Any:
    start, shape, type_name = place
    values: NDArray[Any] = np.ndarray(shape, _CARRIERS.get(type_name, type_name), opened, start)
    if offsets is None:
        return as_tensor(values, type_name)
    if kind == "list":
        return TensorLists(as_tensor(values, type_name), offsets)
    return Lists(values, offsets, kind)
