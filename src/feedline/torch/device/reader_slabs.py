"""Slabs that processes have read, on a device."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from time import perf_counter

import torch

from feedline.feed import Pass
from feedline.feed.readahead import ReadAhead
from feedline.feed.reader_process import ReaderPass, ReaderSetup, SlabCut
from feedline.feed.reading import SlabSizes
from feedline.feed.slab_jobs import SlabJob
from feedline.store import Store
from feedline.torch.device.link import Link, SharedMemory
from feedline.torch.device.readers import Reader, ReaderGoneError
from feedline.torch.device.slabs import DeviceSlab, TensorLayout

Threads = ReadAhead[SlabJob, DeviceSlab]

logger = logging.getLogger("feedline")

# What a process may have read besides what its threads are at.
_EXTRA_PIECES = 2
# For threads of this process, which read until the others have started.
OWN_PIECES = 4


def num_pieces(num_processes: int, num_threads: int) -> int:
    """Return the number of pieces of pinned memory that processes need, with so many threads."""
    return num_processes * (num_threads + _EXTRA_PIECES) + OWN_PIECES


@dataclass(eq=False)
class Readers:
    """The processes that read for one loader, and the memory that they share with it.

    Args:
        link: The device that copies go to.
        store: Where the samples are.
        pickled: What the processes open it with.
        num_processes: The number of processes.
        num_threads: The number of threads in each.
        sizes: How large slabs are.
    """

    link: Link
    store: Store
    pickled: InitVar[bytes]
    num_processes: int
    num_threads: int
    sizes: SlabSizes
    num_passes: int = 0
    readers: list[Reader] = field(default_factory=list)

    def __post_init__(self, pickled: bytes) -> None:
        each = self.num_threads + _EXTRA_PIECES
        count = num_pieces(self.num_processes, self.num_threads)
        self.memory = SharedMemory(self.link, self.sizes.num_bytes * count)
        self.pieces: tuple[torch.Tensor, ...] = self.memory.bytes.split(
            max(1, self.sizes.num_bytes)
        )
        self.layout = TensorLayout(self.store)
        # In a file, because a message of this size would wait until its process has started.
        with os.fdopen(os.memfd_create("feedline-store", os.MFD_CLOEXEC), "wb") as file:
            file.write(pickled)
            file.flush()
            self._start(file.fileno(), each)

    def _start(self, store: int, each: int) -> None:
        for number in range(self.num_processes):
            pieces = range(number * each, (number + 1) * each)
            setup = ReaderSetup(
                store, self.memory.file, self.sizes.num_bytes, pieces, self.num_threads
            )
            self.readers.append(Reader(setup))

    @property
    def are_ready(self) -> bool:
        """Whether all processes listen."""
        return all(reader.is_ready for reader in self.readers)

    def begin(self, running: Pass, first: int) -> None:
        """Let the processes read a pass from batch `first` on."""
        self.num_passes += 1
        cut = SlabCut(
            first=first,
            end=running.segment.num_batches,
            num_most=self.sizes.num_batches,
            num_processes=self.num_processes,
        )
        for place, reader in enumerate(self.readers):
            reader.begin(ReaderPass(running.segment, running.rank, cut, place))

    def end(self) -> None:
        """Ask the processes to end their pass."""
        for reader in self.readers:
            reader.end()

    def piece(self, number: int, num_bytes: int) -> torch.Tensor:
        """Return the first bytes of a piece of the shared memory."""
        piece = self.pieces[number]
        return piece if num_bytes == self.sizes.num_bytes else piece[:num_bytes]

    def close(self) -> None:
        """End the processes."""
        for reader in self.readers:
            reader.close()


class ReaderSlabs(Iterator[DeviceSlab]):
    """The slabs of a pass on a device, read by processes.

    Threads of this process read until the others have started, and again if one of them fails: so
    an error of the data is the same, and a process that is killed costs nothing but time.

    Args:
        readers: The processes.
        running: The pass.
        num_ahead: The number of slabs on the device that nobody has asked for.
        in_threads: Returns the slabs from a batch on, read by threads of this process.
        give_up: Is called when the processes are not to be used again.
    """

    def __init__(
        self,
        readers: Readers,
        running: Pass,
        num_ahead: int,
        in_threads: Callable[[int], Threads],
        give_up: Callable[[], None],
    ) -> None:
        self._readers = readers
        self._running = running
        self._num_ahead = max(1, num_ahead)
        self._in_threads = in_threads
        self._give_up = give_up
        self._ready: deque[DeviceSlab] = deque()
        # The next batch that processes are asked for, and how many slabs they have read.
        self._next = running.start
        self._num_read = 0
        # The number of the pass that processes read for: 0 before, and -1 when they are not used.
        self._number = 0
        self._threads: Threads | None = None
        if not self._begin(running.start):
            self._threads = in_threads(running.start)

    def __next__(self) -> DeviceSlab:
        threads = self._threads
        if threads is not None and threads.latest is not None and not self._number:
            block = threads.latest.block
            if self._begin(block.first + len(block)):
                threads.finish()
        # What was copied before a process failed comes before what threads read then.
        if threads is not None and not (self._ready and self._number < 0):
            found = next(threads, None)
            if found is not None:
                return found
            self._threads = None
            if self._number < 1:
                raise StopIteration
        # Several at once where none is urgent: together they cost the loop much less than apart.
        if len(self._ready) <= self._num_ahead // 2:
            while len(self._ready) < self._num_ahead and self._fetch(wait=not self._ready):
                pass
        if self._ready:
            return self._ready.popleft()
        if self._threads is None:
            raise StopIteration
        return next(self)

    def _begin(self, first: int) -> bool:
        """Let the processes read from batch `first` on, if they have started."""
        try:
            if not self._readers.are_ready:
                return False
            self._readers.begin(self._running, first)
        except ReaderGoneError as error:
            self._fail(error)
            return False
        self._number = self._readers.num_passes
        self._next, self._num_read = first, 0
        return True

    def _fail(self, error: ReaderGoneError) -> None:
        logger.warning("reading goes on in threads: a reader process failed: %s", error)
        self._number = -1
        self._give_up()

    def _fetch(self, *, wait: bool) -> bool:
        """Begin the copy of the next slab, if it was read; return whether that was so."""
        if self._threads is not None or self._next >= self._running.segment.num_batches:
            return False
        readers = self._readers
        # They read in turn.
        reader = readers.readers[self._num_read % readers.num_processes]
        found = None
        try:
            # Another pass may have begun; then the processes read for that one.
            if readers.num_passes == self._number:
                reader.give_back()
                if not wait and not reader.has_message():
                    return False
                found = reader.next_slab()
        except ReaderGoneError as error:
            self._fail(error)
        if found is None:
            self._number = -1
            self._threads = self._in_threads(self._next)
            return False
        assert found.first == self._next
        start = perf_counter()
        num_rows = sum(found.sizes)
        num_bytes = readers.layout.num_bytes(num_rows)
        with readers.link.sending():
            memory = readers.link.device_memory(num_bytes)
            memory.copy_(readers.piece(found.piece, num_bytes), non_blocking=True)
            event = readers.link.mark()
        reader.in_flight.append((found.piece, event))
        tensors = readers.layout.tensors(memory, num_rows)
        self._ready.append(DeviceSlab(found.first, found.sizes, [memory], tensors, event))
        self._next += len(found.sizes)
        self._num_read += 1
        self._running.waits.add_copying(start)
        return True

    def close(self) -> None:
        """End the pass."""
        self._ready.clear()
        if self._threads is not None:
            self._threads.close()
        elif self._number > 0 and self._readers.num_passes == self._number:
            try:
                self._readers.end()
            except ReaderGoneError:
                self._give_up()
