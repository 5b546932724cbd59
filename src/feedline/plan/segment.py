"""A segment: the part of an epoch with one world size and batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import CursorFormatError, InvalidValueError, check_integer
from feedline.plan.batches import Batch, Block, Place, every_nth
from feedline.plan.cursor import Cursor, PastSegment, check_past
from feedline.plan.deals import Deal, Remaining
from feedline.plan.draws import Draws
from feedline.plan.frozen import store, store_integers
from feedline.plan.orders import Indices
from feedline.plan.skipping import SkippingDeal, Spans, joined, num_left_after, shifted
from feedline.words import one_line, several

if TYPE_CHECKING:
    from feedline.plan.plan import Plan

_ENTRIES_AHEAD = 2**15


@one_line
@dataclass(frozen=True, kw_only=True)
class Segment:
    """What is left of an epoch at one world size and batch size.

    `num_done` is the number of its batches that were consumed before it was resumed; batches are
    numbered from the start of the segment.

    Args:
        plan: What decides the order.
        world_size: The number of ranks.
        batch_size: The number of samples of a batch on each of them.
        epoch: The number of the epoch.
        history: What was consumed of the epoch before, one entry for each world size and batch
            size.
        num_done: How many batches of this segment were consumed before it was resumed.
        skipped: Ranges of batches that no rank gets, as they are numbered without any skip.
        begun: What the history left, where that is known; by default it is computed.
    """

    plan: Plan
    world_size: int
    batch_size: int
    epoch: int = 0
    history: tuple[PastSegment, ...] = ()
    num_done: int = 0
    skipped: Spans = ()
    begun: InitVar[Any] = None
    #: What the segment began with.
    remaining: Remaining = field(init=False, repr=False, compare=False)
    deal: Deal = field(init=False, repr=False, compare=False)
    #: The number of samples that the segment began with.
    num_left: int = field(init=False, repr=False, compare=False)
    #: The number of batches of this segment, equal on every rank.
    num_batches: int = field(init=False, repr=False, compare=False)

    def __post_init__(self, begun: Remaining | None) -> None:
        store_integers(self, "epoch", "num_done", low=0)
        store_integers(self, "world_size", "batch_size", low=1, high=2**31)
        remaining = self._after_history() if begun is None else begun
        past = check_past((self.world_size, self.batch_size, self.num_done, self.skipped))
        deal = _dealt(remaining, past)
        store(self, skipped=past.skipped)
        store(self, num_left=remaining.num_left, num_batches=deal.num_batches)
        store(self, remaining=remaining, deal=deal)

    def _after_history(self) -> Remaining:
        """Return what is left of the epoch after the history, which is checked."""
        store(self, history=tuple(check_past(past) for past in self.history))
        remaining = self.plan.begin(self.epoch)
        for past in self.history:
            remaining = _dealt(remaining, past).after(past.num_batches)
        return remaining

    def resized(self, num_batches: int, *, world_size: int, batch_size: int) -> Segment:
        """Return the segment that a run resumes after `num_batches` of this one.

        The same as from a cursor, but nothing is computed from the history again.

        Examples:
            >>> from feedline.plan import SamplePlan, Shuffled
            >>> plan = SamplePlan(order=Shuffled(num_samples=1000))
            >>> first = plan.segment(world_size=4, batch_size=10)
            >>> resumed = plan.resume(first.cursor(5), world_size=2, batch_size=10)
            >>> first.resized(5, world_size=2, batch_size=10) == resumed
            True
        """
        num_batches = check_integer("num_batches", num_batches, 0, self.num_batches)
        sizes: dict[str, Any] = {"world_size": world_size, "batch_size": batch_size}
        if (world_size, batch_size) == (self.world_size, self.batch_size):
            return replace(self, num_done=num_batches, begun=self.remaining)
        history = self.history_after(num_batches)
        if history and history == self.history:
            # A segment without batches leaves no trace, so the one before it may go on.
            return self.plan.resume(self.cursor(0), **sizes)
        begun = self.after(num_batches) if history else self.remaining
        return replace(self, history=history, num_done=0, skipped=(), begun=begun, **sizes)

    def skipping(self, num_batches: int, start: int, stop: int) -> Segment:
        """Return this segment after `num_batches`, without its batches `[start, stop)`.

        The others stay as they are, and move up.

        Examples:
            >>> from feedline.plan import SamplePlan, Sequential
            >>> plan = SamplePlan(order=Sequential(num_samples=10))
            >>> segment = plan.segment(world_size=1, batch_size=2).skipping(1, 2, 4)
            >>> [batch.indices.tolist() for batch in segment.batches(rank=0)]
            [[2, 3], [8, 9]]
        """
        stop = check_integer("stop", stop, num_batches, self.num_batches)
        start = check_integer("start", start, num_batches, stop)
        left_out = [(part.start, part.stop) for part in shifted(self.skipped, range(start, stop))]
        skipped = joined((*self.skipped, *left_out))
        return replace(self, num_done=num_batches, skipped=skipped, begun=self.remaining)

    @property
    def num_dropped(self) -> int:
        """The number of samples that the tail policy drops."""
        return self.deal.num_dropped

    @property
    def num_padded(self) -> int:
        """The number of padded entries over all ranks."""
        return self.deal.num_padded

    def batch(self, rank: int, number: int) -> Batch:
        """Return one batch of one rank, by number."""
        number = check_integer("number", number, 0, self.num_batches - 1)
        return next(iter(self.block(rank, number, number + 1)))

    def block(self, rank: int, start: int, stop: int) -> Block:
        """Return batches `[start, stop)` of one rank, computed together."""
        rank = check_integer("rank", rank, 0, self.world_size - 1)
        stop = check_integer("stop", stop, 0, self.num_batches)
        start = check_integer("start", start, 0, stop)
        return self.deal.block(rank, start, stop)

    def picked(self, rank: int, numbers: range) -> tuple[Indices, Indices]:
        """Return the indices of batches `numbers` of one rank, end to end, and their bounds.

        For one of several workers, which does not need what the others read.
        """
        rank = check_integer("rank", rank, 0, self.world_size - 1)
        if not numbers:
            return np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        check_integer("numbers", numbers[-1], 0, self.num_batches - 1)
        if hasattr(self.deal, "picked"):
            found: tuple[Indices, Indices] = self.deal.picked(rank, numbers)
            return found
        block = self.block(rank, numbers[0], numbers[-1] + 1)
        bounds, chosen = every_nth(block.bounds, numbers.step)
        return block.indices[chosen], bounds

    def draws(self, rank: int, numbers: range) -> Draws:
        """Return the draws of batches `numbers` of one rank, end to end as from `picked`."""
        rank = check_integer("rank", rank, 0, self.world_size - 1)
        if not numbers:
            return Draws.once(0)
        check_integer("numbers", numbers[-1], 0, self.num_batches - 1)
        if not hasattr(self.deal, "draws"):
            raise InvalidValueError(
                f"{type(self.plan).__name__} does not say how often it has drawn a sample, so "
                "samples cannot have generators of their own; use another plan"
            )
        draws: Draws = self.deal.draws(rank, numbers)
        return draws

    def blocks(self, rank: int, start: int | None = None, num_first: int = 1) -> Iterator[Block]:
        """Iterate over blocks: `num_first` batches at first, then twice as many each time.

        So the first batch is cheap, and later ones are computed together.
        """
        rank = check_integer("rank", rank, 0, self.world_size - 1)
        number = self.num_done if start is None else start
        number = check_integer("start", number, 0, self.num_batches)
        num_ahead = check_integer("num_first", num_first, 1)
        while number < self.num_batches:
            stop = min(number + num_ahead, self.num_batches)
            block = self.deal.block(rank, number, stop)
            yield block
            number = stop
            if 2 * len(block.indices) <= _ENTRIES_AHEAD:
                num_ahead *= 2

    def batches(self, rank: int, start: int | None = None) -> Iterator[Batch]:
        """Iterate over the batches of one rank that are still to come, or from `start` on."""
        for block in self.blocks(rank, start):
            yield from block

    def find(self, index: int) -> list[Place]:
        """Return every place of this segment at which `index` is consumed."""
        index = check_integer("index", index, 0, self.plan.num_indices - 1)
        return sorted(self.deal.find(index))

    def num_real(self, start: int, stop: int) -> int:
        """Return how many real samples, not padding, all ranks get in batches `[start, stop)`.

        Examples:
            >>> from feedline.plan import SamplePlan, Sequential
            >>> plan = SamplePlan(order=Sequential(num_samples=10**9 + 1), tail="pad")
            >>> segment = plan.segment(world_size=10_000, batch_size=100)
            >>> segment.num_real(0, 1), segment.num_real(1000, 1001)
            (1000000, 1)
        """
        stop = check_integer("stop", stop, 0, self.num_batches)
        return self.deal.num_real(check_integer("start", start, 0, stop), stop)

    def after(self, num_batches: int) -> Remaining:
        """Return what is left when every rank has had `num_batches` batches of this segment."""
        _check_count(PastSegment(self.world_size, self.batch_size, num_batches), self.deal)
        return self.deal.after(num_batches)

    def num_left_after(self, num_batches: int) -> int:
        """Return how many positions are left when every rank has had `num_batches` batches."""
        num_batches = check_integer("num_batches", num_batches, 0, self.num_batches)
        return num_left_after(self.deal, num_batches)

    def history_after(self, num_batches: int) -> tuple[PastSegment, ...]:
        """Return the history of the epoch after `num_batches` batches of this segment."""
        past = PastSegment(self.world_size, self.batch_size, num_batches, self.skipped)
        # A segment without batches leaves no trace.
        return (*self.history, past) if num_batches or self.skipped else self.history

    def cursor(self, num_batches: int) -> Cursor:
        """Return the cursor after `num_batches` batches of this segment."""
        num_batches = check_integer("num_batches", num_batches, 0, self.num_batches)
        return Cursor(
            fields=self.plan.fields,
            epoch=self.epoch,
            history=self.history_after(num_batches),
            changes=self.plan.changes,
        )


def _dealt(remaining: Remaining, past: PastSegment) -> Deal:
    """Return what is left, dealt as it was in an entry of a history, which is checked."""
    deal = remaining.deal(past.world_size, past.batch_size)
    if past.skipped:
        _check_count(past._replace(num_batches=past.skipped[-1][1]), deal)
        deal = SkippingDeal(deal, past.skipped, past.world_size)
    _check_count(past, deal)
    return deal


def _check_count(past: PastSegment, deal: Deal) -> None:
    if past.num_batches > deal.num_batches:
        raise CursorFormatError(
            f"num_batches={past.num_batches} must be in [0, {deal.num_batches}], the number of "
            f"batches on {several(past.world_size, 'rank')} with batch size {past.batch_size}; "
            "this cursor belongs to another plan"
        )
