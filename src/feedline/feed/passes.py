"""A pass over the rest of an epoch, and the progress of the training loop in it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from feedline.errors import InvalidValueError
from feedline.feed.blocks import BlocksAhead
from feedline.feed.shown import pass_shown
from feedline.feed.skips import Skips
from feedline.feed.waits import WaitCounter
from feedline.plan import Block, Segment

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Batching:
    """How many entries make a batch, and whether an incomplete last one is dropped.

    Args:
        num_entries: The number of entries of a batch.
        drop_last: Whether an incomplete last batch is dropped.
    """

    num_entries: int = 1
    drop_last: bool = False

    def num_batches(self, num_entries: int) -> int:
        """Return the number of batches that `num_entries` make.

        Examples:
            >>> Batching(4).num_batches(10), Batching(4, drop_last=True).num_batches(10)
            (3, 2)
        """
        if self.drop_last:
            return num_entries // self.num_entries
        return -(-num_entries // self.num_entries)


SINGLE = Batching()


class Pass:
    """A pass over the rest of an epoch, and its progress.

    Whoever yields batches holds this, and not the iterator that makes them: an iterator that the
    training loop drops must be free to end its threads and workers.

    Args:
        segment: What is left of the epoch.
        rank: The rank that walks.
        batching: How entries make batches.
    """

    def __init__(self, segment: Segment, rank: int, batching: Batching) -> None:
        self.segment = segment
        self.rank = rank
        self.batching = batching
        #: The entry of the segment that the pass began at.
        self.start = segment.num_done
        #: How many batches it has.
        self.num_batches = batching.num_batches(segment.num_batches - segment.num_done)
        #: Whether the position was moved since, so that this pass is no longer counted.
        self.is_stale = False
        #: What was skipped in the latest batch; None where no sample can be.
        self.skips: Skips = None
        #: Where the time that the loop waits is counted; a loader's pass uses the loader's.
        self.waits = WaitCounter()
        self._num_handed_out = 0
        self._live: Iterator[Any] = iter(())
        self._planned: BlocksAhead | None = None

    def __repr__(self) -> str:
        return f"<Pass: {pass_shown(self)}>"

    def deliver(self, num_batches: int = 1, skips: Skips = None) -> None:
        """Record that the training loop receives its next batch, or several."""
        if self.is_stale:
            raise InvalidValueError(
                "this iterator belongs to an earlier pass, whose batches are no longer counted: "
                "set_epoch, load_state_dict or another iterator has moved the loader since; use "
                "the latest iterator, or one loader for each loop"
            )
        self._num_handed_out += num_batches
        self.skips = skips

    def hand_out(self, entries: list[Entry]) -> Iterator[Entry]:
        """Return an iterator that delivers a batch at each step."""
        live = iter(entries)
        self._live = live
        self._num_handed_out += len(entries)
        return live

    @property
    def num_delivered(self) -> int:
        """The number of batches of this pass that the training loop has received."""
        return self._num_handed_out - operator.length_hint(self._live)

    @property
    def has_ended(self) -> bool:
        """Whether the training loop has received all batches."""
        return self.num_delivered >= self.num_batches

    def entries_before(self, number: int) -> int:
        """Return the number of entries of the segment before a batch of this pass."""
        return min(self.start + number * self.batching.num_entries, self.segment.num_batches)

    @property
    def num_left_out(self) -> int:
        """The number of samples of the epoch that no rank gets after this pass."""
        return self.segment.num_left_after(self.entries_before(self.num_batches))

    def entries_of(self, number: int) -> tuple[int, int]:
        """Return the first entry of a batch of this pass, and the entry after its last."""
        return self.entries_before(number), self.entries_before(number + 1)

    def planned(self, number: int) -> Block:
        """Return the planned samples of a batch of this pass; asking in order is cheap."""
        if self._planned is None:
            self._planned = BlocksAhead(self.segment, self.rank)
        return self._planned.part(*self.entries_of(number))

    def ordinal(self, number: int) -> int:
        """Return a number for a batch that grows during the run, also across resizes."""
        before = sum(past.num_batches for past in self.segment.history)
        return self.segment.epoch * 2**40 + before + self.entries_of(number)[0]
