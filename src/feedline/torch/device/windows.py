"""Windows that are shuffled on the device: chunks go there whole, and rows are gathered there.

The CPU touches no row: threads copy chunks from front to end into pinned memory. Which rows a batch
has is the plan's to say, as everywhere; so batches are the same, bit for bit, after any resize.

A chunk lies in a slot of the device's memory. It is replaced when neither the block that is being
gathered nor those that are known to follow need it. Copies and gathers are begun by one thread, on
one stream, so that a chunk is replaced after it was used and used after it has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import StoreError
from feedline.feed.gathering import bytes_for, layout_of
from feedline.feed.passes import Pass
from feedline.feed.readahead import MadeAhead
from feedline.feed.reading import announce
from feedline.feed.slab_jobs import BLOCK_ROWS, by_first_use, growing_blocks
from feedline.plan import Block, Chunking
from feedline.store import Store
from feedline.store.mapped import read_mapped
from feedline.torch.device.link import Link, Ring
from feedline.torch.device.slabs import DeviceSlab, TensorLayout

Numbers = NDArray[np.int64]
# Enough to know the next window while this one is used.
_BLOCKS_AHEAD = 64
_SENT_AT_ONCE = 4
_SLABS_AT_ONCE = 4
# Rows are copied on the device in the largest pieces that they are made of.
_PIECES = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class NotWholeError(StoreError):
    """A chunk does not lie in memory from front to end."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A block of batches, cut into slabs: which rows of which chunks."""

    slabs: list[Block]
    chunks: Numbers
    rows: Numbers
    #: The chunks by first use.
    needed: list[int]


@dataclass(frozen=True)
class _Piece:
    """Bytes of one column of a chunk, and where they go on the device."""

    chunk: int
    column: str
    start: int
    end: int
    target: int
    #: The number of this load if it is the last piece of its chunk.
    ends: int | None


class Slots:
    """The chunks that lie on the device, and the memory for them.

    Args:
        link: The device.
        store: Where the chunks come from.
        count: How many slots there are.
    """

    def __init__(self, link: Link, store: Store, count: int) -> None:
        self.num_rows = int(store.chunk_sizes.max())
        self.count = count
        self.columns = [column for column in store.columns.values() if column.row_bytes]
        with link.sending():
            self.memory = {
                column.name: link.device_memory(count * self.num_rows * column.row_bytes)
                for column in self.columns
            }
        self.slot_of = np.full(len(store.chunk_sizes), -1, np.int64)
        self._chunk_in = [-1] * count

    def place(self, chunk: int, kept: set[int]) -> int | None:
        """Return a slot for a chunk, in place of one that is not in `kept`; None if there is
        none."""
        slot = next((s for s, held in enumerate(self._chunk_in) if held not in kept), None)
        if slot is not None:
            if self._chunk_in[slot] >= 0:
                self.slot_of[self._chunk_in[slot]] = -1
            self._chunk_in[slot] = chunk
            self.slot_of[chunk] = slot
        return slot

    def gather(self, places: torch.Tensor, memory: torch.Tensor, layout: Any) -> None:
        """Copy rows of the slots to `memory`, column by column."""
        for column in self.columns:
            start, end = layout[column.name]
            size, kind = next(p for p in _PIECES if column.row_bytes % p[0] == 0)
            shape = (-1, column.row_bytes // size)
            source = self.memory[column.name].view(kind).view(shape)
            out = memory[start:end].view(kind).view(shape)
            torch.index_select(source, 0, places, out=out)


class WindowSlabs:
    """The slabs of a pass whose order is windowed.

    Args:
        link: The device.
        ring: Pinned memory for pieces of chunks.
        num_slots: The number of chunks that lie on the device at a time.
        store: Where the samples are.
        chunking: How they are cut into chunks.
        running: The pass.
        num_threads: The number of threads that read.
        num_batches: The number of batches in a full slab.
    """

    def __init__(
        self,
        link: Link,
        ring: Ring,
        num_slots: int,
        store: Store,
        chunking: Chunking,
        running: Pass,
        num_threads: int,
        num_batches: int,
    ) -> None:
        self._link = link
        self._ring = ring
        self._slots = Slots(link, store, num_slots)
        self._store = store
        self._chunking = chunking
        self._layout = TensorLayout(store)
        self._running = running
        self._num_batches = num_batches
        self._threads = ThreadPoolExecutor(num_threads, "feedline-reader")
        # Pieces that wait for memory, and those that are being read; both in order.
        self._waiting: deque[_Piece] = deque()
        self._reading: deque[tuple[_Piece, Future[NDArray[np.uint8]]]] = deque()
        # The number of the latest load of each chunk, and the chunks whose latest load has come.
        self._loads: dict[int, int] = {}
        self._arrived: set[int] = set()
        self._places: Ring | None = None
        #: The batch after the latest one that was yielded.
        self.next_batch = running.start

    def __iter__(self) -> Iterator[list[DeviceSlab]]:
        """Yield slabs, a few at a time; raise if a chunk cannot be read whole."""
        blocks = MadeAhead(self._blocks(), num_threads=2)
        known: deque[_Rows] = deque()
        try:
            while True:
                if not known:
                    known.extend(islice(blocks, 1))
                if not known:
                    return
                self._look_ahead(known, blocks)
                self._plan_loads(known)
                for slabs in self._slabs_of(known[0]):
                    yield slabs
                    self.next_batch = slabs[-1].block.first + len(slabs[-1].block)
                known.popleft()
        finally:
            self.close()

    def _look_ahead(self, known: deque[_Rows], blocks: MadeAhead[_Rows]) -> None:
        """Add the blocks that are ready, until they need all slots."""
        needed = {chunk for block in known for chunk in block.needed}
        while len(needed) < self._slots.count and len(known) < _BLOCKS_AHEAD:
            block = blocks.poll()
            if block is None:
                return
            known.append(block)
            needed.update(block.needed)

    def close(self) -> None:
        """End the threads, and give back the memory that they have taken."""
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        while self._reading:
            _, future = self._reading.popleft()
            future.add_done_callback(self._give_back)

    def _give_back(self, future: Future[NDArray[np.uint8]]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._ring.give_back(future.result())

    def _blocks(self) -> Iterator[Callable[[], list[_Rows]]]:
        """Yield functions that compute the rows of the batches to come."""
        running = self._running
        for start, end, _ in growing_blocks(running.segment, running.start, self._num_batches):
            yield partial(self._rows_of, start, end)

    def _rows_of(self, start: int, end: int) -> list[_Rows]:
        """Return batches in blocks that need few enough chunks for the slots."""
        block = self._running.segment.block(self._running.rank, start, end)
        chunks, rows = self._chunking.rows_of(block.indices)
        needed = by_first_use(chunks, self._chunking.num_chunks)
        if len(needed) <= self._slots.count // 2:
            return [_Rows(self._cut(block), chunks, rows, needed)]
        if end - start > 1:
            middle = (start + end) // 2
            return self._rows_of(start, middle) + self._rows_of(middle, end)
        if len(needed) > self._slots.count:
            raise NotWholeError(f"batch {start} needs {len(needed)} chunks at once")
        return [_Rows(self._cut(block), chunks, rows, needed)]

    def _cut(self, block: Block) -> list[Block]:
        end = block.first + len(block)
        firsts = range(block.first, end, self._num_batches)
        return [block.part(first, min(first + self._num_batches, end)) for first in firsts]

    def _plan_loads(self, known: deque[_Rows]) -> None:
        """Find slots for the chunks of the known blocks, as far as there are any."""
        kept = {chunk for block in known for chunk in block.needed}
        for block in known:
            for chunk in block.needed:
                if self._slots.slot_of[chunk] >= 0:
                    continue
                slot = self._slots.place(chunk, kept)
                if slot is None and block is known[0]:
                    slot = self._slots.place(chunk, set(block.needed))
                if slot is None:
                    self._read_more()
                    return
                self._arrived.discard(chunk)
                self._loads[chunk] = number = self._loads.get(chunk, 0) + 1
                announce(self._store, chunk)
                self._waiting.extend(self._pieces(chunk, slot, number))
        self._read_more()

    def _pieces(self, chunk: int, slot: int, number: int) -> Iterator[_Piece]:
        num_rows, columns = int(self._store.chunk_sizes[chunk]), self._slots.columns
        for column in columns:
            target = slot * self._slots.num_rows * column.row_bytes
            size = num_rows * column.row_bytes
            for start in range(0, size, self._ring.num_bytes):
                end = min(start + self._ring.num_bytes, size)
                ends = number if column is columns[-1] and end == size else None
                yield _Piece(chunk, column.name, start, end, target + start, ends)

    def _read_more(self) -> None:
        """Let threads read as many pieces as there is memory for."""
        while self._waiting and len(self._reading) < self._ring.count:
            piece = self._waiting.popleft()
            self._reading.append((piece, self._threads.submit(self._read, piece)))

    def _read(self, piece: _Piece) -> NDArray[np.uint8]:
        sources = self._store.row_sources(piece.chunk)
        whole = None if sources is None else sources[piece.column].whole
        if whole is None:
            raise NotWholeError(f"chunk {piece.chunk} is not an array in memory or in a file")
        memory = self._ring.take()
        try:
            read_mapped(whole, piece.start, memory[: piece.end - piece.start])
        except BaseException:
            self._ring.give_back(memory)
            raise
        return memory

    def _copy(self, *, must_wait: bool) -> bool:
        """Begin the copy of the next piece that was read, and return whether there was one."""
        if not self._reading or not (must_wait or self._reading[0][1].done()):
            return False
        piece, future = self._reading[0]
        memory = future.result()
        self._reading.popleft()
        num_bytes = piece.end - piece.start
        with self._link.sending():
            target = self._slots.memory[piece.column][piece.target : piece.target + num_bytes]
            target.copy_(torch.from_numpy(memory[:num_bytes]), non_blocking=True)
            event = self._link.mark()
        self._ring.give_back(memory, event)
        if piece.ends == self._loads[piece.chunk]:
            self._arrived.add(piece.chunk)
        self._read_more()
        return True

    def _slabs_of(self, block: _Rows) -> Iterator[list[DeviceSlab]]:
        while not self._arrived.issuperset(block.needed):
            assert self._copy(must_wait=True), "a chunk that is needed is not on its way"
        places = self._slots.slot_of[block.chunks] * self._slots.num_rows + block.rows
        with self._link.sending():
            sent = self._send(places)
        edges = np.cumsum([0, *(len(slab.indices) for slab in block.slabs)]).tolist()
        group = []
        for slab, (first, end) in zip(block.slabs, pairwise(edges), strict=True):
            group.append(self._gather(slab, sent[first:end]))
            # What has been read meanwhile is on its way before the consumer is served.
            while self._copy(must_wait=False):
                pass
            if len(group) == _SLABS_AT_ONCE:
                yield group
                group = []
        if group:
            yield group

    def _send(self, places: Numbers) -> torch.Tensor:
        """Return numbers on the device, sent from pinned memory."""
        if self._places is None or self._places.num_bytes < places.nbytes:
            self._places = Ring(self._link, max(8 * BLOCK_ROWS, places.nbytes), _SENT_AT_ONCE)
        memory = self._places.take()
        pinned = memory[: places.nbytes].view(np.int64)
        pinned[:] = places
        sent = self._link.device_memory(places.nbytes).view(torch.int64)
        sent.copy_(torch.from_numpy(pinned), non_blocking=True)
        self._places.give_back(memory, self._link.mark())
        return sent

    def _gather(self, slab: Block, places: torch.Tensor) -> DeviceSlab:
        columns, num_rows = self._store.columns, len(slab.indices)
        with self._link.sending():
            memory = self._link.device_memory(bytes_for(columns, num_rows))
            self._slots.gather(places, memory, layout_of(columns, num_rows))
            event = self._link.mark()
        return DeviceSlab(slab, memory, self._layout.tensors(memory, num_rows), event)
