"""What a worker reads for its batches, right in memory that the training process shares.

Fixed columns and lists lie one after another in a region. How large lists are is known only when
they are gathered, so a region has room for half as much again as lists took lately. If they are
larger, all is copied to a region of its own, made for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.feed.gathering import Workplace, arrays_in, bytes_for, gather_samples
from feedline.plan import Chunking
from feedline.store import Lists, Store
from feedline.store.columns import Arrays
from feedline.store.lists import Take, new_memory
from feedline.torch.regions import Area, Region, Regions, aligned

_ROOM = 1.5
# The share of the latest read in the mean size of lists.
_LATEST = 1 / 8


class WorkerReads:
    """Reads the samples of batches in a worker.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        regions: The memory they are read into; None for memory of this process alone.
    """

    def __init__(self, store: Store, chunking: Chunking, regions: Regions | None) -> None:
        self._store = store
        self._chunking = chunking
        self._regions = regions
        # Chunks may be decoded, so those of one read are held at a time in each worker.
        self._workplace = Workplace(num_sets=1)
        lists = [column for column in store.columns.values() if column.has_lists]
        self._list_bytes = float(sum(column.sample_bytes for column in lists))

    def read(self, indices: NDArray[np.int64]) -> tuple[Arrays, Region | None]:
        """Return the samples at `indices`, and the region that they are in."""
        if self._regions is None:
            return self._gathered(indices, new_memory), None
        num_rows = len(indices)
        fixed = bytes_for(self._store.columns, num_rows)
        room = int(_ROOM * self._list_bytes * num_rows)
        area = Area(self._regions.lend(aligned(fixed) + aligned(room)))
        arrays = self._gathered(indices, area.take)
        return arrays, self._settle(arrays, area, num_rows)

    def _gathered(self, indices: NDArray[np.int64], take: Take) -> Arrays:
        columns = self._store.columns
        arrays = arrays_in(take(bytes_for(columns, len(indices))), columns, len(indices))
        gather_samples(self._store, self._chunking, indices, arrays, self._workplace, take)
        return arrays

    def _settle(self, arrays: Arrays, area: Area, num_rows: int) -> Region:
        """Put lists that lie elsewhere into a region, and return the region that has them all."""
        lists = [array for array in arrays.values() if isinstance(array, Lists)]
        if lists:
            latest = sum(found.values.nbytes for found in lists) / max(1, num_rows)
            self._list_bytes += _LATEST * (latest - self._list_bytes)
        outside = [found for found in lists if not area.holds(found.values)]
        if sum(aligned(found.values.nbytes) for found in outside) > area.num_left:
            assert self._regions is not None
            num_bytes = sum(aligned(_values(array).nbytes) for array in arrays.values())
            area = Area(self._regions.lend(num_bytes, is_once=True))
        for name, array in arrays.items():
            values = _values(array)
            if area.holds(values):
                continue
            moved = area.take(values.nbytes).view(values.dtype).reshape(values.shape)
            moved[...] = values
            is_list = isinstance(array, Lists)
            arrays[name] = Lists(moved, array.offsets, array.kind) if is_list else moved
        return area.region


def _values(array: Any) -> NDArray[Any]:
    values: NDArray[Any] = array.values if isinstance(array, Lists) else array
    return values


class WorkerBatches(Iterator[Any]):
    """The batches of a worker: one at first, so that it comes soon, then more and more together.

    After one that cannot be read come those behind it: a loader counts what its workers send in
    turn, so that each of them must send something for every batch.
    """

    def __init__(
        self,
        batches: Iterator[NDArray[np.int64]],
        read: Callable[[list[NDArray[np.int64]]], Iterator[Any]],
        num_most: int,
    ) -> None:
        self._batches = batches
        self._read = read
        self._num_most = num_most
        self._count = 1
        self._made: Iterator[Any] = iter(())
        # Those that could not be read together; they are read one by one.
        self._single: deque[NDArray[np.int64]] = deque()

    def __next__(self) -> Any:
        for batch in self._made:
            return batch
        if not self._single:
            some = list(islice(self._batches, self._count))
            if not some:
                raise StopIteration
            self._count = min(2 * self._count, self._num_most)
            try:
                self._made = self._read(some)
                return next(self._made)
            except Exception:
                # A store of the user's own may raise anything.
                if len(some) == 1:
                    raise
                self._single.extend(some)
        return next(self._read([self._single.popleft()]))
