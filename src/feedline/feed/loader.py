"""The loader protocol, and the record of a delivered batch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.feed.adapters import recorder_for
from feedline.feed.logged import LoggedBatches, Recorder, note_skips
from feedline.feed.narrated import NarratedBatches, is_heard
from feedline.feed.passes import SINGLE, Batching, Pass
from feedline.feed.peers import Peers
from feedline.feed.position import Position
from feedline.feed.shown import loader_shown, pass_shown
from feedline.feed.skips import Skips, ids_in, marks_in
from feedline.feed.waits import WaitCounter
from feedline.lazy import lazy
from feedline.plan import Cursor

Ids = NDArray[np.int64]
Marks = NDArray[np.bool_]
Item = TypeVar("Item", covariant=True)
#: Where a loader writes what it delivers: a folder, a recorder, or nowhere.
Log = str | os.PathLike[str] | Recorder | None


class Delivered(Protocol):
    """The record of a batch that the training loop has received."""

    @property
    def number(self) -> int:
        """The number of the batch in its pass, from zero."""

    @property
    def ids(self) -> Ids | None:
        """Its samples; None for a foreign loader."""

    @property
    def is_real(self) -> Marks | None:
        """Which samples are real, not padding; None means all."""

    @property
    def bucket(self) -> int | None:
        """The number of its bucket, if the plan has buckets."""

    @property
    def num_real(self) -> int | None:
        """The number of real samples; None if unknown."""

    @property
    def num_real_of_all_ranks(self) -> int | None:
        """The number of real samples in this batch on all ranks; None if unknown."""


@runtime_checkable
class Loader(Protocol[Item]):
    """The protocol of everything that yields batches.

    The state counts the batches that the training loop received. It is the same on every rank, and
    loads on any number of ranks that the plan allows. A wrapper is a loader that holds another.

    A loader may also have `waits`, a `WaitCounter` of what the training loop waits for. Without it,
    all waiting counts as reading.
    """

    @property
    def epoch(self) -> int:
        """The current epoch; it changes when the next pass begins."""

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch on one rank; None if batches differ."""

    @property
    def peers(self) -> Peers:
        """The ranks that share the data."""

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch of this pass; None before the first batch."""

    def __iter__(self) -> Iterator[Item]:
        """Begin a pass: from the loaded state, or over this epoch, or the next one if this has
        ended."""

    def __len__(self) -> int:
        """The number of batches in a whole epoch, with the current ranks and batch size."""

    def num_batches_left(self) -> int:
        """Return the number of batches in the next pass."""

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loop."""

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches that the training loop received."""

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state; an error changes nothing."""

    def skip_batches(self, num_batches: int, after: int = 0, *, on_load: bool = False) -> None:
        """Skip batches that follow, on every rank alike; the state contains the skip.

        The next pass resumes where the training loop is, without them. `after` is the number of
        batches that come before these. With `on_load`, they are counted from the next state that
        is loaded.
        """

    def close(self) -> None:
        """Release threads, workers and files."""


@contextmanager
def _unchanged_by_errors(position: Position) -> Iterator[None]:
    """Put a position back, with its pass, if what is done with it raises an error."""
    before, running = dict(vars(position)), position.current
    try:
        yield
    except BaseException:
        vars(position).update(before)
        if running is not None:
            running.is_stale = False
        raise


def return_to(loader: Loader[Any], state_dict: Mapping[str, Any]) -> None:
    """Let a loader go to a state of its own run, which is no resume from a saved one."""
    # Only loaders with a plan can have skips that wait for a saved state.
    go = getattr(loader, "return_to", loader.load_state_dict)
    go(state_dict)


class PlannedBatch:
    """The record of a batch whose samples the plan says, looked up when it is asked for.

    Args:
        running: The pass that it belongs to.
        number: Which batch of the pass it is, from zero.
        asked: The samples that were asked for, where these are known.
        skips: What was skipped in it; None where no sample can be.
    """

    def __init__(self, running: Pass, number: int, asked: Any = None, skips: Skips = None) -> None:
        self.number = number
        self._running = running
        self._asked = asked
        self._skips = skips

    def __repr__(self) -> str:
        return f"<PlannedBatch {self.number:,}: {pass_shown(self._running)}>"

    @lazy
    def ids(self) -> Ids:
        """The samples of the batch: those that were requested, or else those in the plan."""
        if self._asked is not None:
            return np.atleast_1d(np.asarray(self._asked, dtype=np.int64))
        return ids_in(self._running.planned(self.number), self._skips)

    @lazy
    def is_real(self) -> Marks | None:
        """Which samples are real, not padding; None means all."""
        if not self._running.segment.num_padded and not self._skips:
            return None
        return marks_in(self._running.planned(self.number), self._skips)

    @property
    def skipped_ids(self) -> list[int]:
        """The real samples that failed, in whose places others stand that are not real."""
        return [skipped.sample for skipped in self._skips or () if skipped.is_real]

    @property
    def bucket(self) -> int | None:
        """The number of its bucket, if the plan has buckets."""
        buckets = self._running.planned(self.number).buckets
        return None if buckets is None else int(buckets[0])

    @property
    def num_real(self) -> int:
        """The number of real samples."""
        return len(self.ids) if self.is_real is None else int(self.is_real.sum())

    @property
    def num_real_of_all_ranks(self) -> int | None:
        """The number of real samples in this batch on all ranks; None if they may skip some."""
        if self._skips is not None and self._running.segment.world_size > 1:
            return None
        if self._skips is not None:
            return self.num_real
        return self._running.segment.num_real(*self._running.entries_of(self.number))


class PlannedLoader(ABC):
    """A loader that has a `Position`: all that the protocol asks, but for the batches.

    Args:
        position: Where the training loop is; None if a subclass says it.
        batching: How entries of the position make batches.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder.
    """

    def __init__(
        self, position: Position | None, batching: Batching = SINGLE, log: Log = None
    ) -> None:
        self._position = position
        self.batching = batching
        #: The recorder of every batch, if any.
        self.log: Recorder | None = recorder_for(log, self)
        #: Returns the number of the step that a batch is for; a clock sets it.
        self.log_step: Callable[[], int] | None = None
        #: Counts what the training loop waits for.
        self.waits = WaitCounter()
        self._is_log_begun = self._is_resumed = False
        self._skips_on_load: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return loader_shown(self, self._position, self.batching, self._data_shown())

    def _data_shown(self) -> str:
        """Return what the batches are read from, for people."""
        return ""

    @property
    def position(self) -> Position:
        """The position of the training loop."""
        assert self._position is not None
        return self._position

    @property
    def epoch(self) -> int:
        """The current epoch; it changes when the next pass begins."""
        return self.position.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass: the current one, or the next one if it has ended."""
        return self.epoch + self.position.has_ended(self.batching)

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch on one rank; None if batches differ."""
        if not self.position.plan.has_equal_batches:
            return None
        return self.position.batch_size * self.batching.num_entries

    @property
    def peers(self) -> Peers:
        """The ranks that share the data."""
        return self.position.peers

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch of this pass; None before the first batch."""
        running = self.position.current
        if running is None or not running.num_delivered:
            return None
        return PlannedBatch(running, running.num_delivered - 1, self._asked(), running.skips)

    def _asked(self) -> Any:
        """Return the samples requested for the latest batch, if known."""
        return None

    def __len__(self) -> int:
        """The number of batches in a whole epoch, with the current ranks and batch size."""
        return self.position.num_batches(self.batching)

    def num_batches_left(self) -> int:
        """Return the number of batches in the next pass."""
        return self.position.num_batches_left(self.batching)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        self.position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the batches that the training loop has received."""
        return self.position.state_dict()

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches that the training loop received."""
        return self.position.state_before(num_batches)

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state; an error changes nothing."""
        if not self._skips_on_load:
            self.return_to(state_dict)
            return
        with _unchanged_by_errors(self.position):
            self._load_state(state_dict)
            for skip in self._skips_on_load:
                self._load_state(self.position.state_without(*skip, self.batching))
        self._skips_on_load = []
        self._is_resumed = True

    def return_to(self, state_dict: Mapping[str, Any], /) -> None:
        """Go to a state of this run; skips that wait for a saved one continue to wait."""
        self._load_state(state_dict)
        self._is_resumed = True

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.position.load_state_dict(state)

    def skip_batches(self, num_batches: int, after: int = 0, *, on_load: bool = False) -> None:
        """Skip batches that follow, on every rank alike; an error changes nothing.

        The next pass resumes where the training loop is, without them. The other batches stay as
        they are. The state contains the skip, and leaves out the same samples on any number of
        ranks.

        Args:
            num_batches: How many batches each rank skips; all must be in the current epoch.
            after: How many batches come before these.
            on_load: Skip them when the next state is loaded, and count from there: for trainers
                that load the state themselves. Of several such calls, each counts what those
                before it have left.
        """
        num_batches = check_integer("num_batches", num_batches, 1)
        after = check_integer("after", after, 0)
        if on_load:
            self._skips_on_load.append((num_batches, after))
        else:
            self.return_to(self.position.state_without(num_batches, after, self.batching))

    def __iter__(self) -> Iterator[Any]:
        is_resumed, self._is_resumed = self._is_resumed or self.position.is_loaded, False
        loaded = self.position.loaded
        running = self.position.begin(self.batching)
        running.waits = self.waits
        batches = self._batches(running)
        if is_heard():
            batches = NarratedBatches(batches, running, type(self).__name__)
        if self.log is None:
            return batches
        if is_resumed or not self._is_log_begun:
            self._is_log_begun = True
            fields = {"step": self._step_of(running)} if is_resumed else {}
            self.log.event("resume" if is_resumed else "start", **fields)
            if loaded is not None:
                self.note_skips(self.log, loaded, self._step_of(running))
        step_of = partial(self._step_of, running)
        end = {"num_dropped": running.num_left_out}
        return LoggedBatches(batches, self, self.log, running.num_batches, step_of, end)

    @abstractmethod
    def _batches(self, running: Pass) -> Iterator[Any]:
        """Return an iterator that yields the batches of a pass, and delivers each of them."""

    def note_skips(self, recorder: Recorder, loaded: Cursor, step: int) -> None:
        """Record the samples that a state skips; one rank does it for all of them.

        Args:
            recorder: The recorder.
            loaded: The state that a pass has begun at.
            step: The number of the step that it resumes at.
        """
        if self.peers.rank == 0:
            note_skips(recorder, self.position.plan, loaded, step, self._ids)

    def _ids(self, indices: Ids) -> Ids:
        """Return the ids of samples of the plan, as they are logged."""
        return indices

    def _step_of(self, running: Pass) -> int:
        """Return the number of the step of the next batch, or of the latest one."""
        if self.log_step is not None:
            return self.log_step()
        return running.ordinal(max(running.num_delivered - 1, 0))

    def end_log(self) -> None:
        """Record that the run stops, if anything was recorded since it began."""
        if self.log is not None and self._is_log_begun:
            self.log.event("stop")
            self._is_log_begun = False

    def close(self) -> None:
        """Release threads, workers and files."""
        self.end_log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
