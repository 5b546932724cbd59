"""A data loader that knows what the training loop has received."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from feedline.errors import InvalidValueError, check_integer
from feedline.feed import IdTrail, PlannedMarks, planned_ids
from feedline.plan import Block
from feedline.torch.delivered import Delivered, Delivering, NotedIndices
from feedline.torch.distributed import DistributedSampler, SampleSampler
from feedline.torch.fed_dataset import FedDataset
from feedline.torch.loader_arguments import (
    SampleBatches,
    as_is,
    check_no_batching,
    collate_whole,
    plan_sampler_of,
)
from feedline.torch.plan_sampler import Pass
from feedline.torch.shield import Shielded, born_shielded

__all__ = ["DataLoader"]

Item = TypeVar("Item")


class DataLoader(TorchDataLoader[Item]):
    """torch's DataLoader with a state that counts the batches it has delivered.

    It takes every argument of torch's loader. The state does not depend on workers or prefetching,
    and loading it costs no replay: the next pass begins at the next batch, on any number of ranks
    and workers and with any batch size. When a pass has ended, the next one is the next epoch.

    Args:
        dataset: A map-style dataset. If it has `__getitems__`, a whole batch is fetched at once; if
            that returns one thing instead of a list, this is taken as the batch. Or one of
            Feedline's iterable datasets, such as `LazyFolderDataset`, which makes its own batches.
        batch_size: The number of samples in a batch, with `sampler`.
        shuffle: Without a sampler, whether a `DistributedSampler` of this loader shuffles.
        sampler: One of Feedline's samplers of samples.
        batch_sampler: One of Feedline's samplers of batches.
        seed: The seed of the sampler, where this loader makes it.
        with_mask: Yield `(batch, is_real)` pairs. `is_real` is False where a sample is padding,
            that is, repeated so that all ranks have as many: leave these out of an evaluation.
        **options: What torch's DataLoader takes.

    Examples:
        >>> loader = DataLoader(list(range(100)), batch_size=10, shuffle=True)
        >>> batches = iter(loader)
        >>> _ = next(batches), next(batches)
        >>> resumed = DataLoader(list(range(100)), batch_size=25, shuffle=True)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> sum(len(batch) for batch in resumed)
        80
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any | None = None,
        batch_sampler: Any | None = None,
        *,
        seed: int = 0,
        with_mask: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(dataset, FedDataset):
            check_no_batching(sampler, batch_sampler, batch_size, shuffle)
            batch_size = None
            options.setdefault("collate_fn", as_is)
        elif isinstance(dataset, IterableDataset):
            raise InvalidValueError(
                f"dataset={type(dataset).__name__} must be a map-style dataset or one of "
                "Feedline's iterable ones; give others to torch's DataLoader"
            )
        elif sampler is None and batch_sampler is None:
            drop_last = bool(options.get("drop_last", False))
            sampler = DistributedSampler(
                dataset, shuffle=bool(shuffle), seed=seed, drop_last=drop_last
            )
            shuffle = None
        if isinstance(dataset, FedDataset):
            self._plan_sampler, self._entries_per_batch = dataset.batches, 1
        else:
            self._plan_sampler, self._entries_per_batch = plan_sampler_of(
                sampler, batch_sampler, batch_size
            )
        in_batches = batch_sampler is not None or batch_size is not None
        if in_batches and hasattr(dataset, "__getitems__") and options.get("collate_fn") is None:
            options["collate_fn"] = collate_whole
        options["worker_init_fn"] = Shielded.around(options.get("worker_init_fn"))
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            **options,
        )
        if in_batches and isinstance(self._plan_sampler, SampleSampler):
            # torch guards this name after its own initialisation.
            object.__setattr__(
                self,
                "batch_sampler",
                SampleBatches(self._plan_sampler, self._entries_per_batch, self._drops_last()),
            )
        self._plan_sampler.loader_record.update(drop_last=self._drops_last())
        if isinstance(self._plan_sampler, SampleSampler):
            self._plan_sampler.loader_record.update(batch_size=self._entries_per_batch)
        self.with_mask = with_mask
        #: Whether batches are compared with the plan as they are handed out.
        self.tracks_ids = False
        self._delivered: Delivered | None = None

    @property
    def epoch(self) -> int:
        """The epoch that this loader is in; it stays there until the next pass begins."""
        return self._plan_sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the loader is in is not restarted."""
        self._plan_sampler.set_epoch(epoch)

    def num_batches_left(self) -> int:
        """Return how many batches the next pass has."""
        return self._num_batches_in(self._plan_sampler.num_left()) or len(self)

    def num_real_samples(self, number: int, *, everywhere: bool = False) -> int:
        """Return how many samples of a batch are no padding.

        Args:
            number: Which batch of this pass, counted back from the latest, which is -1.
            everywhere: Whether to count the samples of all ranks, which the plan knows.
        """
        delivered = self._current()
        if delivered is None or not -delivered.num_batches <= number < 0:
            raise InvalidValueError(f"number={number} must be that of a batch of this pass, as -1")
        place = delivered.num_batches + number
        segment = delivered.running.segment
        ranks = range(segment.world_size) if everywhere else [self._plan_sampler.rank]
        return sum(self._num_real(delivered.running, place, rank) for rank in ranks)

    def latest_ids(self) -> NDArray[np.int64]:
        """Return the samples of the latest batch.

        Of a map-style dataset, these are the indices that it was asked for. Of an iterable one,
        which makes its own batches, they are those of the plan.
        """
        delivered = self._latest()
        if delivered.latest is None:
            number, rank = delivered.num_batches - 1, self._plan_sampler.rank
            return self._block_of(delivered.running, number, rank).indices
        return np.atleast_1d(np.asarray(delivered.latest, dtype=np.int64))

    def latest_is_real(self) -> NDArray[np.bool_] | None:
        """Return which samples of the latest batch are no padding; `None` means all."""
        delivered = self._latest()
        running = delivered.running
        if not running.segment.num_padded:
            return None
        if delivered.marks is None:
            delivered.marks = PlannedMarks(
                running.segment, self._plan_sampler.rank, running.start, self._entries_per_batch
            )
        return delivered.marks.of(delivered.num_batches - 1)

    def _latest(self) -> Delivered:
        delivered = self._delivered
        if delivered is None or not delivered.num_batches:
            raise InvalidValueError(
                "this pass has handed out 0 batches and must have handed out one; ask after it"
            )
        return delivered

    def agrees_with_plan(self) -> bool:
        """Return whether the batches of this pass were those of the plan; see `tracks_ids`."""
        delivered = self._current()
        return delivered is None or delivered.trail is None or delivered.trail.agrees

    @property
    def _index_sampler(self) -> Any:
        # What torch takes indices from; noted here, in the order in which batches come back.
        inner = super()._index_sampler
        return inner if isinstance(self.dataset, FedDataset) else NotedIndices(inner, self)

    def current_notes(self) -> deque[Any] | None:
        """Return where to note what is asked for in the pass that has begun."""
        return None if self._delivered is None else self._delivered.asked

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: the batches that it has received."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return where the training loop was before the latest batches that it received."""
        delivered = self._current()
        high = 0 if delivered is None else delivered.num_batches
        num_batches = check_integer("num_batches", num_batches, 0, high)
        if delivered is None:
            return self._plan_sampler.state_dict()
        num_entries = (delivered.num_batches - num_batches) * self._entries_per_batch
        return self._plan_sampler.state_after(delivered.running, num_entries)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved; an error leaves the loader as it was."""
        self._plan_sampler.load_state_dict(state_dict)

    def __iter__(self) -> Any:
        delivered = self._current()
        if delivered is None:
            has_ended = self._num_batches_in(self._plan_sampler.num_left()) == 0
        else:
            has_ended = delivered.num_batches == delivered.num_expected
        if has_ended:
            self._plan_sampler.set_epoch(self._plan_sampler.epoch + 1)
        running = self._plan_sampler.begin()
        num_expected = self._num_batches_in(running.segment.num_batches - running.start)
        self._delivered = Delivered(running, num_expected)
        if self.tracks_ids and not isinstance(self.dataset, FedDataset):
            rank, together = self._plan_sampler.rank, self._entries_per_batch
            self._delivered.trail = IdTrail(
                planned_ids(running.segment, rank, running.start, together)
            )
        if isinstance(self.dataset, FedDataset) and self.num_workers:
            self.dataset.announce(running)
        with self._plan_sampler.bound_to(running), born_shielded(self):
            return Delivering(self, self._delivered, super().__iter__())

    def _current(self) -> Delivered | None:
        """Return the latest pass, unless the sampler was moved elsewhere since it began."""
        delivered = self._delivered
        if delivered is None or not self._plan_sampler.is_in(delivered.running):
            return None
        return delivered

    def _num_batches_in(self, num_entries: int) -> int:
        if self._drops_last():
            return num_entries // self._entries_per_batch
        return -(-num_entries // self._entries_per_batch)

    def _drops_last(self) -> bool:
        return bool(getattr(self.batch_sampler, "drop_last", False)) and self._entries_per_batch > 1

    def _num_real(self, running: Pass, number: int, rank: int) -> int:
        return len(self._block_of(running, number, rank).real_indices)

    def _block_of(self, running: Pass, number: int, rank: int) -> Block:
        """Return what the plan says of the `number`-th batch of a pass."""
        first = running.start + number * self._entries_per_batch
        stop = min(first + self._entries_per_batch, running.segment.num_batches)
        return running.segment.block(rank, first, stop)

    def mask_of(self, running: Pass, number: int) -> torch.Tensor:
        """Return which samples of the `number`-th batch of a pass are real."""
        block = self._block_of(running, number, self._plan_sampler.rank)
        if block.is_real is None:
            return torch.ones(len(block.indices), dtype=torch.bool)
        return torch.from_numpy(block.is_real)
