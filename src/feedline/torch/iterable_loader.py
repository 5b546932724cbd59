"""torch's DataLoader over an iterable dataset that has a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_convert, get_worker_info

from feedline.errors import check_callable, check_flag, check_integer
from feedline.feed import IterableLoader as StateLoader
from feedline.feed import Peers
from feedline.feed.iterable_place import Place
from feedline.feed.iterables import fresh_copy, refuse_argument
from feedline.feed.streams import Snapped, snapped_batches
from feedline.feed.waits import TimedReads
from feedline.torch.device.link import Link
from feedline.torch.device.moving import MovedAhead
from feedline.torch.in_lightning import check_caller, original_of, remember
from feedline.torch.in_trainers import InTrainers
from feedline.torch.loader_arguments import MAX_WORKERS, as_is, collate_samples
from feedline.torch.shield import Shielded, born_shielded
from feedline.torch.worker_errors import raise_if_killed, worker_errors

Item = TypeVar("Item", covariant=True)


class IterableLoader(InTrainers, StateLoader, TorchDataLoader[Item]):
    """torch's DataLoader over an iterable dataset with a state; see `docs/iterables.md`.

    `feedline.torch.DataLoader` becomes this for such a dataset. The state counts the batches that
    the loop has received, however far the workers have read. It is exact on the same rank, with
    the same numbers of ranks and workers, and with any batch size; at the end of an epoch, on any.

    Args:
        dataset: An iterable dataset with `state_dict` and `load_state_dict`, or one whose iterator
            has them. It divides its samples over ranks and workers itself.
        batch_size: The number of samples in a batch; None if the dataset yields batches.
        num_workers: The number of processes that read; each has a copy of the dataset, and their
            batches come in turn. 0 reads in this process.
        collate_fn: Makes a batch of samples.
        pin_memory: Copy batches into pinned memory before they are delivered.
        drop_last: Drop an incomplete last batch, of each worker.
        timeout: Seconds to wait for a worker; 0 means no limit.
        worker_init_fn: Called in each worker at its start, with the worker's number.
        multiprocessing_context: How workers are started, such as `"spawn"`.
        prefetch_factor: The number of batches that each worker prefetches, by default 2.
        persistent_workers: Keep the workers from one epoch to the next.
        pin_memory_device: The device that memory is pinned for.
        device: The device that batches are delivered on, such as `"cuda"`.
        tail: What to do when a rank runs out before the others: `"drop"` (the default) ends the
            epoch on all ranks, with a warning; `"exact"` raises an error on all.
        process_group: The group of ranks that get different data; by default all ranks.
        peers: The ranks.
        desync_guard: Compare the ranks before each epoch, and agree on its end. Without it, all
            ranks must have equally many batches.
        desync_timeout: Seconds that the guard waits for the other ranks.
        sampler: Must be None: the dataset decides which samples come. Trainers may say so.
        batch_sampler: Must be None too.

    Examples:
        >>> class Count(IterableDataset):
        ...     at = 0
        ...     def __iter__(self):
        ...         while self.at < 5:
        ...             self.at += 1
        ...             yield self.at
        ...     def state_dict(self):
        ...         return {"at": self.at}
        ...     def load_state_dict(self, state):
        ...         self.at = state["at"]
        >>> loader = IterableLoader(Count(), batch_size=2)
        >>> next(iter(loader))
        tensor([1, 2])
        >>> resumed = IterableLoader(Count(), batch_size=3)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> list(resumed)
        [tensor([3, 4, 5])]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        device: torch.device | str | int | None = None,
        tail: str | None = None,
        process_group: Any = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
        sampler: None = None,
        batch_sampler: None = None,
    ) -> None:
        if (made := original_of(dataset, None, None)) is not None:
            self.__dict__.update(made.__getstate__())
            return
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None:
                refuse_argument(name, value)
        check_callable("collate_fn", collate_fn)
        num_workers = check_integer("num_workers", num_workers, 0, MAX_WORKERS)
        drop_last = check_flag("drop_last", drop_last)
        StateLoader.__init__(
            self,
            dataset,
            batch_size=batch_size,
            drop_last=drop_last,
            num_readers=max(num_workers, 1),
            tail=tail,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        if collate_fn is None:
            collate_fn = default_convert if batch_size is None else collate_samples
        kept = bool(persistent_workers)
        self._readers = Readers(dataset, self._num_samples, drop_last, collate_fn, kept)
        TorchDataLoader.__init__(
            self,
            self._readers,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=as_is,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=Shielded.around(worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self._link = None if device is None else Link(device)
        remember(self, self._readers)

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch on one rank; None if the dataset makes batches."""
        return self._num_samples

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        # torch sets it when it is made, to None: the readers make the batches.
        pass

    def __len__(self) -> int:
        """Raise `TypeError`: nobody knows where an iterable ends before it does."""
        return StateLoader.__len__(self)

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state of this rank, or of all; an error changes nothing."""
        check_caller(state_dict)
        super().load_state_dict(state_dict)

    def _items(self, place: Place) -> Iterator[Snapped]:
        if place.num_batches:
            # Persistent workers have begun before this place was loaded.
            self._iterator = None
        self._readers.begin(place, are_new=self._iterator is None)
        with born_shielded(self), worker_errors(self._iterator):
            batches: Iterator[Any] = TorchDataLoader.__iter__(self)
        items: Iterator[Any] = TimedReads(_Watched(batches), self.waits)
        if self._link is not None:
            items = MovedAhead(items, self._link, ahead=1, waits=self.waits)
        return items

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_iterator": None}

    def close(self) -> None:
        """End the pass and its workers; the position is kept."""
        super().close()
        # torch ends the workers of an iterator when it is dropped.
        self._iterator = None


class _Watched(Iterator[Any]):
    """What torch's workers send, with one clear error if one was killed."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            raise_if_killed(self._batches, error)
            raise


@dataclass(eq=False)
class Readers(IterableDataset[Snapped]):
    """The readers of a dataset: one in each worker, or one in this process.

    Args:
        dataset: The dataset, as it was given.
        batch_size: The number of samples in a batch; None if the dataset yields batches.
        drop_last: Drop an incomplete last batch.
        collate: Makes a batch of samples.
        are_kept: Whether workers make several passes.
    """

    dataset: Any
    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any]
    are_kept: bool

    def __post_init__(self) -> None:
        self._place: Place | None = None
        # Shared with workers: the number of the pass, and its epoch.
        self._words = torch.zeros(2, dtype=torch.int64)
        self._first_pass = 0

    def begin(self, place: Place, *, are_new: bool) -> None:
        """Let the pass that comes next begin at a place.

        Args:
            place: The place. Workers that are there already can only begin an epoch.
            are_new: Whether workers are started for it.
        """
        self._place = place
        if are_new:
            self._words = torch.zeros(2, dtype=torch.int64).share_memory_()
            self._first_pass = 1
        self._words[1] = place.epoch
        self._words[0] += 1

    def __iter__(self) -> Iterator[Snapped]:
        place, worker = self._place, get_worker_info()
        reader, num_readers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        assert place is not None
        if int(self._words[0]) != self._first_pass and worker is not None:
            place = Place.start(int(self._words[1]), num_readers)
        is_used_again = worker is None or self.are_kept
        return snapped_batches(
            fresh_copy(self.dataset) if is_used_again else self.dataset,
            reader=reader,
            saved=place.readers[reader],
            epoch=place.epoch,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate=self.collate,
            waits_a_turn=reader < place.next_reader,
        )
