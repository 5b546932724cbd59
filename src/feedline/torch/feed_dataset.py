"""A store and a plan as an iterable dataset of torch, which makes its own batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from feedline.errors import FeedlineError
from feedline.feed import Pass, Reading, chunking_of, read_slabs
from feedline.plan import Batch, Block, Plan
from feedline.store import FolderStore
from feedline.torch.feed_reading import Arrange, Tensors, batches_in_slabs, batches_in_worker
from feedline.torch.regions import Regions, can_share
from feedline.torch.sampler import PlanSampler
from feedline.torch.shared_pass import SharedPass

Item = TypeVar("Item", covariant=True)


class FeedSampler(PlanSampler[Batch]):
    """Where a dataset is in its plan; one entry is one batch."""

    def _entries_of(self, block: Block) -> list[Batch]:
        return list(block)

    def batches(self, running: Pass) -> Iterator[Any]:
        return self.entries(running)


class FeedDataset(IterableDataset[Item]):
    """Batches of a store in the order of a plan, the same number on every rank.

    Give it to `feedline.torch.DataLoader`, whose state counts what was delivered, or to torch's
    with `batch_size=None`. Worker w of n yields batches w, w + n, …, so that a loader, which takes
    from its workers in turn, gets them in the order of the plan: batches and their order do not
    depend on the number of workers.

    Batches that are read without workers share memory with those near them, so copy what is kept
    for long.

    Args:
        store: Where the samples are.
        plan: Which sample comes when.
        batch_size: The number of samples of a batch.
        reading: How many threads read ahead, within which memory.
        prefixes: A batch has a dict for each of them, with the columns whose names begin with it;
            the prefix is left out. By default all columns are in one dict.
        arrange: Makes a batch of these dicts; by default it is the first one.
        **options: What `PlanSampler` takes: the ranks and the desync guard.
    """

    def __init__(
        self,
        store: FolderStore,
        plan: Plan,
        *,
        batch_size: int,
        reading: Reading | None = None,
        prefixes: Sequence[str] = ("",),
        arrange: Arrange | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.store = store
        self.batch_size = batch_size
        self.batches = FeedSampler(plan, batch_size=batch_size, **options)
        self._reading = reading or Reading()
        self._chunking = chunking_of(store)
        self._prefixes = tuple(prefixes)
        self._arrange = arrange or _first
        self._shared = SharedPass()
        self._announced: Pass | None = None
        self._num_worker_passes = 0
        self._regions: Regions | None = None

    @property
    def epoch(self) -> int:
        """The epoch that this dataset is in."""
        return self.batches.epoch

    def __len__(self) -> int:
        """The number of batches of a whole epoch, on every rank alike."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`, in workers too; the present one is not restarted."""
        before = self.epoch
        self.batches.set_epoch(epoch)
        if epoch != before or epoch != self._shared.epoch:
            self._shared.go_to_epoch(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is; only the loader knows when there are workers."""
        if self._shared.was_in_workers:
            raise FeedlineError(
                "state_dict() of a dataset whose batches were read by workers does not know what "
                "the training loop has received; use feedline.torch.DataLoader and save "
                "loader.state_dict(), or use num_workers=0"
            )
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was saved. An error changes nothing."""
        self.batches.load_state_dict(state_dict)
        self._shared.go_to(self.batches.position.next_segment())

    def announce(self, running: Pass, num_workers: int) -> None:
        """Let the iterators that are made next, here or in workers, belong to a pass."""
        if num_workers:
            # Known from now on, so that a state can be saved even when a file is lost.
            _ = self.store.fingerprint
            self._shared.go_to(running.segment)
        else:
            self._announced = running

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        if worker is None:
            announced, self._announced = self._announced, None
            return self._in_process(announced)
        self._num_worker_passes += 1
        # The same in all workers of a pass: torch draws a seed for each loader's iterator, and
        # persistent workers count their passes together.
        pass_number = (worker.seed - worker.id + self._num_worker_passes) % (2**62) + 1
        segment = self._shared.begin_in_worker(
            *(self.batches.plan, self.batches.num_replicas, self.batch_size),
            *(pass_number, worker.id),
        )
        if self._regions is None and can_share():
            # Kept for as long as the worker lives: batches wait in its queue when a pass ends.
            self._regions = Regions()
        numbers = range(segment.num_done + worker.id, segment.num_batches, worker.num_workers)
        return batches_in_worker(
            self.store,
            self._chunking,
            segment,
            self.batches.rank,
            numbers,
            self._regions,
            self._reading.memory_budget,
            self._prefixes,
            self._arrange,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_regions": None, "_announced": None}

    def _in_process(self, announced: Pass | None) -> Iterator[Item]:
        """Yield the batches of a pass; one that no loader has begun counts them itself."""
        running = announced
        if running is None:
            if self._shared.was_taken:
                # Workers have used the state that was loaded.
                self.batches.position.restart()
            running = self.batches.position.begin(moves_on=False)
        # Workers that are started later begin where this pass did not: at the epoch's start.
        self._shared.go_to_epoch(running.segment.epoch)
        slabs = read_slabs(
            self.store, self._chunking, running.segment, running.rank, running.start, self._reading
        )
        columns = self.store.columns
        for first, batches in batches_in_slabs(slabs, columns, self._prefixes, self._arrange):
            for batch in batches:
                if announced is None:
                    running.deliver()
                yield batch
            if first == running.start:
                # Known from now on, so that a state can be saved even when a file is lost.
                _ = self.store.fingerprint
            # The slab can be used again when the batch in the loop's hands is dropped.
            del batches


def _first(dicts: Sequence[Tensors]) -> Tensors:
    return dicts[0]
