"""A loader over an iterable dataset that has a state.

The state of the dataset travels with each batch, from wherever it is read to the training loop, so
the loader's state is that of the last batch that the loop received. All ranks deliver equally many
batches: before each one they ask each other whether any has run out.
"""

from __future__ import annotations

import json
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn, Self

from feedline.errors import (
    DesyncError,
    EmptyEpochError,
    InvalidValueError,
    check_choice,
    check_integer,
)
from feedline.feed.foreign_batch import ForeignBatch
from feedline.feed.guard import Guard
from feedline.feed.iterable_pass import IterablePass
from feedline.feed.iterable_place import Place, place_from_state, place_to_dict
from feedline.feed.iterables import check_resumable, check_split
from feedline.feed.peers import Peers, as_peers
from feedline.feed.shown import ranks_shown
from feedline.feed.streams import Snapped
from feedline.feed.waits import WaitCounter
from feedline.words import several

_TAILS = ("drop", "exact")
# How many earlier states are kept, at least.
_NUM_KEPT = 16


class IterableLoader(ABC):
    """A `Loader` over an iterable dataset: all that the protocol asks, but for the batches.

    It has no length. Its state differs from rank to rank, and loads on the same rank with the same
    numbers of ranks and workers; at the end of an epoch, on any.

    Args:
        dataset: The dataset, with `state_dict` and `load_state_dict`, or an iterator that has them.
        batch_size: The number of samples in a batch; None if the dataset yields batches.
        drop_last: Drop an incomplete last batch, of each worker.
        num_readers: The number of copies of the dataset that are read in turn.
        tail: What to do when a rank runs out before the others: `"drop"` ends the epoch on all
            ranks, with a warning; `"exact"` raises an error on all.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks.
        desync_guard: Compare the ranks before each epoch, and agree on its end.
        desync_timeout: Seconds that the guard waits for the other ranks.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        num_readers: int,
        tail: str | None,
        process_group: Any = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        check_resumable(dataset, num_readers)
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
        self._data = dataset
        self._num_samples = batch_size
        self._drop_last = drop_last
        self._tail = check_choice("tail", "drop" if tail is None else tail, _TAILS)
        self._peers = as_peers(peers, process_group=process_group)
        self._guard = Guard(desync_guard, desync_timeout)
        self._place = Place.start(0, num_readers)
        # Whether the next pass begins at the place, instead of at the start of its epoch.
        self._is_loaded = False
        self._earlier: deque[Place] = deque()
        self._running: weakref.ref[IterablePass] | None = None
        self._num_delivered = 0
        #: How many batches a step of the run takes; as many earlier states are kept.
        self.group_size = 1
        #: Counts what the training loop waits for.
        self.waits = WaitCounter()
        #: The record of the latest batch of this pass; None before the first batch.
        self.delivered: ForeignBatch | None = None

    def __repr__(self) -> str:
        place = f"epoch {self.epoch}, batch {self._place.num_batches:,}"
        name = type(self._data).__name__
        return f"<{type(self).__name__} of {name}: {ranks_shown(self._peers)}, {place}>"

    @property
    def epoch(self) -> int:
        """The current epoch; it changes when the next pass begins."""
        return self._place.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass: the current one, or the next one if it has ended."""
        return self.epoch + self._place.has_ended

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch on one rank; None if the dataset makes batches."""
        return self._num_samples

    @property
    def peers(self) -> Peers:
        """The ranks that share the data."""
        return self._peers

    def __len__(self) -> int:
        """Raise `TypeError`: nobody knows where an iterable ends before it does."""
        raise TypeError(f"{type(self._data).__name__} is iterable and has no number of batches")

    def num_batches_left(self) -> int:
        """Raise `TypeError`, as `len` does."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self.epoch:
            self._go_to(Place.start(epoch, self._num_readers), is_loaded=False)

    @property
    def _num_readers(self) -> int:
        return len(self._place.readers)

    def _go_to(self, place: Place, *, is_loaded: bool) -> None:
        self._place, self._is_loaded = place, is_loaded
        self._running = None
        self._earlier.clear()
        self._num_delivered, self.delivered = 0, None

    # The pass.

    def __iter__(self) -> Iterator[Any]:
        place = self._place
        if place.has_ended:
            place = Place.start(place.epoch + 1, self._num_readers)
        elif not self._is_loaded:
            place = Place.start(place.epoch, self._num_readers)
        self._compare(place)
        self._go_to(place, is_loaded=False)
        running = IterablePass(self, self._items(place))
        self._running = weakref.ref(running)
        return running

    @abstractmethod
    def _items(self, place: Place) -> Iterator[Snapped]:
        """Return what the readers send, from a place on."""

    def _compare(self, place: Place) -> None:
        """Raise unless the ranks can agree on the end of a pass, and begin it at one place."""
        peers = self._peers
        check_split(self._data, peers.rank, peers.world_size)
        reached: Peers = getattr(peers, "reached", peers)
        if self._guard.is_on and reached.world_size != peers.world_size:
            raise InvalidValueError(
                f"peers={peers!r:.80} cannot talk to each other, so ranks could not agree on where "
                "an iterable ends, and the longer ones would wait forever; use a process group, or "
                "desync_guard=False if all ranks have equally many batches"
            )
        describe = {
            "dataset": type(self._data).__name__,
            "world_size": peers.world_size,
            "batch_size": self._num_samples,
            "num_workers": self._num_readers,
            "epoch": place.epoch,
            "num_batches": place.num_batches,
            "tail": self._tail,
        }
        self._guard.compare(peers, lambda: describe)

    def agreed(self, told: int) -> int:
        """Return the largest of what the ranks tell: 0 has a batch, 1 has ended, 2 has failed."""
        is_shared = self._guard.is_on and self._peers.world_size > 1
        return self._peers.maximum(told) if is_shared else told

    def end_together(self, told: int) -> None:
        """End the epoch on all ranks; if some have run out before others, say so."""
        ended = [told]
        if self._guard.is_on and self._peers.world_size > 1:
            ended = self._peers.gather(told, self._guard.timeout)
        if not self._place.num_batches:
            ranks = [rank for rank, mark in enumerate(ended) if mark]
            raise EmptyEpochError(
                f"num_batches=0 must be at least 1: {type(self._data).__name__} has no batch for "
                f"rank {_listed(ranks)} of {self._peers.world_size} in epoch {self.epoch}; use "
                "more samples or fewer ranks, or drop_last=False"
            )
        if not all(ended):
            self._say_unequal([bool(mark) for mark in ended])
        self._place = replace(self._place, has_ended=True)

    def _say_unequal(self, has_ended: list[bool]) -> None:
        first = [rank for rank, mark in enumerate(has_ended) if mark]
        count = several(self._place.num_batches, "batch", "batches")
        ranks = f"rank {_listed(first)} of {len(has_ended)}"
        found = f"{ranks} has no more samples after {count}, others have"
        if self._tail == "exact":
            raise DesyncError(
                f'{found}, and tail is "exact"; divide the samples equally, or use tail="drop", '
                "which drops the rest",
                {"has_ended": has_ended},
            )
        warnings.warn(
            f"{found}: epoch {self.epoch} ends on all ranks, and their rest is dropped; divide the "
            "samples equally, or pack them with feedline.pack",
            RuntimeWarning,
            stacklevel=5,
        )

    def is_current(self, running: IterablePass) -> bool:
        """Whether a pass is the latest one, and nothing has moved the loader since."""
        return self._running is not None and self._running() is running

    def note(self, item: Snapped) -> None:
        """Record what a reader has sent without a batch."""
        self._place = self._place.after(item)

    def deliver(self, item: Snapped) -> Any:
        """Record that the loop receives a batch, and return it."""
        self._earlier.append(self._place)
        while len(self._earlier) > max(self.group_size, _NUM_KEPT):
            self._earlier.popleft()
        self._place = self._place.after(item)
        self.delivered = ForeignBatch(self._num_delivered, item.batch, self._peers)
        self._num_delivered += 1
        return item.batch

    @property
    def is_last(self) -> bool:
        """Whether the latest batch is the last; this reads one batch ahead, on all ranks."""
        running = None if self._running is None else self._running()
        if running is not None and not self._place.has_ended:
            running.look()
        return self._place.has_ended

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank: what the training loop has received."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches that the training loop received."""
        return self._as_state(self._told(self._place_before(num_batches)))

    def gather_state_dict(self) -> dict[str, Any]:
        """Return a state of all ranks, the same on every rank; all ranks must call it together.

        It loads on each of them, so that a checkpoint may be written by one rank alone.
        """
        told = self._told(self._place)
        ranks = self._peers.gather(told, self._guard.timeout)
        if len(ranks) != self._peers.world_size:
            self._refuse_unreached()
        return self._as_state({"ranks": ranks})

    def _refuse_unreached(self) -> NoReturn:
        raise InvalidValueError(
            f"peers={self._peers!r:.80} cannot talk to each other; save state_dict() on each rank"
        )

    def _told(self, place: Place) -> dict[str, Any]:
        name = type(self._data).__name__
        return place_to_dict(place, name, self._peers.rank, self._peers.world_size)

    def _as_state(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"epoch": self.epoch, "cursor": json.dumps(told, separators=(",", ":"))}

    def _place_before(self, num_batches: int) -> Place:
        most = min(self._num_delivered, len(self._earlier))
        num_batches = check_integer(
            *("num_batches", num_batches, 0, most),
            remedy=f"earlier states of {type(self._data).__name__} are not kept",
        )
        return self._place if num_batches == 0 else self._earlier[-num_batches]

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state of this rank, or of all; an error changes nothing."""
        name, peers = type(self._data).__name__, self._peers
        sizes = peers.rank, peers.world_size, self._num_readers
        self._go_to(place_from_state(state_dict, name, *sizes), is_loaded=True)

    def skip_batches(self, num_batches: int, after: int = 0, *, on_load: bool = False) -> NoReturn:
        """Raise an error: which samples these would be on other ranks is not known."""
        raise InvalidValueError(
            f"num_batches={num_batches!r:.80} cannot be skipped: {type(self._data).__name__} "
            "has no plan, so nobody knows which samples these are; use a loader of Feedline over a "
            "store or a map-style dataset"
        )

    def close(self) -> None:
        """End the pass and its workers; the position is kept."""
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy resumes at the same place, with its own workers and batches.
        is_loaded = self._is_loaded or self._running is not None
        fresh: dict[str, Any] = {
            "_running": None,
            "_earlier": deque(),
            "delivered": None,
            "_num_delivered": 0,
        }
        return {**self.__dict__, **fresh, "_is_loaded": is_loaded}


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
