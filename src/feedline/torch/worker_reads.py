"""What a worker reads for its batches, right in memory that the training process shares.

Fixed columns and lists lie one after another in a region. How large lists are is known only when
they are gathered, so a region has room for half as much again as lists took lately. If they are
larger, all is copied to a region of its own, made for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.feed.gathering import Flat, Workplace, arrays_in, bytes_for, gather
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Block, Chunking
from feedline.store import Lists, Store
from feedline.store.columns import Arrays
from feedline.store.lists import FlatLists, Take
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
        self._workplace = _ListWorkplace()
        lists = [column for column in store.columns.values() if column.has_lists]
        self._num_lists = len(lists)
        self._list_bytes = float(sum(column.sample_bytes for column in lists))

    def read(self, indices: NDArray[np.int64]) -> tuple[Arrays, Region | None]:
        """Return the samples at `indices`, and the region that they are in."""
        num_rows = len(indices)
        fixed = bytes_for(self._store.columns, num_rows)
        if self._regions is None:
            return self._gathered(indices, np.empty(fixed, np.uint8)), None
        room = int(_ROOM * self._list_bytes * num_rows) if self._num_lists else 0
        area = Area(self._regions.lend(aligned(fixed) + aligned(room)))
        memory = area.take(fixed)
        self._workplace.take = area.take
        try:
            arrays = self._gathered(indices, memory)
        finally:
            del self._workplace.take
        return arrays, self._settle(arrays, area, num_rows)

    def _gathered(self, indices: NDArray[np.int64], memory: NDArray[np.uint8]) -> Arrays:
        columns = self._store.columns
        arrays = arrays_in(memory, columns, len(indices))
        if len(indices):
            bounds = np.array([0, len(indices)])
            (job,) = cut(Block(first=0, indices=indices, bounds=bounds), self._chunking, 1)
            gather(self._store, job, arrays, self._workplace)
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


class _ListWorkplace(Workplace):
    """A workplace whose lists are gathered into given memory."""

    take: Take | None = None

    def flat_rows(self, store: Store, job: SlabJob, names: Any) -> Flat | None:
        """Return the rows of a job's chunks; lists are gathered into what `take` returns."""
        if job.needed not in self._opened:
            # Chunks may be decoded: those of one read are held at a time, in each worker.
            self._opened = {}
        flat, take = super().flat_rows(store, job, names), self.take
        if flat is None or take is None:
            return flat
        return {
            name: rows.into(take) if isinstance(rows, FlatLists) else rows
            for name, rows in flat.items()
        }
