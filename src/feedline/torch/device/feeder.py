"""How the batches of a store get to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import InvalidValueError, check_integer
from feedline.feed import Pass, Reading
from feedline.feed.gathering import size_of
from feedline.feed.readahead import ReadAhead
from feedline.feed.reading import SlabSizes, read_into, slab_sizes
from feedline.feed.slab_jobs import SlabJob
from feedline.plan import Chunking
from feedline.store import Store
from feedline.torch.device.link import Link, Ring
from feedline.torch.device.slabs import CopiedSlabs, DeviceSlab

DEVICE_BUDGET = 2**31
# Larger slabs than in memory: each costs some hundred microseconds of the interpreter.
_MAX_SLAB_BYTES = 2**25

DeviceSlabs = ReadAhead[SlabJob, DeviceSlab]


@dataclass
class Feeder:
    """The way of a loader's batches to a device.

    Threads gather rows into pinned memory, and copy many batches at once on a stream of their own.

    Args:
        device: The device.
        reading: How many threads read, within how much pinned memory.
        device_budget: Bytes of the device's memory for what is copied ahead.
    """

    device: torch.device | str | int
    reading: Reading
    device_budget: int = DEVICE_BUDGET

    def __post_init__(self) -> None:
        check_integer("device_budget", self.device_budget, 1)
        self.link = Link(self.device)
        self._ring: Ring | None = None

    def slabs(self, store: Store, chunking: Chunking, running: Pass) -> DeviceSlabs:
        """Return the slabs of a pass, or raise if a budget is below what it needs."""
        largest = running.segment.plan.largest_batch(running.segment.batch_size)
        batch_bytes = size_of(store.columns, largest)
        if 2 * batch_bytes > self.device_budget:
            raise InvalidValueError(
                f"device_budget={self.device_budget} must be at least {2 * batch_bytes}, the bytes "
                f"of two batches of {largest}; use a smaller batch or a larger budget"
            )
        pinned = self.reading.memory_budget
        if pinned is None:
            pinned = max(batch_bytes, self._num_pieces * _MAX_SLAB_BYTES)
        budget = min(pinned, self.device_budget // 2)
        sizes = slab_sizes(store, running, budget, self._num_pieces, _MAX_SLAB_BYTES)
        ring = self._ring_of(sizes)
        # Of those that are on the device, the loop has one in hand, and the one before it.
        on_device = self.device_budget // max(1, sizes.num_bytes) - 2
        num_ahead = max(0, min(on_device, 2 * self.reading.count))
        sink = CopiedSlabs(self.link, ring, store, running.waits)
        return read_into(sink, store, chunking, running, self.reading, sizes, num_ahead)

    @property
    def _num_pieces(self) -> int:
        """The number of slabs in pinned memory: those that are read, and some on their way."""
        return self.reading.count + 4

    def _ring_of(self, sizes: SlabSizes) -> Ring:
        """Return the pinned memory, which is kept from one pass to the next."""
        count = max(1, min(sizes.num_slabs, self._num_pieces))
        if self._ring is None or self._ring.num_bytes != sizes.num_bytes:
            self._ring = Ring(self.link, sizes.num_bytes, count)
        return self._ring

    def close(self) -> None:
        """Give back the pinned memory; a later pass takes some again."""
        self._ring = None

    def __getstate__(self) -> dict[str, Any]:
        # Streams and pinned memory stay with their process.
        return {name: vars(self)[name] for name in ("device", "reading", "device_budget")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
