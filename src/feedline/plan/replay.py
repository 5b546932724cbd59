"""What a run consumes, and when, computed without running it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from feedline.errors import InvalidValueError, check_integer, check_sequence
from feedline.plan.batches import Batch
from feedline.plan.cursor import Cursor, PastSegment, check_past
from feedline.plan.frozen import store
from feedline.plan.orders import Indices
from feedline.plan.plan import Plan
from feedline.plan.segment import Segment
from feedline.plan.skipping import Spans
from feedline.words import one_line, several

_BATCHES_AT_ONCE = 256


class Consumed(NamedTuple):
    """One time a sample is consumed: `batch` is numbered from the start of the epoch.

    Args:
        segment: Which segment of the epoch, counted from zero.
        batch: The number of the batch, from the start of the epoch.
        rank: The rank that consumes it.
        slot: Which entry of the batch it is.
        is_real: Whether it is real and not padding.
    """

    segment: int
    batch: int
    rank: int
    slot: int
    is_real: bool


@one_line
@dataclass(frozen=True, kw_only=True)
class Replay:
    """One epoch of a run, on `world_size` ranks, after any resizes in `history`.

    Args:
        plan: What decides the order.
        world_size: The number of ranks that the epoch ends with.
        batch_size: The number of samples of a batch on each of them.
        epoch: The number of the epoch.
        history: What was consumed before, one entry for each world size and batch size.
        skipped: Ranges of batches that these ranks skip, as they are numbered without any skip.

    Batches that are skipped have no number here.

    Examples:
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> plan = SamplePlan(order=Shuffled(num_samples=1000))
        >>> replay = Replay(plan=plan, world_size=4, batch_size=5, history=[PastSegment(2, 10, 7)])
        >>> index = int(replay.batch(rank=3, number=20).indices[2])
        >>> replay.find(index)
        [Consumed(segment=1, batch=20, rank=3, slot=2, is_real=True)]
    """

    plan: Plan
    world_size: int
    batch_size: int
    epoch: int = 0
    history: Sequence[PastSegment] = ()
    skipped: Spans = ()
    segments: tuple[Segment, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidValueError(f"plan={self.plan!r:.80} must be a Plan, such as SamplePlan")
        past = tuple(check_past(entry) for entry in check_sequence("history", self.history))
        store(self, history=past)
        last = check_past((self.world_size, self.batch_size, 0, self.skipped))
        segments: list[Segment] = []
        for number, entry in enumerate([*past, last]):
            begun = segments[-1].after(past[number - 1].num_batches) if number else None
            segments.append(
                Segment(
                    plan=self.plan,
                    epoch=self.epoch,
                    world_size=entry.world_size,
                    batch_size=entry.batch_size,
                    history=past[:number],
                    skipped=entry.skipped,
                    begun=begun,
                )
            )
        store(self, segments=tuple(segments))

    @classmethod
    def of(cls, plan: Plan, cursor: Cursor, *, world_size: int, batch_size: int) -> Replay:
        """Return the epoch that `cursor` was saved in, continued on `world_size` ranks."""
        segment = plan.resume(cursor, world_size=world_size, batch_size=batch_size)
        return cls(
            plan=segment.plan,
            world_size=world_size,
            batch_size=batch_size,
            epoch=cursor.epoch,
            history=segment.history,
            skipped=segment.skipped,
        )

    @property
    def num_batches(self) -> int:
        """The number of batches in the whole epoch on each rank."""
        return sum(entry.num_batches for entry in self.history) + self.segments[-1].num_batches

    def world_size_at(self, number: int) -> int:
        """Return the number of ranks that get batch `number` of the epoch."""
        number = check_integer("number", number, 0, self.num_batches - 1)
        return self._segment_of(number)[0].world_size

    def batch(self, *, rank: int, number: int) -> Batch:
        """Return batch `number` of the epoch on `rank`."""
        number = check_integer("number", number, 0, self.num_batches - 1)
        segment, first = self._segment_of(number)
        remedy = f"batch {number} was dealt to {several(segment.world_size, 'rank')}"
        rank = check_integer("rank", rank, 0, segment.world_size - 1, remedy=remedy)
        return segment.batch(rank, number - first)._replace(number=number)

    def _segment_of(self, number: int) -> tuple[Segment, int]:
        """Return the segment that holds a batch of the epoch, and the number of its first one."""
        ends = list(accumulate(past.num_batches for past in self.history))
        which = bisect_right(ends, number)
        return self.segments[which], ends[which - 1] if which else 0

    def find(self, index: int) -> list[Consumed]:
        """Return every time `index` is consumed in this epoch; an empty list if it is dropped."""
        found: list[Consumed] = []
        first = 0
        for number, segment in enumerate(self.segments):
            is_last = number == len(self.history)
            end = segment.num_batches if is_last else self.history[number].num_batches
            found += [
                Consumed(number, first + place.batch, *place[1:])
                for place in segment.find(index)
                if place.batch < end
            ]
            first += end
        return found


def skipped_samples(plan: Plan, epoch: int, history: Sequence[PastSegment]) -> Iterator[Indices]:
    """Yield the samples that a run skips in an epoch, some batches of one rank at a time.

    Args:
        plan: What decides the order.
        epoch: The number of the epoch.
        history: The history of the epoch, as in a cursor.

    Examples:
        >>> from feedline.plan import SamplePlan, Sequential
        >>> plan = SamplePlan(order=Sequential(num_samples=10))
        >>> history = [PastSegment(2, 2, 1, skipped=((1, 2),))]
        >>> [indices.tolist() for indices in skipped_samples(plan, 0, history)]
        [[4, 6], [5, 7]]
    """
    for number, past in enumerate(history):
        if not past.skipped:
            continue
        whole = Segment(
            plan=plan,
            epoch=epoch,
            world_size=past.world_size,
            batch_size=past.batch_size,
            history=tuple(history[:number]),
        )
        for rank in range(past.world_size):
            for span in past.skipped:
                for start in range(*span, _BATCHES_AT_ONCE):
                    stop = min(start + _BATCHES_AT_ONCE, span[1])
                    yield whole.block(rank, start, stop).real_indices
