"""How the batches of a store get to a device: the way is chosen here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import InvalidValueError, StoreError, check_integer
from feedline.feed import Pass, Reading
from feedline.feed.gathering import bytes_for
from feedline.feed.readahead import InThread
from feedline.feed.reading import SlabSizes, read_into, slab_sizes
from feedline.plan import Chunking
from feedline.store import Store
from feedline.torch.device.link import Link, Ring
from feedline.torch.device.slabs import CopiedSlabs, DeviceSlab
from feedline.torch.device.windows import WindowSlabs

DEVICE_BUDGET = 2**31
# Larger slabs than in memory: each costs some hundred microseconds of the interpreter.
_MAX_SLAB_BYTES = 2**25
# Slabs of a windowed pass: some are gathered, some wait, and one or two are in the loop's hands.
_SLABS_IN_USE = 10


@dataclass
class Feeder:
    """The way of a loader's batches to a device.

    Where the order is windowed and the chunks are plain arrays, whole chunks go to the device and
    rows are gathered there. Everything else is gathered here, and copied in slabs. The batches are
    the same either way.

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
        """Return the slabs of a pass."""
        largest = running.segment.plan.largest_batch(running.segment.batch_size)
        batch_bytes = bytes_for(store.columns, largest)
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
        return DeviceSlabs(self, store, chunking, running, sizes)

    @property
    def _num_pieces(self) -> int:
        """The number of slabs in pinned memory: those that are read, and some on their way."""
        return self.reading.count + 4

    def ring(self, sizes: SlabSizes) -> Ring:
        """Return the pinned memory, which is kept from one pass to the next."""
        count = max(1, min(sizes.num_slabs, self._num_pieces))
        if self._ring is None or self._ring.num_bytes != sizes.num_bytes:
            self._ring = Ring(self.link, sizes.num_bytes, count)
        return self._ring

    def close(self) -> None:
        """Give back the pinned memory; a later pass takes some again."""
        self._ring = None

    def num_slots(self, store: Store, chunking: Chunking, running: Pass, slab_bytes: int) -> int:
        """Return how many chunks the device can hold at a time; 0 if the order does not suit."""
        plan = running.segment.plan
        chunks = plan.chunks
        if chunks is None or not self.reading.count:
            return 0
        if (chunks.num_chunks, chunks.num_samples) != (chunking.num_chunks, chunking.num_samples):
            return 0
        slot_bytes = bytes_for(store.columns, int(store.chunk_sizes.max()))
        # The window in use, the next one, and what ranks that share a round have of another.
        wanted = min(2 * plan.preload + 1, chunks.num_chunks)
        needed = wanted * slot_bytes + _SLABS_IN_USE * slab_bytes
        return wanted if needed <= self.device_budget else 0

    def __getstate__(self) -> dict[str, Any]:
        # Streams and pinned memory stay with their process.
        return {name: vars(self)[name] for name in ("device", "reading", "device_budget")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class DeviceSlabs(Iterator[DeviceSlab]):
    """The slabs of a pass on a device; dropping it, or `close`, ends its threads.

    Args:
        feeder: The way to the device.
        store: Where the samples are.
        chunking: How they are cut into chunks.
        running: The pass.
        sizes: How large slabs are.
    """

    def __init__(
        self, feeder: Feeder, store: Store, chunking: Chunking, running: Pass, sizes: SlabSizes
    ) -> None:
        self._feeder = feeder
        self._given = store, chunking, running
        self._sizes = sizes
        self._windows: WindowSlabs | None = None
        self._slabs: Any = None
        num_slots = feeder.num_slots(*self._given, sizes.num_bytes)
        if num_slots and _is_whole(store):
            self._windows = WindowSlabs(
                *(feeder.link, feeder.ring(sizes), num_slots, *self._given),
                *(feeder.reading.count, sizes.num_batches),
            )
            self._slabs = InThread(self._windows)

    @property
    def is_windowed(self) -> bool:
        """Whether rows are gathered on the device."""
        return self._windows is not None

    def __next__(self) -> DeviceSlab:
        if self._slabs is None:
            self._slabs = self._copied()
        try:
            slab: DeviceSlab = next(self._slabs)
            return slab
        except StoreError:
            if self._windows is None:
                raise
        # The other way reads up to the batch that cannot be read, and says what is wrong.
        start = self._windows.next_batch
        self._windows = None
        self._slabs = self._copied(start)
        return next(self)

    def _copied(self, start: int | None = None) -> Any:
        feeder, sizes = self._feeder, self._sizes
        ring = feeder.ring(sizes)
        sink = CopiedSlabs(feeder.link, ring, self._given[0])
        on_device = feeder.device_budget // max(1, sizes.num_bytes) - 2
        num_ahead = max(0, min(on_device, 2 * feeder.reading.count))
        return read_into(sink, *self._given, feeder.reading, sizes, num_ahead, start)

    def close(self) -> None:
        """End the threads."""
        if self._windows is None and self._slabs is not None:
            self._slabs.close()
        self._slabs = iter(())
        self._windows = None


def _is_whole(store: Store) -> bool:
    """Whether the chunks of a store are plain arrays, judged by the first that has samples."""
    sources_of = getattr(store, "row_sources", None)
    if sources_of is None:
        return False
    filled = store.chunk_sizes.nonzero()[0]
    try:
        sources = sources_of(int(filled[0])) if len(filled) else None
    except (StoreError, OSError):
        # Reading in the usual way tells what is wrong, at the right batch.
        return False
    return sources is not None and all(
        sources[name].whole is not None
        for name, column in store.columns.items()
        if column.row_bytes
    )
