"""How the batches of a store get to a device."""

from __future__ import annotations

import logging
import sys
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
from feedline.torch.device.reader_slabs import OWN_PIECES, Readers, ReaderSlabs, num_pieces
from feedline.torch.device.readers import ReaderGoneError, pickled
from feedline.torch.device.slabs import CopiedSlabs, DeviceSlab
from feedline.torch.regions import can_share

logger = logging.getLogger("feedline")

DEVICE_BUDGET = 2**31
# Larger slabs than in memory: each costs the training loop some hundred microseconds.
_MAX_SLAB_BYTES = 3 * 2**24

DeviceSlabs = ReadAhead[SlabJob, DeviceSlab]


# Threads of one process wait for each other.
_THREADS_EACH = 3
# More slabs on the device than these would not come sooner.
_MOST_AHEAD = 8


@dataclass
class Feeder:
    """The way of a loader's batches to a device.

    Threads gather rows into pinned memory, and many batches are copied at once on a stream of their
    own. On a GPU the threads are in processes of their own, so that the training loop does not wait
    for them.

    Args:
        device: The device.
        reading: How many threads read, within how much pinned memory.
        device_budget: Bytes of the device's memory for what is copied ahead.
        num_processes: The number of processes that the threads are divided over; with 0 they are
            in this process. None chooses.
    """

    device: torch.device | str | int
    reading: Reading
    device_budget: int = DEVICE_BUDGET
    num_processes: int | None = None

    def __post_init__(self) -> None:
        check_integer("device_budget", self.device_budget, 1)
        if self.num_processes is not None:
            check_integer("reader_processes", self.num_processes, 0, 256)
        self.link = Link(self.device)
        self._ring: Ring | None = None
        self._readers: Readers | None = None

    def slabs(self, store: Store, chunking: Chunking, running: Pass) -> DeviceSlabs | ReaderSlabs:
        """Return the slabs of a pass, or raise if a budget is below what it needs."""
        largest = running.segment.plan.largest_batch(running.segment.batch_size)
        batch_bytes = size_of(store.columns, largest)
        if 2 * batch_bytes > self.device_budget:
            raise InvalidValueError(
                f"device_budget={self.device_budget} must be at least {2 * batch_bytes}, the bytes "
                f"of two batches of {largest}; use a smaller batch or a larger budget"
            )
        total = self.reading.count
        num_processes = self._processes_for(store)
        num_threads = -(-total // max(1, num_processes))
        count = num_pieces(num_processes, num_threads) if num_processes else total + OWN_PIECES
        pinned = self.reading.memory_budget
        if pinned is None:
            pinned = max(batch_bytes, (total + 8) * _MAX_SLAB_BYTES)
        budget = min(pinned, self.device_budget // 2)
        sizes = slab_sizes(store, running, budget, count, _MAX_SLAB_BYTES)
        # Of those that are on the device, the loop has one in hand, and the one before it.
        on_device = self.device_budget // max(1, sizes.num_bytes) - 2
        num_ahead = max(0, min(on_device, 2 * total))
        on_device = max(1, min(on_device, _MOST_AHEAD))
        if sizes.num_slabs < count:
            num_processes = 0
        readers = self._readers_of(store, num_processes, num_threads, sizes)
        ring = self._ring_of(sizes, max(1, min(sizes.num_slabs, total + OWN_PIECES)))
        sink = CopiedSlabs(self.link, ring, store, running.waits)

        def in_threads(start: int) -> DeviceSlabs:
            return read_into(sink, store, chunking, running, self.reading, sizes, num_ahead, start)

        if readers is None:
            return in_threads(running.start)
        return ReaderSlabs(readers, running, on_device, in_threads, self._give_up)

    def _processes_for(self, store: Store) -> int:
        """Return the number of processes that may read a store; 0 if threads of this one do."""
        wanted = self.num_processes
        if wanted is None:
            wanted = self.reading.count // _THREADS_EACH if self.link.is_cuda else 0
        if not wanted or not self.reading.count or not can_share() or not sys.executable:
            return 0
        # What a process fetches, it would fetch for itself; and lists have memory of their own.
        is_distant = getattr(store, "num_ahead", 0)
        has_lists = any(column.has_lists for column in store.columns.values())
        return 0 if is_distant or has_lists else min(wanted, self.reading.count)

    def _readers_of(
        self, store: Store, num_processes: int, num_threads: int, sizes: SlabSizes
    ) -> Readers | None:
        """Return the processes, which are kept from one pass to the next."""
        kept = self._readers
        if kept is not None and (kept.store is not store or kept.sizes != sizes):
            self.close()
        found = None
        if self._readers is None and num_processes and sizes.num_bytes:
            found = pickled(store)
        if found is not None:
            self._ring = None
            try:
                self._readers = Readers(self.link, store, found, num_processes, num_threads, sizes)
            except (OSError, ReaderGoneError) as error:
                logger.warning("reading goes on in threads: no process can be started: %s", error)
                self.num_processes = 0
        return self._readers

    def _ring_of(self, sizes: SlabSizes, count: int) -> Ring:
        """Return the pinned memory of this process's threads, which is kept between passes."""
        if self._ring is None or self._ring.num_bytes != sizes.num_bytes:
            if self._readers is None:
                self._ring = Ring(self.link, sizes.num_bytes, count)
            else:
                memory = self._readers.memory
                self._ring = Ring(self.link, sizes.num_bytes, OWN_PIECES, memory)
        return self._ring

    def _give_up(self) -> None:
        """Read in threads of this process from now on."""
        self.num_processes = 0
        self._end_processes()

    def close(self) -> None:
        """Give back the pinned memory, and end the processes; a later pass takes some again."""
        self._ring = None
        self._end_processes()

    def _end_processes(self) -> None:
        if self._readers is not None:
            self._readers.close()
        self._readers = None

    def __getstate__(self) -> dict[str, Any]:
        # Streams, pinned memory and processes stay with this process.
        names = ("device", "reading", "device_budget", "num_processes")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
