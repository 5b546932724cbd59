"""A plan and its segments: the part of an epoch with one world size and batch size.

A plan says what is left at the start of an epoch (`Remaining`). What is left can be dealt to any
number of ranks (`Deal`), and a deal knows what is left after any number of its batches. Folding the
history of an epoch through these two gives every resume and every resize:

    remaining = plan.begin(epoch)
    for past in history:
        remaining = remaining.deal(past.world_size, past.batch_size).after(past.num_batches)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import CursorFormatError, EmptyEpochError, InvalidValueError, check_integer
from feedline.plan.batches import Batch, Block, Place, every_nth
from feedline.plan.cursor import Cursor, PastSegment, check_past
from feedline.plan.deals import Deal, Remaining
from feedline.plan.draws import Draws
from feedline.plan.frozen import fingerprint_of, store, store_integers
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.seeds import Seed
from feedline.words import one_line, several

if TYPE_CHECKING:
    from feedline.plan.buckets import Bucket
    from feedline.plan.chunking import Chunking
    from feedline.plan.mixture import Mixture

ORDER_VERSION = 1
_ENTRIES_AHEAD = 2**15


class Plan(ABC):
    """A pure description of what a run consumes; asking it never changes it.

    A plan answers questions about itself, so callers need not know its kind. `tail` is its tail
    policy. `chunks` describes its chunks, of which `preload` form a window. `buckets` are its
    buckets. Each is empty if the plan has none.
    """

    tail: str = ""
    chunks: Chunking | None = None
    preload: int = 1
    buckets: Sequence[Bucket] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @abstractmethod
    def begin(self, epoch: int) -> Remaining:
        """Return the whole of `epoch`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything that decides the order, as JSON values."""

    @property
    @abstractmethod
    def num_indices(self) -> int:
        """Indices are in `[0, num_indices)`."""

    @property
    def is_selection(self) -> bool:
        """Whether it selects samples, so that it may exclude some of the data."""
        return False

    @property
    def changes(self) -> tuple[Mapping[str, Any], ...]:
        """Changes made while running, as JSON values for the cursor."""
        return ()

    def with_changes(self, changes: tuple[Mapping[str, Any], ...]) -> Plan:
        """Return this plan with exactly these changes made while running."""
        if changes:
            raise CursorFormatError(
                f"the cursor has {several(len(changes), 'change')} of weights, but this plan has "
                "no weights; use the plan that saved it"
            )
        return self

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float] | None:
        """The weights and the temperature as last changed; None without a mixture."""
        return None

    def reweighted(
        self, weights: Sequence[float], temperature: float, *, epoch: int, position: int
    ) -> Plan:
        """Return this plan with other weights from `position` of `epoch` on."""
        raise InvalidValueError(
            f"weights={weights!r:.80} cannot be used: this {type(self).__name__} has no weights; "
            "use SamplePlan(order=Mixture(...))"
        )

    def largest_batch(self, batch_size: int) -> int:
        """Return the maximum number of samples in a batch of one rank."""
        return batch_size

    def target_samples(self, world_size: int) -> int:
        """Return the maximum number of samples of a rank in an epoch."""
        return -(-self.num_indices // world_size)

    def bucket_batch_size(self, bucket: int, batch_size: int) -> int:
        """Return the number of samples in a batch of one bucket."""
        return batch_size

    @property
    def has_equal_batches(self) -> bool:
        """Whether all batches have the run's batch size, except for the tail."""
        return True

    @property
    def ignores_batch_size(self) -> bool:
        """Whether a rank's samples do not depend on the batch size."""
        return False

    @property
    def mixture(self) -> Mixture | None:
        """The mixture that the plan draws from."""
        return None

    @property
    def num_listed(self) -> int:
        """The number of entries in the caller's lists that the plan holds, 8 bytes each."""
        return getattr(self.chunks, "num_listed", 0)

    def epoch_order(self, epoch: int, bucket: int = 0) -> EpochOrder | None:
        """Return the order of an epoch, or of one of its buckets; None if there is none."""
        return None

    @property
    def main_seed(self) -> Seed:
        """The seed that the plan was given; 0 if it has none."""
        seed: Seed = getattr(self, "seed", 0)
        return seed

    @property
    def fields(self) -> dict[str, Any]:
        """Everything that decides the order, with the version of the algorithms."""
        return {"order_version": ORDER_VERSION, **self.describe()}

    @property
    def fingerprint(self) -> str:
        """A short string that changes when, and only when, the order may change."""
        return fingerprint_of(self.fields)

    def segment(self, *, world_size: int, batch_size: int, epoch: int = 0) -> Segment:
        """Return a fresh epoch dealt to `world_size` ranks.

        Examples:
            >>> from feedline.plan import SamplePlan, Shuffled
            >>> plan = SamplePlan(order=Shuffled(num_samples=10**12))
            >>> plan.segment(world_size=1000, batch_size=100).num_batches
            10000000
        """
        segment = Segment(plan=self, epoch=epoch, world_size=world_size, batch_size=batch_size)
        if segment.num_batches == 0:
            raise EmptyEpochError(
                f"num_batches=0 must be at least 1: {several(segment.num_left, 'sample')} cannot "
                f"fill a batch of batch_size={batch_size} on each of world_size={world_size} "
                "ranks; use a smaller batch size, fewer ranks, or tail='pad' or 'even'"
            )
        return segment

    def resume(self, cursor: Cursor, *, world_size: int, batch_size: int) -> Segment:
        """Return the segment that resumes from `cursor`, on any number of ranks."""
        if not isinstance(cursor, Cursor):
            raise CursorFormatError(
                f"cursor={cursor!r:.80} must be a Cursor; read it with Cursor.from_json or "
                "Cursor.from_dict"
            )
        cursor.check_fields(self.fields)
        plan = self.with_changes(cursor.changes)
        history = list(cursor.history)
        done = 0
        if history and history[-1][:2] == (world_size, batch_size):
            done = history.pop().num_batches
        return Segment(
            plan=plan,
            epoch=cursor.epoch,
            world_size=world_size,
            batch_size=batch_size,
            history=tuple(history),
            num_done=done,
        )


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
        begun: What the history left, where that is known; by default it is computed.
    """

    plan: Plan
    world_size: int
    batch_size: int
    epoch: int = 0
    history: tuple[PastSegment, ...] = ()
    num_done: int = 0
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
        deal = remaining.deal(self.world_size, self.batch_size)
        _check_count(PastSegment(self.world_size, self.batch_size, self.num_done), deal)
        store(self, num_left=remaining.num_left, num_batches=deal.num_batches)
        store(self, remaining=remaining, deal=deal)

    def _after_history(self) -> Remaining:
        """Return what is left of the epoch after the history, which is checked."""
        store(self, history=tuple(check_past(past) for past in self.history))
        remaining = self.plan.begin(self.epoch)
        for past in self.history:
            deal = remaining.deal(past.world_size, past.batch_size)
            _check_count(past, deal)
            remaining = deal.after(past.num_batches)
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
        if not num_batches and self.history:
            # A segment without batches leaves no trace, so the one before it may go on.
            return self.plan.resume(self.cursor(0), **sizes)
        past = PastSegment(self.world_size, self.batch_size, num_batches)
        history = (*self.history, past) if num_batches else ()
        begun = self.after(num_batches) if num_batches else self.remaining
        return replace(self, history=history, num_done=0, begun=begun, **sizes)

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
        past = PastSegment(self.world_size, self.batch_size, num_batches)
        _check_count(past, self.deal)
        return self.deal.after(num_batches)

    def num_left_after(self, num_batches: int) -> int:
        """Return how many positions are left when every rank has had `num_batches` batches."""
        num_batches = check_integer("num_batches", num_batches, 0, self.num_batches)
        if hasattr(self.deal, "num_left_after"):
            return int(self.deal.num_left_after(num_batches))
        return self.deal.after(num_batches).num_left

    def cursor(self, num_batches: int) -> Cursor:
        """Return the cursor after `num_batches` batches of this segment."""
        num_batches = check_integer("num_batches", num_batches, 0, self.num_batches)
        past = PastSegment(self.world_size, self.batch_size, num_batches)
        return Cursor(
            fields=self.plan.fields,
            epoch=self.epoch,
            # A segment without batches leaves no trace.
            history=(*self.history, past) if num_batches else self.history,
            changes=self.plan.changes,
        )


def _check_count(past: PastSegment, deal: Deal) -> None:
    if past.num_batches > deal.num_batches:
        raise CursorFormatError(
            f"num_batches={past.num_batches} must be in [0, {deal.num_batches}], the number of "
            f"batches on {several(past.world_size, 'rank')} with batch size {past.batch_size}; "
            "this cursor belongs to another plan"
        )
