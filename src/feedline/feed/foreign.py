"""Adapters for loaders of other libraries.

Any iterable becomes a `Loader`: a list, torch's own DataLoader, a loader with a state of its own.
The adapter adds what is missing: to resume, it reads and drops the batches already used; without a
length, it reads one batch ahead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NoReturn

from feedline.errors import (
    CursorFormatError,
    FeedlineError,
    InvalidValueError,
    PlanMismatchError,
    check_integer,
)
from feedline.feed.adapters import adapters_in_use
from feedline.feed.foreign_batch import ForeignBatch
from feedline.feed.loader import Loader
from feedline.feed.peers import FoundPeers, Peers, as_peers
from feedline.feed.shown import ranks_shown
from feedline.feed.waits import TimedReads, WaitCounter
from feedline.words import several

_PROTOCOL = (
    *("epoch", "batch_size", "peers", "delivered", "num_batches_left", "set_epoch", "state_dict"),
    *("state_before", "load_state_dict", "close", "__iter__", "__len__"),
)
_END = object()

Start = Callable[[], AbstractContextManager[Any]]


def as_loader(
    loader: Any, *, peers: Peers | None = None, signals: tuple[int, ...] = ()
) -> Loader[Any]:
    """Return a `Loader` as it is, and an adapter around anything else that can be iterated over.

    Args:
        loader: What yields batches.
        peers: The processes of the run, for a loader that does not know them.
        signals: The signals that stop the run; worker processes of the loader ignore them.

    Examples:
        >>> loader = as_loader([[1, 2], [3]])
        >>> [(loader.epoch, loader.delivered.number, batch) for batch in loader]
        [(0, 0, [1, 2]), (0, 1, [3])]
        >>> loader.state_dict()["epoch"], loader.state_dict()["num_batches"]
        (1, 0)
    """
    start: Start | None = None
    for adapter in adapters_in_use():
        # The framework of a loader says in which context its workers are to be started.
        if start is None and hasattr(adapter, "prepare"):
            start = adapter.prepare(loader, signals)
    own = getattr(loader, "__dict__", {})
    # Asking for an attribute may cost or fail, so the type is asked.
    if all(name in own or hasattr(type(loader), name) for name in _PROTOCOL):
        found: Loader[Any] = loader
        return found
    return ForeignLoader(loader, peers=peers, start=start or nullcontext)


class ForeignLoader:
    """A `Loader` around a loader of another library.

    Its state is the epoch and the number of the next batch, with the loader's own state if it has
    one. A foreign loader cannot return an earlier state, so it is saved once for each group of
    batches.

    Args:
        loader: What yields batches.
        peers: The processes of the run, if its sampler does not know the ranks.
        start: Returns the context in which the loader's workers start.
    """

    def __init__(
        self, loader: Any, *, peers: Peers | None = None, start: Start = nullcontext
    ) -> None:
        self.loader = loader
        #: How many batches are taken together.
        self.group_size = 1
        #: The sizes that the number of batches depends on: a state with other sizes is refused.
        self.sizes: dict[str, int | None] = {}
        self._has_state = bool(_method(loader, "state_dict") and _method(loader, "load_state_dict"))
        self._peers = as_peers() if peers is None else peers
        self._start = start
        #: The current epoch; it changes when the next pass begins.
        self.epoch = 0
        #: Counts what the training loop waits for; nobody knows what the loader itself does then.
        self.waits = WaitCounter()
        # Batches of this epoch before this pass; None if they were of another size.
        self._num_before: int | None = 0
        self._batches: Iterator[Any] | None = None
        self._is_used = False
        self._leave_pass()

    def __repr__(self) -> str:
        place = f"{ranks_shown(self._peers)}, epoch {self.epoch}, batch {self._num_delivered:,}"
        return f"<ForeignLoader around {type(self.loader).__name__}: {place}>"

    def _leave_pass(self) -> None:
        self._batches = None
        self._num_batches: int | None = None
        self._num_delivered = 0
        self._has_ended = False
        #: The record of the latest batch of this pass; None before the first batch.
        self.delivered: ForeignBatch | None = None
        # What was read ahead: a batch, or the error in its place.
        self._ahead: list[Any] = []
        self._error: Exception | None = None
        # The loader's own state: before the group, and where it has gone further than its reader.
        self._group_state: Any = None
        self._held_state: Any = None

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch, if the loader knows it."""
        return _count(self.loader, "batch_size")

    @property
    def peers(self) -> Peers:
        """The ranks that share the data: those of its sampler, or else the processes of the run."""
        for part in self._parts():
            if size := _count(part, "num_replicas"):
                return FoundPeers(size, getattr(part, "rank", 0))
        return self._peers

    def _parts(self) -> list[Any]:
        """Return the objects that may know the epoch or the ranks."""
        batches = getattr(self.loader, "batch_sampler", None)
        inner = getattr(batches, "sampler", None)
        names = ("sampler", "dataset", "collate_fn")
        others = (getattr(self.loader, name, None) for name in names)
        return [batches, inner, *others]

    def __len__(self) -> int:
        """The number of batches of an epoch; `TypeError` if the loader has no length."""
        try:
            return len(self.loader)
        except FeedlineError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            # Streams define `__len__` only to say that they have none.
            raise TypeError(f"{type(self.loader).__name__} has no length: {error}") from error

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None

    def num_batches_left(self) -> int:
        """Return the number of batches in the next pass; `TypeError` if it is unknown."""
        if self._has_ended:
            return len(self)
        if self._num_before is None:
            raise TypeError(f"{type(self.loader).__name__} does not know how many batches are left")
        return max(len(self) - self._num_before, 0)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self.epoch:
            self._go_to(epoch, 0)
        self._tell_epoch()

    def _go_to(self, epoch: int, num_batches: int | None) -> None:
        self._leave_pass()
        self.epoch, self._num_before = epoch, num_batches

    def _tell_epoch(self) -> None:
        """Pass the epoch to the loader, or else to its sampler, dataset or collate function."""
        parts = [self.loader] if _method(self.loader, "set_epoch") else self._parts()
        for part in {id(part): part for part in parts}.values():
            if setter := _method(part, "set_epoch"):
                setter(self.epoch)

    # The pass.

    def __iter__(self) -> Iterator[Any]:
        if self._batches is not None:
            self._go_to(self.epoch + self._has_ended, 0)
        self._tell_epoch()
        is_known = self._length() is not None and self._num_before is not None
        self._num_batches = self.num_batches_left() if is_known else None
        with self._start():
            batches = iter(self.loader)
        if not self._has_state and self._num_before:
            num_skipped = sum(1 for _ in islice(batches, self._num_before))
            if num_skipped < self._num_before:
                self._refuse_shortened(self._num_before, num_skipped)
        self._batches = batches
        self._has_ended = self._num_batches == 0
        return self._delivering(batches)

    def _delivering(self, batches: Iterator[Any]) -> Iterator[Any]:
        reads = TimedReads(batches, self.waits)
        while not self._has_ended and self._batches is batches:
            if self._has_state and self._num_delivered % self.group_size == 0:
                self._group_state = self._own_state()
            batch = self._taken(reads)
            if batch is _END:
                self._end()
                if batches is self.loader and self._is_used and not self._num_delivered:
                    raise InvalidValueError(
                        f"dataloader={type(self.loader).__name__} is an iterator with no batches "
                        f"left for epoch {self.epoch}; use a loader that can be iterated again, or "
                        "num_epochs=1"
                    )
                return
            self._is_used = True
            self.delivered = ForeignBatch(self._num_delivered, batch, self._peers)
            self._num_delivered += 1
            if self._num_delivered == self._num_batches:
                self._has_ended = True
                if self._has_state:
                    # The loader sees the end of its pass too; its state may depend on it.
                    next(batches, None)
            yield batch

    def _taken(self, reads: Iterator[Any]) -> Any:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ahead:
            self._held_state = None
            return self._ahead.pop()
        try:
            return next(reads, _END)
        except BaseException:
            if self._num_delivered % self.group_size == 0:
                self._held_state = self._group_state
            raise

    def _end(self) -> None:
        self._has_ended = True
        if self._num_batches is not None:
            warnings.warn(
                f"dataloader={type(self.loader).__name__} ended after "
                f"{several(self._num_delivered, 'batch', 'batches')}, but its length is "
                f"{self._num_batches}; other ranks may wait forever; correct its __len__",
                RuntimeWarning,
                stacklevel=4,
            )

    @property
    def is_last(self) -> bool:
        """Whether the latest batch is the last; without a length, this reads one batch ahead."""
        is_known = self._num_batches is not None or self._ahead or self._error
        if self._has_ended or is_known or self._batches is None:
            return self._has_ended
        if self._has_state:
            self._held_state = self.loader.state_dict()
        try:
            self._ahead = list(islice(TimedReads(self._batches, self.waits), 1))
        except Exception as error:
            # This is the next batch's; the latest one is sound.
            self._error = error
            return False
        if not self._ahead:
            self._has_ended, self._held_state = True, None
        return self._has_ended

    def close(self) -> None:
        """End the pass; the position is kept, and the loader stays open."""
        if self._batches is not None:
            self._held_state = self._own_state()
            self._batches = iter(())

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the next batch, and the loader's own state."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches, if they are one group."""
        num_batches = check_integer("num_batches", num_batches, 0, self._num_delivered)
        own = self._own_state(num_batches)
        if self._has_ended and not num_batches:
            return {"epoch": self.epoch + 1, "num_batches": 0, **self.sizes, "loader": own}
        if self._num_before is None:
            # In batches of several sizes; the loader's own state says where.
            return {"epoch": self.epoch, "num_batches": self._num_delivered, "loader": own}
        count = self._num_before + self._num_delivered - num_batches
        return {"epoch": self.epoch, "num_batches": count, **self.sizes, "loader": own}

    def _own_state(self, num_batches: int = 0) -> Any:
        if not self._has_state:
            return None
        if num_batches == 0:
            return self.loader.state_dict() if self._held_state is None else self._held_state
        since = (self._num_delivered - 1) % self.group_size + 1
        if num_batches != since:
            raise InvalidValueError(
                f"num_batches={num_batches} must be 0 or {since}, the start of the group: "
                f"{type(self.loader).__name__} cannot return other earlier states"
            )
        return self._group_state

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state; an error changes nothing."""
        if not isinstance(state_dict, Mapping) or not {"epoch", "num_batches"} <= state_dict.keys():
            raise CursorFormatError(
                f"state={state_dict!r:.80} must be a mapping with the keys 'epoch' and "
                "'num_batches'; pass what state_dict() returned"
            )
        epoch = check_integer("epoch", state_dict["epoch"], 0)
        count = check_integer("num_batches", state_dict["num_batches"], 0)
        own = state_dict.get("loader")
        then = {name: state_dict.get(name) for name in self.sizes}
        if count and not self._has_state and then != self.sizes:
            saved, now = (", ".join(f"{n}={v}" for n, v in s.items()) for s in (then, self.sizes))
            raise PlanMismatchError(
                f"the state was saved with {saved}, but now it is {now}; this loader cannot resume "
                "mid-epoch with other sizes; use the same sizes, or one of Feedline's loaders",
                {name: (then[name], size) for name, size in self.sizes.items()},
            )
        random = [type(part).__name__ for part in self._parts() if _draws_anew(part)]
        if count and not self._has_state and random:
            raise PlanMismatchError(
                f"the state was saved after {several(count, 'batch', 'batches')}, but {random[0]} "
                "draws another order in each process, so some samples would be lost and others "
                "repeated; use one of Feedline's loaders, or a state from the end of an epoch",
                {"sampler": (count, random[0])},
            )
        if isinstance(own, Mapping) and "cursor" in own and (count or self._has_state):
            raise PlanMismatchError(
                "the state was saved with one of Feedline's loaders, and "
                f"{type(self.loader).__name__} cannot resume there; use the same loader, or a "
                "state from the end of an epoch without it",
                {"dataloader": ("feedline", type(self.loader).__name__)},
            )
        if count and self._has_state and own is None:
            raise PlanMismatchError(
                f"the state was saved after {several(count, 'batch', 'batches')} of a loader "
                f"without a state, and {type(self.loader).__name__} cannot resume there; use the "
                "same loader, or a state from the end of an epoch",
                {"dataloader": (None, type(self.loader).__name__)},
            )
        length = self._length()
        if count and not self._has_state and length is not None and count >= length:
            self._refuse_shortened(count, length)
        if self._has_state and own is not None:
            self.loader.load_state_dict(own)
        self._go_to(epoch, None if self._has_state and then != self.sizes else count)

    def skip_batches(self, num_batches: int, after: int = 0, *, on_load: bool = False) -> NoReturn:
        """Raise an error: which samples these would be on other ranks is not known."""
        raise InvalidValueError(
            f"num_batches={num_batches!r:.80} cannot be skipped: {type(self.loader).__name__} "
            "has no plan, so nobody knows which samples these are; use a loader of Feedline over a "
            "store or a map-style dataset"
        )

    def _refuse_shortened(self, count: int, length: int) -> NoReturn:
        raise PlanMismatchError(
            f"the state was saved after {several(count, 'batch', 'batches')} of an epoch, but "
            f"{type(self.loader).__name__} has {length} now; use the same data and batch size as "
            "when it was saved, or a state from the end of an epoch",
            {"num_batches": (count, length)},
        )


def _method(owner: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(owner, name, None)
    return found if callable(found) and not isinstance(owner, Mapping) else None


def _draws_anew(part: Any) -> bool:
    """Return whether a torch sampler draws an order that cannot be repeated."""
    kinds = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
    return type(part).__module__.startswith("torch.") and type(part).__name__ in kinds


def _count(owner: Any, name: str) -> int | None:
    """Return a count attribute of an object, if it has one."""
    found = getattr(owner, name, None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
