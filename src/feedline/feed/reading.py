"""One pass over a store: slabs of consecutive batches, read ahead by threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.feed.announcing import announcer_for, end_later
from feedline.feed.gathering import Workplace, arrays_in, bytes_for, gather, size_of
from feedline.feed.passes import Pass
from feedline.feed.readahead import MadeAhead, ReadAhead
from feedline.feed.slab_jobs import SlabJob, cut, slab_jobs
from feedline.plan import Block, Chunking
from feedline.store import Store
from feedline.store.columns import Arrays
from feedline.store.pool import SizedPool, SlabPool
from feedline.words import one_line

DEFAULT_BUDGET = 48 * 2**20
_THREAD_BUDGET = 32 * 2**20
# From this many on, one thread could not say fast enough what they are to read.
_MANY_THREADS = 6
_MAX_SLAB_BYTES = 2**24
_MAX_SLAB_ROWS = 2**15
# More do not help: they would wait for each other.
_MAX_THREADS = 12

Result = TypeVar("Result", covariant=True)


@one_line
class Slab(NamedTuple):
    """Consecutive batches: which samples they hold, and these, column by column.

    Args:
        block: Which samples they hold.
        arrays: The samples, column by column.
    """

    block: Block
    arrays: Arrays

    @property
    def first(self) -> int:
        """The number of the first batch."""
        return self.block.first

    @property
    def sizes(self) -> list[int]:
        """The number of samples in each batch."""
        return [end - first for first, end in pairwise(self.block.bounds.tolist())]


Slabs = ReadAhead[SlabJob, Slab]


class SlabSink(Protocol[Result]):
    """Where slabs are read into, and what becomes of them; threads call it at the same time."""

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that nobody uses."""

    def finish(self, slab: Slab, memory: NDArray[np.uint8]) -> Result:
        """Return what the consumer gets of a slab that was read into `memory`."""

    def drop(self, memory: NDArray[np.uint8]) -> None:
        """Take back memory whose slab could not be read."""


class HostSlabs:
    """Slabs in ordinary memory, which is used again when the consumer has dropped them.

    Args:
        sizes: How large slabs are.
        reading: How many threads read ahead.
    """

    def __init__(self, sizes: SlabSizes, reading: Reading) -> None:
        max_free = max(1, min(sizes.num_slabs, reading.count + 4))
        self._pool = SlabPool(sizes.num_bytes, max_free=max_free)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that nobody uses."""
        return self._pool.take(num_bytes)

    def finish(self, slab: Slab, memory: NDArray[np.uint8]) -> Slab:
        """Return the slab."""
        return slab

    def drop(self, memory: NDArray[np.uint8]) -> None:
        """Do nothing: memory goes back to the pool by itself."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How slabs are read.

    Args:
        num_threads: The number of threads that read ahead; 0 reads in the consumer's thread.
            `"auto"` is the cores of this process, divided by the ranks on this machine.
        memory_budget: Bytes that all slabs may take together: those being read, waiting or in use;
            by default 48 MiB, and 32 MiB more for each thread after the first. Batches that the
            consumer keeps for longer are not counted.
    """

    num_threads: int | str = "auto"
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        if self.num_threads != "auto":
            check_integer("num_threads", self.num_threads, 0, 1024)
        if self.memory_budget is not None:
            check_integer("memory_budget", self.memory_budget, 1)

    @property
    def count(self) -> int:
        """The number of threads that read ahead."""
        return auto_threads() if isinstance(self.num_threads, str) else self.num_threads

    @property
    def num_order_threads(self) -> int:
        """The number of threads that compute which samples come next."""
        return 0 if not self.count else 1 + (self.count >= _MANY_THREADS)

    @property
    def budget(self) -> int:
        """The bytes that all slabs may take together."""
        if self.memory_budget is not None:
            return self.memory_budget
        return DEFAULT_BUDGET + max(0, self.count - 1) * _THREAD_BUDGET


def auto_threads() -> int:
    """Return the number of threads that use this rank's share of the cores.

    One core is left to the training loop, which reads too instead of waiting.
    """
    try:
        num_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        num_cores = os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    num_ranks = int(ranks) if ranks.isdecimal() and int(ranks) else 1
    return max(1, min(_MAX_THREADS, num_cores // num_ranks - 1))


@dataclass(frozen=True, kw_only=True)
class SlabSizes:
    """How large slabs are, and how many of them the budget allows.

    Args:
        num_batches: The number of batches in a full slab.
        num_bytes: The bytes of a full slab, without lists, which have memory of their own.
        num_slabs: The number of slabs that may be read, waiting or in use.
        list_bytes: About the bytes of the lists of a full slab.
    """

    num_batches: int
    num_bytes: int
    num_slabs: int
    list_bytes: int = 0


def slab_sizes(
    store: Store, running: Pass, budget: int, num_shares: int, max_bytes: int = _MAX_SLAB_BYTES
) -> SlabSizes:
    """Return the sizes of the slabs of a pass, or raise if the budget is below one batch.

    Args:
        store: Where the samples are.
        running: The pass.
        budget: Bytes that all slabs may take together.
        num_shares: The number of slabs that the budget should do for.
        max_bytes: The bytes of a slab that is not to become larger, except for one batch.
    """
    columns = store.columns
    batch_size = running.segment.plan.largest_batch(running.segment.batch_size)
    batch_bytes = size_of(columns, batch_size)
    if batch_bytes > budget:
        raise InvalidValueError(
            f"memory_budget={budget} must be at least {batch_bytes}, the bytes of one batch of "
            f"{batch_size}; use a smaller batch or a larger budget"
        )
    slab_bytes = max(batch_bytes, min(max_bytes, budget // num_shares))
    num_most = max(1, slab_bytes // max(batch_bytes, 1))
    num_most = min(num_most, max(1, _MAX_SLAB_ROWS // batch_size))
    num_rows = num_most * batch_size
    return SlabSizes(
        num_batches=num_most,
        num_bytes=bytes_for(columns, num_rows),
        num_slabs=budget // max(size_of(columns, num_rows), 1),
        list_bytes=size_of(columns, num_rows) - bytes_for(columns, num_rows),
    )


def read_slabs(
    store: Store, chunking: Chunking, running: Pass, reading: Reading, *, in_place: bool = False
) -> Slabs:
    """Return an iterator over the batches of a pass, in slabs.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        running: The pass.
        reading: How many threads read ahead, within which memory.
        in_place: Whether bytes and texts may stay in mapped files, as `PlacedLists`.

    Examples:
        >>> import numpy as np, tempfile
        >>> from feedline.feed import Batching, chunking_of
        >>> from feedline.plan import SamplePlan, Sequential
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": np.arange(10)}, f"{folder.name}/data", chunk_samples=4)
        >>> store = FolderStore(f"{folder.name}/data")
        >>> plan = SamplePlan(order=Sequential(num_samples=10))
        >>> running = Pass(plan.segment(world_size=1, batch_size=5), 0, Batching())
        >>> slabs = read_slabs(store, chunking_of(store), running, Reading())
        >>> [slab.arrays["x"].tolist() for slab in slabs]
        [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        >>> folder.cleanup()
    """
    # Besides its slab, each thread has memory in which rows are put in order.
    sizes = slab_sizes(store, running, reading.budget, 2 * reading.count + 4)
    # One slab is in the consumer's hands, and the one before it may still be.
    num_ahead = max(0, min(sizes.num_slabs - 2, reading.count + 2))
    sink = HostSlabs(sizes, reading)
    return read_into(sink, store, chunking, running, reading, sizes, num_ahead, in_place=in_place)


def read_into(
    sink: SlabSink[Result],
    store: Store,
    chunking: Chunking,
    running: Pass,
    reading: Reading,
    sizes: SlabSizes,
    num_ahead: int,
    start: int | None = None,
    *,
    in_place: bool = False,
) -> ReadAhead[SlabJob, Result]:
    """Return what a sink makes of each slab of a pass.

    Args:
        sink: Where slabs are read into.
        store: Where the samples are.
        chunking: How they are cut into chunks.
        running: The pass.
        reading: How many threads read ahead.
        sizes: How large slabs are.
        num_ahead: The number of slabs that are read ahead.
        start: The first batch; by default the pass is read from its beginning.
        in_place: Whether bytes and texts may stay in mapped files, as `PlacedLists`.
    """
    columns = store.columns
    workplace = Workplace()
    # Fresh memory costs about as much as what is copied into it.
    lists = SizedPool(sizes.num_slabs * sizes.list_bytes)

    def read(job: SlabJob) -> Result:
        num_rows = len(job.rows)
        memory = sink.take(bytes_for(columns, num_rows))
        try:
            arrays = arrays_in(memory, columns, num_rows)
            gather(store, job, arrays, workplace, lists.take, in_place=in_place)
            arrays = {name: arrays[name] for name in columns}
            announcer.finished(job)
        except BaseException:
            sink.drop(memory)
            raise
        return sink.finish(Slab(job.block, arrays), memory)

    def blocks() -> Iterator[Callable[[], list[SlabJob]]]:
        first = running.start if start is None else start
        return slab_jobs(running.segment, running.rank, first, chunking, sizes.num_batches)

    window = getattr(running.segment.plan, "preload", 0)
    num_order_threads = reading.num_order_threads if num_ahead else 0
    announcer = announcer_for(store, blocks, window, has_threads=num_order_threads > 0)
    slabs = ReadAhead(
        MadeAhead(announcer.around(blocks()), num_threads=num_order_threads),
        read,
        lambda job: cut(job.block, chunking, 1),
        num_threads=reading.count,
        num_ahead=num_ahead,
    )
    # Not `close`: a pass that is dropped needs its chunks no more either.
    weakref.finalize(slabs, end_later, announcer).atexit = False
    return slabs
