"""Batches whose samples are decoded and transformed, by threads or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.blocks import BlocksAhead
from feedline.feed.called import interrupted
from feedline.feed.gathering import Workplace, arrays_in, bytes_for, gather_samples
from feedline.feed.passes import Pass
from feedline.feed.preparation import Preparation, Prepared
from feedline.feed.reading import HostSlabs, Reading, Slab, read_into, slab_sizes
from feedline.feed.shown import pass_shown
from feedline.feed.skips import SkipCount
from feedline.plan import Chunking, Segment


class _Made(NamedTuple):
    """A batch, or the error that comes in its place."""

    batch: Prepared | None
    error: Exception | None


class _PreparingSlabs:
    """Prepares what was read, in the thread that read it; a slab is a batch."""

    def __init__(self, preparation: Preparation, running: Pass, memory: HostSlabs) -> None:
        self._preparation = preparation
        self._running = running
        self._memory = memory
        self.take = memory.take
        self.drop = memory.drop

    def finish(self, slab: Slab, memory: NDArray[np.uint8]) -> _Made:
        """Return the batch; an error comes at its turn, and the batches after it come too."""
        running = self._running
        try:
            batch = self._preparation.prepare(
                slab.arrays, running.segment, running.rank, slab.block
            )
        except Exception as error:
            return _Made(None, error)
        return _Made(batch, None)


class PreparedBatches(Iterator[Prepared]):
    """The prepared batches of a pass, read ahead by threads, a batch in each.

    Args:
        preparation: What becomes of the samples.
        chunking: How they are cut into chunks.
        running: The pass.
        reading: How many threads read ahead, within which memory.
    """

    def __init__(
        self, preparation: Preparation, chunking: Chunking, running: Pass, reading: Reading
    ) -> None:
        self._store = preparation.store
        self._waits = running.waits
        self._num_made = 0
        num_shares = 2 * reading.count + 4
        # One batch in a slab, so that threads share the work, and an error is that of its batch.
        sizes = slab_sizes(self._store, running, reading.budget, num_shares, max_bytes=0)
        num_ahead = max(0, min(sizes.num_slabs - 2, reading.count + 2))
        sink = _PreparingSlabs(preparation, running, HostSlabs(sizes, reading))
        self._made = read_into(sink, self._store, chunking, running, reading, sizes, num_ahead)

    def __next__(self) -> Prepared:
        start = perf_counter()
        if self._num_made == 1:
            # Known from now on, so that a state can be saved even when a file is lost.
            _ = self._store.fingerprint
        batch, error = next(self._made)
        self._waits.add_reading(start)
        self._num_made += 1
        if error is not None:
            raise error
        assert batch is not None
        return batch

    def close(self) -> None:
        """End the threads that read ahead."""
        self._made.close()


class PickedBatches(Iterator[Prepared]):
    """The prepared batches of one worker. After an error, the next one follows.

    Args:
        preparation: What becomes of the samples.
        chunking: How they are cut into chunks.
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        numbers: Which batches.
    """

    def __init__(
        self,
        preparation: Preparation,
        chunking: Chunking,
        segment: Segment,
        rank: int,
        numbers: range,
    ) -> None:
        self._preparation = preparation
        self._chunking = chunking
        self._segment = segment
        self._rank = rank
        self._numbers = iter(numbers)
        self._blocks = BlocksAhead(segment, rank)
        # Chunks may be decoded, so those of one batch are held at a time in each worker.
        self._workplace = Workplace(num_sets=1)

    def __next__(self) -> Prepared:
        number = next(self._numbers)
        block = self._blocks.part(number, number + 1)
        store = self._preparation.store
        memory = np.empty(bytes_for(store.columns, len(block.indices)), np.uint8)
        arrays = arrays_in(memory, store.columns, len(block.indices))
        gather_samples(store, self._chunking, block.indices, arrays, self._workplace)
        return self._preparation.prepare(arrays, self._segment, self._rank, block)


class PreparedPass(Iterator[Any]):
    """One walk through prepared batches. Dropping it, or `close`, ends its threads.

    A batch counts as delivered when `make` has made of it what the loop gets.

    Args:
        batches: The batches.
        running: The pass that they belong to.
        make: Makes of a batch, and of its number in the pass, what the loop gets.
        count: Counts what was skipped.
    """

    def __init__(
        self,
        batches: PreparedBatches,
        running: Pass,
        make: Callable[[Prepared, int], Any],
        count: SkipCount,
    ) -> None:
        self._batches = batches
        self._running = running
        self._make = make
        self._count = count
        self._num_failed = 0
        self._is_interrupted = False

    def __repr__(self) -> str:
        return f"<PreparedPass: {pass_shown(self._running)}>"

    def __next__(self) -> Any:
        if self._is_interrupted:
            raise interrupted()
        # What is read when an interrupt comes is read again.
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._num_failed += 1
            raise
        try:
            item = self._make(batch, self._running.num_delivered + self._num_failed)
        except Exception:
            # The loop may continue after an error; then the batch that failed is skipped.
            self._num_failed += 1
            raise
        except BaseException:
            self._is_interrupted = True
            raise
        self._running.deliver(1 + self._num_failed, batch.skips)
        self._num_failed = 0
        self._count.note(batch.skips)
        return item

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()
