"""Slabs on a device: gathered into pinned memory by threads, and copied whole."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.feed.gathering import bytes_for, layout_of
from feedline.feed.reading import Slab
from feedline.feed.waits import Stretch, WaitCounter
from feedline.store import Column, Store
from feedline.torch.device.link import Link, Ring, in_reader
from feedline.torch.device.moving import move
from feedline.torch.lists import column_as_tensor
from feedline.words import one_line

_TYPES = {"bfloat16": torch.bfloat16}


@one_line
class DeviceSlab(NamedTuple):
    """Consecutive batches on a device.

    Args:
        first: The number of the first batch.
        sizes: The number of samples in each batch.
        memory: The memory of all columns of arrays, and of each column of lists.
        tensors: The samples, column by column; `TensorLists` of a column of lists, and `Lists` of
            one of bytes or text.
        event: When they have arrived; None if they have.
        copied: When a thread of ours copied them, or waited for other copies.
    """

    first: int
    sizes: list[int]
    memory: list[torch.Tensor]
    tensors: dict[str, Any]
    event: Any
    copied: tuple[Stretch, ...] = ()


class Arrival:
    """Lets the stream that the caller works on use a slab, once for each stream.

    Args:
        link: The device.
        slab: The slab.
        waits: Where the time of copying is counted.
    """

    def __init__(self, link: Link, slab: DeviceSlab, waits: WaitCounter) -> None:
        self._link = link
        self._slab = slab
        self._waits = waits
        self._streams: set[int] = set() if link.is_cuda else {0}

    def __call__(self) -> None:
        """Make the current stream wait until the slab has arrived."""
        number = self._link.stream_number()
        if number not in self._streams:
            start, stream = perf_counter(), self._link.current_stream()
            waited = self._link.hand_over(stream, self._slab.event, self._slab.memory)
            self._waits.add_copying(start, hidden=waited)
            self._streams.add(number)


class CopiedSlabs:
    """A sink for slabs: each goes from pinned memory to the device in one copy.

    Args:
        link: The device.
        ring: The pinned memory.
        store: Where the samples come from.
        waits: Where the time is counted in which the loop's own thread copies.
    """

    def __init__(self, link: Link, ring: Ring, store: Store, waits: WaitCounter) -> None:
        self._link = link
        self._ring = ring
        self._waits = waits
        self._columns = store.columns
        self._layout = TensorLayout(store)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return pinned memory that nobody uses."""
        return self._ring.take()

    def finish(self, slab: Slab, memory: NDArray[np.uint8]) -> DeviceSlab:
        """Begin the copy of a slab, and return it."""
        event, start = None, perf_counter()
        try:
            num_rows = len(slab.block.indices)
            num_bytes = self._layout.num_bytes(num_rows)
            with self._link.sending():
                held = [self._link.device_memory(num_bytes)]
                held[0].copy_(torch.from_numpy(memory[:num_bytes]), non_blocking=True)
                lists = self._moved_lists(slab, held)
                event = self._link.mark()
        finally:
            self._ring.give_back(memory, event)
        tensors = {**self._layout.tensors(held[0], num_rows), **lists}
        tensors = {name: tensors[name] for name in self._columns}
        if in_reader():
            copied = self._ring.waited.stretch, (start, perf_counter())
            return DeviceSlab(slab.first, slab.sizes, held, tensors, event, copied)
        since, until = self._ring.waited.stretch
        self._waits.add_copying(start - (until - since))
        return DeviceSlab(slab.first, slab.sizes, held, tensors, event)

    def _moved_lists(self, slab: Slab, held: list[torch.Tensor]) -> dict[str, Any]:
        """Begin the copies of the columns of lists; bytes and text stay on the host."""
        return {
            name: move(column_as_tensor(slab.arrays[name], column), self._link, held)
            for name, column in self._columns.items()
            if column.has_lists
        }

    def drop(self, memory: NDArray[np.uint8]) -> None:
        """Take back memory whose slab could not be read."""
        self._ring.give_back(memory)


class TensorLayout:
    """Where the columns of a store lie in the memory of a slab.

    Args:
        store: Where the samples come from.
    """

    def __init__(self, store: Store) -> None:
        self._columns = store.columns
        self._known: dict[int, list[tuple[str, int, int, torch.dtype, tuple[int, ...]]]] = {}
        self._num_bytes: dict[int, int] = {}

    def num_bytes(self, num_rows: int) -> int:
        """Return the number of bytes of so many rows."""
        known = self._num_bytes.get(num_rows)
        if known is None:
            known = self._num_bytes[num_rows] = bytes_for(self._columns, num_rows)
        return known

    def tensors(self, memory: torch.Tensor, num_rows: int) -> dict[str, torch.Tensor]:
        """Return a tensor for each column, one after another in `memory`."""
        known = self._known.get(num_rows)
        if known is None:
            known = self._known[num_rows] = list(self._parts(num_rows))
        return {
            name: memory[start:end].view(kind).view(shape)
            for name, start, end, kind, shape in known
        }

    def _parts(self, num_rows: int) -> Iterator[tuple[str, int, int, torch.dtype, tuple[int, ...]]]:
        for name, (start, end) in layout_of(self._columns, num_rows).items():
            column = self._columns[name]
            kind = _TYPES.get(column.type_name) or getattr(torch, _number_type(column))
            yield name, start, end, kind, (num_rows, *column.shape)


def _number_type(column: Column) -> str:
    return "int64" if column.dtype.kind in "mM" else column.type_name
