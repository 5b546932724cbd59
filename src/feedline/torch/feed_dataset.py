"""A store and a plan as an iterable dataset of torch, which makes its own batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from feedline.errors import FeedlineError, check_choice
from feedline.feed import (
    Pass,
    Peers,
    Reading,
    chunking_of,
    picked_batches,
    read_slabs,
)
from feedline.feed.delegation import asked_of
from feedline.feed.passes import SINGLE
from feedline.feed.preparation import Preparation, Prepared
from feedline.feed.prepared import PickedBatches, PreparedBatches
from feedline.feed.reading import DEFAULT_BUDGET
from feedline.feed.shown import loader_shown
from feedline.feed.waits import TimedReads
from feedline.lazy import lazy
from feedline.plan import Chunking, Plan, Segment
from feedline.store import Store
from feedline.store.columns import Arrays
from feedline.store.protocol import check_store
from feedline.torch import stateful_loader
from feedline.torch.device.feeder import Feeder
from feedline.torch.device.slabs import Arrival
from feedline.torch.in_accelerate import check_undivided
from feedline.torch.lists import (
    FORMS,
    column_as_tensor,
    cut_column,
    formed,
    prepared_as_tensors,
)
from feedline.torch.regions import Regions, SharedColumns, can_share
from feedline.torch.sampler import BatchPlanSampler
from feedline.torch.shared_pass import SharedPass
from feedline.torch.worker_place import ResumedPass, WorkerPass, begun, check_state
from feedline.torch.worker_reads import WorkerBatches, WorkerReads

Item = TypeVar("Item", covariant=True)
# A column of lists is `TensorLists`, one of bytes or text is `Lists`.
Tensors = dict[str, Any]
Arrange = Callable[[Sequence[Tensors]], Any]
_ROWS_AT_ONCE = 1024


class FeedDataset(IterableDataset[Item]):
    """Batches of a store in the order of a plan, the same number on every rank.

    Pass it to `feedline.torch.DataLoader`, whose state counts what was delivered, or to torch's
    with `batch_size=None`. Worker w of n yields batches w, w + n, …, and a loader takes from its
    workers in turn, so batches and their order do not depend on the number of workers.

    Batches that are read without workers share memory with those near them, so copy what is kept
    for long.

    Args:
        store: The samples.
        plan: The order of the samples.
        batch_size: The number of samples in a batch.
        reading: The number of threads that read ahead, and their memory.
        lists: What columns of lists are delivered as: `"list"` of tensors, `"padded"` with a mask,
            or `"nested"` tensors.
        prefixes: A batch has a dict for each of them, with the columns whose names begin with it;
            the prefix is removed. By default all columns are in one dict.
        arrange: Makes a batch of these dicts; by default it is the first one.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        batch_size: int,
        reading: Reading | None = None,
        lists: str = "list",
        prefixes: Sequence[str] = ("",),
        arrange: Arrange | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        super().__init__()
        check_store("store", store)
        self.store = store
        self.batch_size = batch_size
        self.batches = BatchPlanSampler(
            plan,
            batch_size=batch_size,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        #: How the store is read.
        self.reading = reading or Reading()
        self.lists = check_choice("lists", lists, FORMS)
        #: Whether lists are delivered as the user asked; a loader may do that itself, later.
        self.forms_lists = True
        self._prefixes = tuple(prefixes)
        self._arrange: Arrange = arrange or itemgetter(0)
        self._shared = SharedPass()
        self._announced: tuple[Pass | None, Feeder | None] = (None, None)
        self._num_worker_passes = 0
        self._worker_reads: WorkerReads | None = None
        # In a worker: the pass that runs there, and the state that the next one begins at.
        self._worker_pass: WorkerPass | ResumedPass | None = None
        self._worker_state: Mapping[str, Any] | None = None
        # What a StatefulDataLoader throws away of it, where a worker does not see that itself.
        self._num_discarded = 0
        #: What becomes of each sample; a loader sets it, and its batches are then `Prepared`.
        self.preparation: Preparation | None = None
        #: Whether workers deliver memory that they reuse; not if batches are changed there.
        self.lends_memory = True

    def __repr__(self) -> str:
        return loader_shown(self, self.batches.position, SINGLE, type(self.store).__name__)

    @lazy
    def _chunking(self) -> Chunking:
        # Looked up when samples are read: that of a table may be in its files.
        return chunking_of(self.store)

    epoch: int = asked_of("batches", "epoch")
    """The current epoch."""

    def __len__(self) -> int:
        """The number of batches in a whole epoch, the same on every rank."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`, in workers too; the current epoch is not restarted."""
        before = self.epoch
        self.batches.set_epoch(epoch)
        if epoch != before or epoch != self._shared.epoch:
            self._shared.go_to_epoch(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loop; with workers, only the loader knows it.

        In a worker it is what this worker has sent, which torchdata's StatefulDataLoader asks for.
        """
        if self._worker_pass is not None:
            return self._worker_pass.state_dict()
        if self._shared.was_in_workers:
            raise FeedlineError(
                "state_dict() of a dataset with workers does not know which batches the training "
                "loop has received; use feedline.torch.DataLoader and save loader.state_dict(), "
                "or use num_workers=0"
            )
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass resume from a saved state. An error changes nothing."""
        worker = get_worker_info()
        if worker is not None:
            check_state(state_dict, worker.num_workers)
            self._worker_state = state_dict
            return
        self.batches.load_state_dict(state_dict)
        self._shared.go_to(self.batches.position.next_segment())

    def announce(self, running: Pass, num_workers: int, feeder: Feeder | None = None) -> None:
        """Make the next iterators, here or in workers, belong to a pass.

        With a feeder, which needs that there are no workers, batches come on its device.
        """
        if num_workers:
            # Known from now on, so that a state can be saved even when a file is lost.
            _ = self.store.fingerprint
            self._shared.go_to(running.segment)
        else:
            self._announced = (running, feeder)

    def __iter__(self) -> Iterator[Item]:
        stateful_loader.check_batches_of_dataset()
        check_undivided(self, self.batches.num_replicas)
        worker = get_worker_info()
        if worker is None:
            (announced, feeder), self._announced = self._announced, (None, None)
            if self.preparation is not None:
                return self._prepared_here(self.preparation, announced)
            return self._in_process(announced, feeder)
        self._worker_pass = self._begun_in_worker(worker.id, worker.num_workers, worker.seed)
        return self._worker_pass

    def _begun_in_worker(
        self, worker: int, num_workers: int, seed: int
    ) -> WorkerPass | ResumedPass:
        state, self._worker_state = self._worker_state, None
        plan = self.batches.plan
        sizes = {"world_size": self.batches.num_replicas, "batch_size": self.batch_size}
        if state is not None:
            seen = stateful_loader.num_discarded()
            num_discarded = self._num_discarded if seen is None else seen
            return ResumedPass(
                *(self._made_in_worker, state, plan, sizes),
                *(self._shared, worker, num_discarded),
            )
        self._num_worker_passes += 1
        # The same in all workers of a pass: torch draws a seed for each loader's iterator, and
        # persistent workers count their passes together.
        pass_number = (seed - worker + self._num_worker_passes) % (2**62) + 1
        segment = self._shared.begin_in_worker(
            plan, **sizes, pass_number=pass_number, worker=worker
        )
        return begun(self._made_in_worker, segment, worker, num_workers)

    def _made_in_worker(self, segment: Segment, numbers: range) -> Iterator[Any]:
        """Return the batches with these numbers, read in a worker."""
        if self.preparation is not None:
            batches = PickedBatches(
                self.preparation, self._chunking, segment, self.batches.rank, numbers
            )
            return map(self._with_tensors, batches)
        if self._worker_reads is None:
            # Kept for as long as the worker lives: batches wait in its queue when a pass ends.
            is_whole = not (self.has_lists and self.forms_lists)
            regions = Regions() if self.lends_memory and is_whole and can_share() else None
            self._worker_reads = WorkerReads(self.store, self._chunking, regions)
        return self._in_worker(self._worker_reads, segment, numbers)

    def __getstate__(self) -> dict[str, Any]:
        stateful_loader.check_batches_of_dataset()
        fresh: dict[str, Any] = {"_worker_reads": None, "_worker_pass": None, "_worker_state": None}
        fresh["_num_discarded"] = stateful_loader.num_discarded() or 0
        return {**self.__dict__, **fresh, "_announced": (None, None)}

    def _in_process(self, announced: Pass | None, feeder: Feeder | None) -> Iterator[Item]:
        """Yield the batches of a pass; one that no loader has begun counts them itself."""
        running = self._begun(announced)
        slabs = self._slabs(running, feeder)
        try:
            for slab in self._timed(slabs, running, feeder):
                tensors, arrived = self._opened(slab, feeder, running)
                for batch in map(self._arrange, self._split(tensors, slab.sizes)):
                    arrived()
                    if announced is None:
                        running.deliver()
                    yield batch
                if slab.first == running.start:
                    # Known from now on, so that a state can be saved even when a file is lost.
                    start = perf_counter()
                    _ = self.store.fingerprint
                    running.waits.add_reading(start)
                # The slab can be used again when the batch in the loop's hands is dropped.
                del slab, tensors, arrived
        finally:
            slabs.close()

    def _begun(self, announced: Pass | None) -> Pass:
        """Return the pass that a loader has begun, or begin one."""
        running = announced
        if running is None:
            if self._shared.was_taken:
                # Workers have used the state that was loaded.
                self.batches.position.restart()
            running = self.batches.position.begin(moves_on=False)
        # Workers that are started later begin where this pass did not: at the epoch's start.
        self._shared.go_to_epoch(running.segment.epoch)
        return running

    def _prepared_here(self, preparation: Preparation, announced: Pass | None) -> Iterator[Any]:
        """Return the prepared batches of a pass; after an error, the next one follows."""
        running = self._begun(announced)
        batches = PreparedBatches(preparation, self._chunking, running, self.reading)
        made = map(self._with_tensors, batches)
        return made if announced is not None else map(partial(_delivered, running), made)

    def _with_tensors(self, batch: Prepared) -> Any:
        assert self.preparation is not None
        columns = self.store.columns
        tensors = prepared_as_tensors(
            batch.columns, {name: columns[name] for name in self.preparation.untouched}
        )
        if self.forms_lists:
            tensors = formed(tensors, self.lists)
        return batch._replace(columns=tensors)

    def _slabs(self, running: Pass, feeder: Feeder | None) -> Any:
        """Return the slabs of a pass, on a device if batches go to one."""
        if feeder is not None:
            return feeder.slabs(self.store, self._chunking, running)
        # What becomes Python values needs no memory before that.
        is_formed = self.has_lists and self.forms_lists
        return read_slabs(self.store, self._chunking, running, self.reading, in_place=is_formed)

    def _timed(self, slabs: Any, running: Pass, feeder: Feeder | None) -> Iterator[Any]:
        """Return the slabs; what the loop waits for them is counted."""
        if feeder is None:
            return TimedReads(slabs, running.waits)
        return TimedReads(slabs, running.waits, attrgetter("copied"))

    def _opened(
        self, slab: Any, feeder: Feeder | None, running: Pass
    ) -> tuple[Tensors, Callable[[], None]]:
        """Return the tensors of a slab, and what is to be called before a batch is used."""
        if feeder is not None:
            return slab.tensors, Arrival(feeder.link, slab, running.waits)
        return self._tensors(slab.arrays), _do_nothing

    def _tensors(self, arrays: Arrays) -> Tensors:
        columns = self.store.columns
        return {name: column_as_tensor(arrays[name], columns[name]) for name in columns}

    @lazy
    def has_lists(self) -> bool:
        """Whether a column of the store has lists, bytes or text."""
        return any(column.has_lists for column in self.store.columns.values())

    def _in_worker(self, reads: WorkerReads, segment: Segment, numbers: range) -> Iterator[Item]:
        """Return the batches with these numbers, in regions if there are any.

        Batches that are read together take at most a quarter of the budget, because some wait in
        the queue of the worker, or are in use, while the next ones are read.
        """
        row_bytes = max(1, sum(column.sample_bytes for column in self.store.columns.values()))
        budget = self.reading.memory_budget or DEFAULT_BUDGET
        num_rows = min(_ROWS_AT_ONCE, budget // (4 * row_bytes))
        batches = picked_batches(segment, self.batches.rank, numbers)
        read = partial(self._read, reads)
        return WorkerBatches(batches, read, max(1, num_rows // segment.batch_size))

    def _read(self, reads: WorkerReads, some: list[NDArray[np.int64]]) -> Iterator[Item]:
        """Read batches in a worker, and return them one by one, ready to be sent."""
        sizes = [len(batch) for batch in some]
        arrays, region = reads.read(np.concatenate(some))
        # Batches share no memory as torch sends them: it would send all that is shared with each.
        send = _copied if region is None else partial(SharedColumns, region=region)
        # An error is that of all, which are read one by one then.
        batches = list(self._split(self._tensors(arrays), sizes))
        return (self._arrange([send(part) for part in batch]) for batch in batches)

    def _split(self, tensors: Tensors, sizes: list[int]) -> Iterator[tuple[Tensors, ...]]:
        """Return the dicts of each batch: for each prefix, the columns that begin with it."""
        dicts = [self._dicts(tensors, prefix, sizes) for prefix in self._prefixes]
        return zip(*dicts, strict=True)

    def _dicts(self, tensors: Tensors, prefix: str, sizes: list[int]) -> Iterator[Tensors]:
        """Yield a dict for each batch, with the columns that begin with a prefix.

        What Python makes of texts and bytes, it makes for one batch at a time: so its memory is
        that of a batch before, which a core may still have in its cache.
        """
        names = [name for name in tensors if name.startswith(prefix)]
        short = [name.removeprefix(prefix) for name in names]
        for parts in zip(*(cut_column(tensors[name], sizes) for name in names), strict=True):
            batch = dict(zip(short, parts, strict=True))
            is_formed = self.has_lists and self.forms_lists
            yield formed(batch, self.lists) if is_formed else batch


def _delivered(running: Pass, batch: Prepared) -> Prepared:
    running.deliver(1, batch.skips)
    return batch


def _do_nothing() -> None:
    """Nothing has to arrive."""


def _copied(columns: Tensors) -> Tensors:
    return {
        name: column.clone() if hasattr(column, "clone") else column
        for name, column in columns.items()
    }
