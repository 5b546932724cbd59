"""Batches from worker processes without a copy.

torch sends a tensor from a worker by copying it into fresh shared memory, which costs a page fault
for every page, and by passing a file descriptor through a socket for every tensor. Here a worker
gathers some batches at once right into shared memory, sends only where each of them is, and uses
the memory again when the training process has dropped them.

A region is a file in memory (`memfd`) that the receiver opens through `/proc`. Its last bytes are
marks, one for everything that was sent; the receiver sets a mark when it no longer holds that.
Where either is missing (any system but Linux), batches travel as torch sends them.
"""

from __future__ import annotations

import copy
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.feed.slabs import arrays_in, bytes_for, layout_of
from feedline.store import Column
from feedline.store.columns import Arrays
from feedline.torch.tensors import as_tensor

# Where a column of a batch lies: its first byte, its numpy type, its shape and its own type.
_Part = tuple[int, str, tuple[int, ...], str]
# A region, and how often it had been lent.
_Key = tuple[bytes, int]
_MARK_BYTES = 4096
_HELD, _DROPPED = 0, 1


def can_share() -> bool:
    """Whether this system has what regions need."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Regions:
    """A worker's regions: each is lent for some batches, and again when these are dropped."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def lend(self, num_bytes: int) -> _Region:
        """Return a region that nobody uses and that holds so many bytes."""
        region = next((r for r in self._regions if r.is_free and r.num_bytes >= num_bytes), None)
        if region is None:
            self._regions = [r for r in self._regions if not r.is_free]
            region = _Region(num_bytes)
            self._regions.append(region)
        return region


def share_batches(
    regions: Regions, columns: Mapping[str, Column], sizes: Sequence[int], prefixes: Sequence[str]
) -> tuple[Arrays, Iterator[list[SharedColumns]]]:
    """Return arrays for batches of these sizes, and the batches in them, ready to be sent.

    A batch has a dict for each prefix of column names, which is left out in it. The arrays have to
    be filled before the first batch is taken.
    """
    num_rows = sum(sizes)
    region = regions.lend(bytes_for(columns, num_rows))
    arrays = arrays_in(region.lend(), columns, num_rows)
    starts = {name: start for name, (start, _) in layout_of(columns, num_rows).items()}
    return arrays, _parts_of(region, arrays, starts, columns, sizes, prefixes)


def _parts_of(
    region: _Region,
    arrays: Arrays,
    starts: dict[str, int],
    columns: Mapping[str, Column],
    sizes: Sequence[int],
    prefixes: Sequence[str],
) -> Iterator[list[SharedColumns]]:
    dicts = [
        _dicts_of(
            region,
            {
                name.removeprefix(prefix): (
                    as_tensor(arrays[name], column.type_name).split_with_sizes(list(sizes)),
                    starts[name],
                    column,
                )
                for name, column in columns.items()
                if name.startswith(prefix)
            },
            sizes,
        )
        for prefix in prefixes
    ]
    del arrays
    return map(list, zip(*dicts, strict=True))


def _dicts_of(
    region: _Region,
    columns: dict[str, tuple[Sequence[torch.Tensor], int, Column]],
    sizes: Sequence[int],
) -> Iterator[SharedColumns]:
    """Yield the columns of each batch, with where they lie in the region."""
    layout = [
        (name, tensors, start, column.row_bytes, column.dtype.str, column.shape, column.type_name)
        for name, (tensors, start, column) in columns.items()
    ]
    first = 0
    for number, size in enumerate(sizes):
        yield SharedColumns(
            {name: tensors[number] for name, tensors, *_ in layout},
            region,
            {
                name: (start + first * row_bytes, dtype, (size, *shape), type_name)
                for name, _, start, row_bytes, dtype, shape, type_name in layout
            },
        )
        first += size


class _Region:
    """Shared memory for some batches at a time."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.descriptor = os.memfd_create("feedline-batches", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = num_bytes + _MARK_BYTES
        os.ftruncate(self.descriptor, self.size)
        self._map = mmap.mmap(self.descriptor, self.size)
        self._lease: weakref.ref[Any] | None = None
        self._num_sent = 0
        # Numbers of processes and descriptors are used again; this never is.
        self._name = os.urandom(16)
        self._num_lent = 0

    @property
    def is_free(self) -> bool:
        """Whether neither this process nor the receiver holds anything of what was last in it."""
        if self._lease is not None and self._lease() is not None:
            return False
        return _HELD not in self._map[self.num_bytes : self.num_bytes + self._num_sent]

    def lend(self) -> NDArray[np.uint8]:
        """Return the memory; it counts as held until the last view of it is gone."""
        self._num_sent = 0
        self._num_lent += 1
        # A view of a map points to the array that it was made from; see SlabPool.
        lease = np.frombuffer(self._map, np.uint8, self.num_bytes)
        self._lease = weakref.ref(lease)
        return lease

    def send(self) -> tuple[_Key, str, int, int] | None:
        """Return what the receiver needs to open this region, or None if all marks are taken."""
        if self._num_sent == _MARK_BYTES:
            return None
        mark = self.num_bytes + self._num_sent
        self._map[mark] = _HELD
        self._num_sent += 1
        path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return (self._name, self._num_lent), path, self.size, mark


class SharedColumns(dict[str, torch.Tensor]):
    """Columns of a batch that lie in a region; pickled, they become a plain dict elsewhere."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], region: _Region, parts: dict[str, _Part]
    ) -> None:
        super().__init__(tensors)
        self._shared = dict(tensors)
        self._region = region
        self._parts = parts

    def __copy__(self) -> SharedColumns:
        # torch copies a mapping before it puts converted entries in.
        other = SharedColumns(self, self._region, self._parts)
        other._shared = self._shared
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, torch.Tensor]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> Any:
        # Where somebody put other tensors in, all travel as torch sends them.
        is_whole = self.keys() == self._shared.keys()
        if is_whole and all(self[name] is self._shared[name] for name in self):
            ticket = self._region.send()
            if ticket is not None:
                return _receive, (*ticket, self._parts)
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


def _receive(
    key: _Key, path: str, size: int, mark: int, parts: dict[str, _Part]
) -> dict[str, torch.Tensor]:
    opened = _opened.get(key)
    if opened is None or opened.process != os.getpid():
        opened = _opened[key] = _open(path, size)
        _latest.append(opened)
    opened.marks.append(mark)
    return {
        name: as_tensor(np.ndarray(shape, dtype, opened, start), type_name)
        for name, (start, dtype, shape, type_name) in parts.items()
    }


def _open(path: str, size: int) -> _Opened:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        opened = _Opened(file, size)
    finally:
        os.close(file)
    opened.marks, opened.process = [], os.getpid()
    return opened
