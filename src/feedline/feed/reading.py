"""One pass over a store: slabs of consecutive batches, read ahead by threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feedline.errors import InvalidValueError, check_integer
from feedline.feed.blocks import BlocksAhead
from feedline.feed.gathering import arrays_in, bytes_for, gather_samples
from feedline.feed.readahead import ReadAhead
from feedline.plan import Block, Chunking, Segment
from feedline.store import Store
from feedline.store.columns import Arrays
from feedline.store.pool import SlabPool
from feedline.words import one_line

DEFAULT_BUDGET = 48 * 2**20
# One is enough to keep a disk busy, and the consumer helps instead of waiting.
DEFAULT_THREADS = 1
_MAX_SLAB_BYTES = 2**23
_MAX_SLAB_ROWS = 2**15
# Blocks that touch more chunks than this are spread over the data: reading ahead does not help.
_MAX_CHUNKS = 64


@one_line
class Slab(NamedTuple):
    """Consecutive batches: which samples they hold, and these, column by column.

    Args:
        block: Which samples they hold.
        arrays: The samples, column by column.
    """

    block: Block
    arrays: Arrays


Slabs = ReadAhead[tuple[int, int], Slab]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How slabs are read.

    Args:
        num_threads: The number of threads that read ahead; 0 reads in the consumer's thread.
        memory_budget: Bytes that all slabs may take together: those being read, waiting or in use.
            Batches that the consumer keeps for longer are not counted.
    """

    num_threads: int = DEFAULT_THREADS
    memory_budget: int = DEFAULT_BUDGET

    def __post_init__(self) -> None:
        check_integer("num_threads", self.num_threads, 0, 1024)
        check_integer("memory_budget", self.memory_budget, 1)


def read_slabs(
    store: Store, chunking: Chunking, segment: Segment, rank: int, start: int, reading: Reading
) -> Slabs:
    """Return an iterator over the batches of `rank` from `start` on, in slabs.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        start: The number of the first batch.
        reading: How many threads read ahead, within which memory.

    Examples:
        >>> import numpy as np, tempfile
        >>> from feedline.feed import chunking_of
        >>> from feedline.plan import SamplePlan, Sequential
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": np.arange(10)}, f"{folder.name}/data", chunk_samples=4)
        >>> store = FolderStore(f"{folder.name}/data")
        >>> plan = SamplePlan(order=Sequential(num_samples=10))
        >>> segment = plan.segment(world_size=1, batch_size=5)
        >>> slabs = read_slabs(store, chunking_of(store), segment, 0, 0, Reading())
        >>> [slab.arrays["x"].tolist() for slab in slabs]
        [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        >>> folder.cleanup()
    """
    columns = store.columns
    batch_size = segment.plan.largest_batch(segment.batch_size)
    batch_bytes = bytes_for(columns, batch_size)
    budget = reading.memory_budget
    if batch_bytes > budget:
        raise InvalidValueError(
            f"memory_budget={budget} must be at least {batch_bytes}, the bytes of one batch of "
            f"{batch_size}; use a smaller batch or a larger budget"
        )
    slab_bytes = max(batch_bytes, min(_MAX_SLAB_BYTES, budget // (reading.num_threads + 4)))
    num_most = max(1, slab_bytes // max(batch_bytes, 1))
    num_most = min(num_most, max(1, _MAX_SLAB_ROWS // batch_size))
    slab_bytes = bytes_for(columns, num_most * batch_size)
    # One slab is in the consumer's hands, and the one before it may still be.
    num_slabs = budget // max(slab_bytes, 1)
    pool = SlabPool(slab_bytes, max_free=max(1, min(num_slabs, reading.num_threads + 4)))

    blocks = BlocksAhead(segment, rank, _Prefetch(store, chunking).announce)

    def read(job: tuple[int, int]) -> Slab:
        block = blocks.part(*job)
        num_rows = len(block.indices)
        arrays = arrays_in(pool.take(bytes_for(columns, num_rows)), columns, num_rows)
        gather_samples(store, chunking, block.indices, arrays)
        return Slab(block, arrays)

    return ReadAhead(
        _jobs(start, segment.num_batches, num_most),
        read,
        lambda job: [(number, number + 1) for number in range(*job)],
        num_threads=reading.num_threads,
        num_ahead=max(0, min(num_slabs - 2, reading.num_threads + 2)),
    )


def _jobs(start: int, stop: int, num_most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of batches: one batch at first, so that it comes soon, then more and more."""
    count = 1
    while start < stop:
        end = min(start + count, stop)
        yield start, end
        start = end
        count = min(2 * count, num_most)


class _Prefetch:
    """Tells the store which chunks a block needs, if they were not needed recently."""

    def __init__(self, store: Store, chunking: Chunking) -> None:
        self._store = store
        self._chunking = chunking
        self._announced: dict[int, None] = {}

    def announce(self, block: Block) -> None:
        """Tell the store about the chunks of a block, in the order in which they are needed."""
        chunks, _ = self._chunking.rows_of(block.indices)
        starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
        if not len(chunks) or len(starts) > _MAX_CHUNKS:
            return
        for chunk in [int(chunks[0]), *chunks[starts].tolist()]:
            if chunk not in self._announced:
                self._announced[chunk] = None
                self._store.prefetch(chunk)
        while len(self._announced) > 2 * _MAX_CHUNKS:
            self._announced.pop(next(iter(self._announced)), None)
