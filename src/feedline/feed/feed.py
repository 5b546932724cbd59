"""A feed: batches from a store in the order of a plan, resumable at any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.feed.called import interrupted
from feedline.feed.data_plan import DataPlan
from feedline.feed.delegation import asked_of
from feedline.feed.gathering import chunking_of
from feedline.feed.loader import Log, PlannedLoader
from feedline.feed.passes import Pass
from feedline.feed.peers import Peers
from feedline.feed.position import Position
from feedline.feed.preparation import Preparation
from feedline.feed.prepared import PreparedBatches
from feedline.feed.reading import Reading, Slab, Slabs, read_slabs
from feedline.feed.shown import pass_shown
from feedline.plan import Plan
from feedline.store import Store
from feedline.store.columns import Arrays
from feedline.store.protocol import check_store
from feedline.words import one_line

Item = TypeVar("Item")


@one_line
class FedBatch(NamedTuple):
    """What one rank gets for one forward pass, as arrays.

    `indices` are the samples' numbers in the store. `is_real` is False where a sample is padding.

    Args:
        arrays: The samples, column by column.
        indices: Their numbers in the store.
        is_real: Which of them are real and not padding.
        number: Which batch of its segment it is, from zero.
        bucket: The number of its bucket, where the plan has buckets.
    """

    arrays: Arrays
    indices: NDArray[np.int64]
    is_real: NDArray[np.bool_]
    number: int
    bucket: int | None = None


class Feed(PlannedLoader):
    """The batches of one rank, read from a store in the order of a plan.

    The state counts the batches that were delivered, however far threads have read ahead, and
    loads on any number of ranks and with any batch size. When a pass has ended, the next one is the
    next epoch; an interrupted pass restarts.

    The arrays of a batch may share memory with those of batches near it. Copy what is kept for
    long: a batch that is held keeps its neighbours' memory.

    Args:
        store: The samples.
        plan: The order of the samples; a `WindowPlan` reads few chunks at a time.
        batch_size: The number of samples in a batch.
        world_size: The number of ranks; by default that of the process group, else 1.
        rank: The rank that these batches are for; by default that in the process group, else 0.
        num_threads: How many threads read ahead; 0 reads in the consumer's own thread. `"auto"` is
            the cores of this process, divided by the ranks on this machine.
        memory_budget: How many bytes the batches that are read ahead or in use may take; by
            default 48 MiB, and 32 MiB for each thread after the first.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> import tempfile
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": np.arange(100)}, f"{folder.name}/data")
        >>> store = FolderStore(f"{folder.name}/data")
        >>> plan = SamplePlan(order=Shuffled(num_samples=store.num_samples))
        >>> with Feed(store, plan, batch_size=10) as feed:
        ...     seen = [int(x) for batch in feed for x in batch.arrays["x"]]
        >>> sorted(seen) == list(range(100))
        True
        >>> folder.cleanup()
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        batch_size: int,
        world_size: int | None = None,
        rank: int | None = None,
        num_threads: int | str = "auto",
        memory_budget: int | None = None,
        log: Log = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        check_store("store", store)
        self.store = store
        self._reading = Reading(num_threads=num_threads, memory_budget=memory_budget)
        self._chunking = chunking_of(store)
        position = Position(
            DataPlan(plan=plan, store=store),
            batch_size=check_integer("batch_size", batch_size, 1),
            num_replicas=world_size,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        super().__init__(position, log=log)

    plan: Plan = asked_of("position", "plan")
    """The plan, bound to the samples of this store."""

    def _data_shown(self) -> str:
        return type(self.store).__name__

    def _batches(self, running: Pass) -> FeedPass[FedBatch]:
        return self.read(running, _as_is)

    def read(
        self, running: Pass, make: Callable[[FedBatch], Item], *, in_place: bool = False
    ) -> FeedPass[Item]:
        """Return the batches of a pass, each as `make` makes it.

        Args:
            running: The pass.
            make: Makes of a batch what the loop gets.
            in_place: Whether it may get bytes and texts as `PlacedLists`.
        """
        slabs = read_slabs(self.store, self._chunking, running, self._reading, in_place=in_place)
        return FeedPass(slabs, running, self.store, make)

    def prepare(self, running: Pass, preparation: Preparation) -> PreparedBatches:
        """Return the batches of a pass, each sample of which is prepared."""
        return PreparedBatches(preparation, self._chunking, running, self._reading)

    def close(self) -> None:
        """Close the store's open files."""
        super().close()
        self.store.close()


class FeedPass(Iterator[Item]):
    """One walk through the batches. Dropping it, or `close`, ends its threads.

    A batch counts as delivered when `make` has made of it what the loop gets.

    Args:
        slabs: The batches as they are read.
        running: The pass that they belong to.
        store: Where the samples are.
        make: Makes of a batch what the loop gets.
    """

    def __init__(
        self, slabs: Slabs, running: Pass, store: Store, make: Callable[[FedBatch], Item]
    ) -> None:
        self._slabs = slabs
        self._make = make
        self._num_failed = 0
        self._is_interrupted = False
        self._running = running
        self._store = store
        self._num_slabs = 0
        self._batches: Iterator[FedBatch] = iter(())

    def __repr__(self) -> str:
        return f"<FeedPass of {type(self._store).__name__}: {pass_shown(self._running)}>"

    def __next__(self) -> Item:
        if self._is_interrupted:
            raise interrupted()
        batch = next(self._batches, None)
        if batch is None:
            start = perf_counter()
            if self._num_slabs == 1:
                # Known from now on, so that a state can be saved even when a file is lost.
                _ = self._store.fingerprint
            slab = next(self._slabs)
            self._running.waits.add_reading(start)
            self._batches = _batches_of(slab)
            self._num_slabs += 1
            batch = next(self._batches)
        try:
            item = self._make(batch)
        except Exception:
            # The loop may continue after an error; then the batch that failed is skipped.
            self._num_failed += 1
            raise
        except BaseException:
            self._is_interrupted = True
            raise
        self._running.deliver(1 + self._num_failed)
        self._num_failed = 0
        return item

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches = iter(())
        self._slabs.close()


def _as_is(batch: FedBatch) -> FedBatch:
    return batch


def _batches_of(slab: Slab) -> Iterator[FedBatch]:
    edges = pairwise(slab.block.bounds.tolist())
    for batch, (first, end) in zip(slab.block, edges, strict=True):
        arrays = {name: array[first:end] for name, array in slab.arrays.items()}
        yield FedBatch(arrays, batch.indices, batch.is_real, batch.number, batch.bucket)
