"""Batches that a run leaves out, for example those around a loss spike.

A skip is a range of batches of a deal. The other batches stay as they are and move up: on the same
ranks, a run that skips has the batches of one that does not, less the range. `SkippingDeal` does
that for any deal.

A range may lie ahead of the run. If the run is resized before it gets there, the samples of the
range have to be taken out of what is left: deals that can do so have `without`. For an order of
which a prefix is consumed, that is a `HoledOrder`; for windows, intervals that are cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np

from feedline.errors import InvalidValueError, PlanMismatchError, check_integer, check_sequence
from feedline.lazy import lazy
from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.deals import Deal, Remaining
from feedline.plan.draws import Draws, draws_at
from feedline.plan.orders import EpochOrder, Indices
from feedline.words import several

Span = tuple[int, int]
#: Half-open ranges of batches, in ascending order; no two meet.
Spans = tuple[Span, ...]

_MOST_BATCHES = 2**62


def check_spans(name: str, spans: Any) -> Spans:
    """Return ranges of batches as plain integers, or raise."""
    checked: list[Span] = []
    for span in check_sequence(name, spans):
        pair = check_sequence(name, span)
        if len(pair) != 2:
            raise InvalidValueError(f"{name} holds {span!r:.80} but must hold pairs (start, stop)")
        start = check_integer(f"the start in {name}", pair[0], 0, _MOST_BATCHES)
        stop = check_integer(f"the stop in {name}", pair[1], start + 1, _MOST_BATCHES)
        if checked and start <= checked[-1][1]:
            raise InvalidValueError(
                f"{name} holds {span!r:.80}, which must begin after {checked[-1]} has ended"
            )
        checked.append((start, stop))
    return tuple(checked)


def joined(spans: Iterable[Span]) -> Spans:
    """Return ranges in order, those that meet or overlap as one.

    Examples:
        >>> joined([(6, 8), (1, 3), (3, 4)])
        ((1, 4), (6, 8))
    """
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return tuple(found)


def num_behind(spans: Spans, num_batches: int) -> int:
    """Return how many batches of a deal a run has behind it when it has had `num_batches`.

    A range that begins where the run is counts as passed.

    Examples:
        >>> [num_behind(((2, 5),), done) for done in (1, 2, 3)]
        [1, 5, 6]
    """
    for start, stop in spans:
        if start > num_batches:
            break
        num_batches += stop - start
    return num_batches


def shifted(spans: Spans, numbers: range) -> list[range]:
    """Return batches of a run by their numbers in the deal, in pieces without a skip inside.

    Examples:
        >>> shifted(((2, 5),), range(0, 6, 2))
        [range(0, 2, 2), range(5, 9, 2)]
    """
    pieces: list[range] = []
    # Where each stretch between two skips begins and ends, as the run numbers its batches.
    num_skipped = [0, *accumulate(stop - start for start, stop in spans)]
    starts = [start - gone for (start, _), gone in zip(spans, num_skipped, strict=False)]
    for shift, (low, high) in zip(num_skipped, pairwise([0, *starts, _MOST_BATCHES]), strict=True):
        first, end = (max(0, -((numbers.start - edge) // numbers.step)) for edge in (low, high))
        part = numbers[first:end]
        if part:
            pieces.append(range(part.start + shift, part.stop + shift, numbers.step))
    return pieces


def num_left_after(deal: Deal, num_batches: int) -> int:
    """Return how many positions a deal leaves after some batches of every rank."""
    if hasattr(deal, "num_left_after"):
        return int(deal.num_left_after(num_batches))
    return deal.after(num_batches).num_left


class SkippingDeal:
    """A deal without some of its batches; those that are left are numbered through.

    Args:
        deal: All batches.
        spans: Which of them no rank gets.
        world_size: The number of ranks.
    """

    def __init__(self, deal: Deal, spans: Spans, world_size: int) -> None:
        self._deal = deal
        self._spans = spans
        self._world_size = world_size
        self.num_batches = deal.num_batches - sum(stop - start for start, stop in spans)
        self.num_dropped = deal.num_dropped
        if hasattr(deal, "draws"):
            self.draws = self._draws

    @lazy
    def num_padded(self) -> int:
        if not self._deal.num_padded:
            return 0
        ranges = [(rank, span) for span in self._spans for rank in range(self._world_size)]
        num_entries = sum(len(self._deal.block(rank, *span).indices) for rank, span in ranges)
        num_real = sum(self._deal.num_real(*span) for span in self._spans)
        return self._deal.num_padded - (num_entries - num_real)

    def block(self, rank: int, start: int, stop: int) -> Block:
        parts = shifted(self._spans, range(start, stop))
        blocks = [self._deal.block(rank, part.start, part.stop) for part in parts]
        if not blocks:
            return self._deal.block(rank, 0, 0)
        if len(blocks) == 1:
            blocks[0] = _renumbered(blocks[0], start)
            return blocks[0]
        marks = [block.is_real for block in blocks]
        is_real = None
        if any(own is not None for own in marks):
            sized = zip(blocks, marks, strict=True)
            every = (np.ones(len(b.indices), np.bool_) if own is None else own for b, own in sized)
            is_real = np.concatenate([*every])
        buckets = [block.buckets for block in blocks if block.buckets is not None]
        return Block(
            first=start,
            indices=np.concatenate([block.indices for block in blocks]),
            bounds=_end_to_end([block.bounds for block in blocks]),
            is_real=is_real,
            buckets=np.concatenate(buckets) if buckets else None,
        )

    def picked(self, rank: int, numbers: range) -> tuple[Indices, Indices]:
        found = [self._picked(rank, part) for part in shifted(self._spans, numbers)]
        indices = np.concatenate([indices for indices, _ in found])
        return indices, _end_to_end([bounds for _, bounds in found])

    def _picked(self, rank: int, numbers: range) -> tuple[Indices, Indices]:
        if hasattr(self._deal, "picked"):
            found: tuple[Indices, Indices] = self._deal.picked(rank, numbers)
            return found
        block = self._deal.block(rank, numbers[0], numbers[-1] + 1)
        bounds, chosen = every_nth(block.bounds, numbers.step)
        return block.indices[chosen], bounds

    def _draws(self, rank: int, numbers: range) -> Draws:
        deal: Any = self._deal
        found = [deal.draws(rank, part) for part in shifted(self._spans, numbers)]
        return Draws(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def num_real(self, start: int, stop: int) -> int:
        parts = shifted(self._spans, range(start, stop))
        return sum(self._deal.num_real(part.start, part.stop) for part in parts)

    def _ahead(self, behind: int) -> Spans:
        """Return the skips that a run has not passed yet."""
        return tuple(span for span in self._spans if span[0] > behind)

    def has_ahead(self, num_batches: int) -> bool:
        """Whether samples that are still to come are skipped."""
        behind = num_behind(self._spans, num_batches)
        return bool(self._ahead(behind)) or has_ahead(self._deal, behind)

    def num_left_after(self, num_batches: int) -> int:
        behind = num_behind(self._spans, num_batches)
        ahead = sum(self._deal.num_real(*span) for span in self._ahead(behind))
        return num_left_after(self._deal, behind) - ahead

    def after(self, num_batches: int) -> Remaining:
        behind = num_behind(self._spans, num_batches)
        ahead = self._ahead(behind)
        if not ahead:
            return self._deal.after(behind)
        if hasattr(self._deal, "without"):
            rest: Remaining = self._deal.without(behind, ahead)
            return rest
        return _Bound(self.num_left_after(num_batches), ahead[-1][1] - behind)

    def find(self, index: int) -> list[Place]:
        starts = [start for start, _ in self._spans]
        gone = [0, *accumulate(stop - start for start, stop in self._spans)]
        found = []
        for place in self._deal.find(index):
            which = bisect_right(starts, place.batch)
            if not which or place.batch >= self._spans[which - 1][1]:
                found.append(place._replace(batch=place.batch - gone[which]))
        return found


def has_ahead(deal: Deal, num_batches: int) -> bool:
    """Whether a deal skips samples that are still to come after some batches."""
    check = getattr(deal, "has_ahead", None)
    return check is not None and bool(check(num_batches))


class _Bound:
    """What is left of an order that ties samples to ranks, with a skip ahead."""

    def __init__(self, num_left: int, num_batches: int) -> None:
        self.num_left = num_left
        self._num_batches = num_batches

    def deal(self, world_size: int, batch_size: int) -> Deal:
        ahead = several(self._num_batches, "batch", "batches")
        raise PlanMismatchError(
            f"world_size={world_size} and batch_size={batch_size} must be those of the state, "
            f"because this order ties samples to ranks and skips some of the next {ahead}; resume "
            "on other ranks, or with another batch size, when these batches are behind the run",
            {},
        )


def _renumbered(block: Block, first: int) -> Block:
    return Block(
        first=first,
        indices=block.indices,
        bounds=block.bounds,
        is_real=block.is_real,
        buckets=block.buckets,
    )


def _end_to_end(bounds: Sequence[Indices]) -> Indices:
    """Return the bounds of batches that are laid end to end."""
    ends = accumulate(int(edges[-1]) for edges in bounds)
    return np.concatenate(
        [bounds[0], *(edges[1:] + end for edges, end in zip(bounds[1:], ends, strict=False))]
    )


class HoledOrder:
    """An epoch's order without some ranges of its positions; the others move up.

    Args:
        order: The whole order.
        holes: The ranges of positions that it is without.

    Examples:
        >>> from feedline.plan import Sequential
        >>> order = HoledOrder(Sequential(num_samples=10).at(0), ((2, 5), (8, 9)))
        >>> order.indices(np.arange(order.num_positions)).tolist()
        [0, 1, 5, 6, 7, 9]
    """

    def __init__(self, order: EpochOrder, holes: Spans) -> None:
        self._order = order
        starts, stops = np.array(holes, dtype=np.int64).reshape(-1, 2).T
        self._stops = stops
        self._shifts = np.concatenate([[0], np.cumsum(stops - starts)])
        #: Where each hole was, among the positions that are left.
        self._cuts = starts - self._shifts[:-1]
        self.num_positions = order.num_positions - int(self._shifts[-1])

    def indices(self, positions: Indices) -> Indices:
        return self._order.indices(self._whole(positions))

    def draws(self, positions: Indices) -> Draws:
        return draws_at(self._order, self._whole(positions))

    def find(self, index: int) -> Indices:
        found = self._order.find(index)
        left: Indices = found - self._shifts[self._stops.searchsorted(found, "right")]
        # What was in a hole is not at the position that it would have here.
        kept: Indices = left[self._whole(left) == found]
        return kept

    def has_ahead(self, position: int) -> bool:
        """Whether a hole lies behind the position at which a run is."""
        if len(self._cuts) and position < self._cuts[-1]:
            return True
        inner = getattr(self._order, "has_ahead", None)
        return inner is not None and bool(inner(int(self._whole(np.array([position]))[0])))

    def _whole(self, positions: Indices) -> Indices:
        """Return positions of the whole order."""
        whole: Indices = positions + self._shifts[self._cuts.searchsorted(positions, "right")]
        return whole


class Intervals(Protocol):
    """What is left of an epoch: `[starts, starts + lengths)`, then all from `untouched` on."""

    @property
    def order(self) -> EpochOrder:
        """The epoch's order."""

    @property
    def starts(self) -> Indices:
        """Where each interval begins."""

    @property
    def lengths(self) -> Indices:
        """The number of positions in each."""

    @property
    def untouched(self) -> int:
        """Where the last interval begins."""


def intervals_without(
    rest: Intervals, skips: Iterable[tuple[Intervals, Intervals]]
) -> tuple[Indices, Indices, int]:
    """Return what is left, without what is consumed between two other times.

    The cost does not depend on how much that is.

    Args:
        rest: What is left.
        skips: What is left before and after each range of batches that is skipped.

    Returns:
        The starts and the lengths of intervals, and where the last one begins.
    """
    holes: list[Span] = []
    for before, then in skips:
        left = [*_spans_of(then), (then.untouched, then.order.num_positions)]
        every = [*_spans_of(before), (before.untouched, before.order.num_positions)]
        holes += _cut(every, sorted(left))
    holes.sort()
    untouched = max([rest.untouched, *(stop for _, stop in holes)])
    spans = _cut([*_spans_of(rest), (rest.untouched, untouched)], holes)
    kept = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return kept[:, 0], kept[:, 1] - kept[:, 0], untouched


def _spans_of(rest: Intervals) -> list[Span]:
    ends = rest.starts + rest.lengths
    return list(zip(rest.starts.tolist(), ends.tolist(), strict=True))


def _cut(spans: Iterable[Span], holes: Sequence[Span]) -> list[Span]:
    """Return what is left of ranges, in their order, without holes, which ascend."""
    stops = [stop for _, stop in holes]
    left: list[Span] = []
    for low, high in spans:
        which = bisect_right(stops, low)
        while which < len(holes) and holes[which][0] < high:
            left.append((low, holes[which][0]))
            low = holes[which][1]
            which += 1
        left.append((low, high))
    return [span for span in left if span[0] < span[1]]
