"""The number of batches of each rank out of `num_positions`, and the tail policies.

Every rank has a *stream*: the entries that it consumes one after another, cut into batches. Entry
`t` of rank `r` stands for place `t * world_size + r`; places below `num_positions` are real, the
others are padding. A `Share` answers everything that follows from that and from the tail policy; it
does not know which position a place is. A `ShareDeal` does: here positions are dealt one by one, so
that what is consumed is a prefix of the order; `window_deal.py` deals them in runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np

from feedline.errors import TailError, check_choice
from feedline.plan.ahead import BlocksAhead
from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.deals import Remaining
from feedline.plan.draws import Draws, draws_at
from feedline.plan.frozen import store_integers
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.skipping import HoledOrder, Spans

Tail = Literal["drop", "pad", "even", "exact", "pad_ranks", "pad_ranks_drop"]

#: The most ranks, and the most samples of a batch.
MAX_BATCH = 2**31
TAILS: tuple[str, ...] = get_args(Tail)


def check_tail(tail: Any) -> str:
    """Return `tail` if it is a known policy, or raise an error that lists them."""
    return check_choice("tail", tail, TAILS)


@dataclass(frozen=True)
class Share:
    """The batches that `world_size` ranks make of `num_positions`.

    The tail policies:

    - `drop`: drop what does not fill a batch on every rank.
    - `pad`: fill the last batch on every rank with entries that are marked as padding.
    - `even`: every position once; the last batch is split as evenly as possible, so it is shorter,
      and ranks may differ by one entry. Only when it has fewer positions than ranks is padding
      added, one entry on each rank that would have none.
    - `exact`: raise an error unless everything fits.
    - `pad_ranks`: pad to a multiple of `world_size` only; the last batch may be short, equally on
      all ranks.
    - `pad_ranks_drop`: the same, then drop the last batch if it is short.

    Args:
        num_positions: The number of positions that are shared out.
        world_size: The number of ranks.
        batch_size: The number of samples of a batch on each of them.
        tail: What happens to the positions that do not fill a batch on every rank.

    Examples:
        >>> share = Share(num_positions=10, world_size=2, batch_size=2, tail="drop")
        >>> share.num_batches, share.num_dropped
        (2, 2)
    """

    num_positions: int
    world_size: int
    batch_size: int
    tail: str

    def __post_init__(self) -> None:
        store_integers(self, "num_positions", low=0)
        store_integers(self, "world_size", "batch_size", low=1, high=MAX_BATCH)
        check_tail(self.tail)
        per_step = self.world_size * self.batch_size
        if self.tail == "exact" and self.num_positions % per_step:
            raise TailError(
                f"num_positions={self.num_positions} must be a multiple of world_size * batch_size "
                f"= {self.world_size} * {self.batch_size} = {per_step} with tail='exact'; "
                "use tail='drop', 'pad' or 'even', or another batch size"
            )

    @property
    def num_whole(self) -> int:
        """The number of entries that are real on every rank."""
        return self.num_positions // self.world_size

    @property
    def num_left_over(self) -> int:
        """The number of ranks, from 0 on, that have one more real entry than the others."""
        return self.num_positions % self.world_size

    def num_entries(self, rank: int) -> int:
        """Return the length of the stream of `rank`, padding included."""
        whole, over = self.num_whole, self.num_left_over
        full = whole // self.batch_size * self.batch_size
        upper = whole + (over > 0)
        match self.tail:
            case "drop" | "exact":
                return full
            case "pad":
                return -(-upper // self.batch_size) * self.batch_size
            case "even":
                return upper if rank < over or whole == full else whole
            case "pad_ranks":
                return upper
            case _:
                return upper // self.batch_size * self.batch_size

    @property
    def num_batches(self) -> int:
        """The number of batches, equal on every rank."""
        return -(-self.num_entries(0) // self.batch_size)

    @property
    def num_dropped(self) -> int:
        """The number of positions that no rank gets."""
        reached = self.num_entries(0) * self.world_size
        return max(0, self.num_positions - reached)

    @property
    def num_padded(self) -> int:
        """The number of entries, over all ranks, that are padding."""
        first, last = self.num_entries(0), self.num_entries(self.world_size - 1)
        total = last * self.world_size
        if first > last:
            total += self.num_left_over
        return total - (self.num_positions - self.num_dropped)

    def num_consumed(self, num_batches: int) -> int:
        """Return the number of positions that all ranks have had after `num_batches`."""
        return min(self.num_positions, num_batches * self.batch_size * self.world_size)

    def num_real_of_all(self, start: int, stop: int) -> int:
        """Return how many entries of batches `[start, stop)` of all ranks are real.

        With every policy, the ranks together have each position once before any padding.
        """
        return self.num_consumed(stop) - self.num_consumed(start)

    def span(self, rank: int, start: int, stop: int) -> tuple[int, int]:
        """Return the entries `[first, end)` of `rank` in batches `[start, stop)`."""
        first = start * self.batch_size
        return first, max(first, min(stop * self.batch_size, self.num_entries(rank)))

    def bounds(self, rank: int, start: int, stop: int) -> Indices:
        """Return where each of these batches begins and ends, counted from the first entry."""
        first, end = self.span(rank, start, stop)
        edges = np.arange(stop - start + 1, dtype=np.int64) * self.batch_size
        edges[-1] = end - first
        return edges

    def num_real(self, rank: int, first: int, end: int) -> int:
        """Return how many of the entries `[first, end)` of `rank` are real; they come first."""
        real_end = self.num_whole + (rank < self.num_left_over)
        return min(max(real_end - first, 0), end - first)

    def padding_places(self, rank: int, first: int, end: int) -> Indices:
        """Return the places of entries `[first, end)` of `rank`, counted from the first padding."""
        offset = first * self.world_size + rank - self.num_positions
        return offset + np.arange(end - first, dtype=np.int64) * self.world_size

    def padded_with(self, positions: Indices, num_positions: int) -> list[Place]:
        """Return the padding that repeats one of `positions`.

        Padding goes through the order's `num_positions` positions again from the first one, so
        place `self.num_positions + p` repeats position `p % num_positions`.
        """
        last_place = self.num_entries(0) * self.world_size
        repeated = positions[positions < last_place - self.num_positions].tolist()
        places = [
            divmod(place, self.world_size)
            for position in repeated
            for place in range(self.num_positions + position, last_place, num_positions)
        ]
        return [
            self.place(rank, entry, is_real=False)
            for entry, rank in places
            if entry < self.num_entries(rank)
        ]

    def place(self, rank: int, entry: int, *, is_real: bool) -> Place:
        """Return the place of one entry of one rank."""
        return Place(entry // self.batch_size, rank, entry % self.batch_size, is_real)


class ShareDeal(ABC):
    """What is left of an order, dealt by a `Share`: each rank's real entries, then padding."""

    def __init__(self, order: EpochOrder, share: Share) -> None:
        self._order = order
        self.share = share
        self.num_batches = share.num_batches

    @property
    def num_dropped(self) -> int:
        return self.share.num_dropped

    @property
    def num_padded(self) -> int:
        return self.share.num_padded

    @abstractmethod
    def positions_of(self, rank: int, first: int, end: int) -> Indices:
        """Return the positions of real entries `[first, end)` of `rank`."""

    @abstractmethod
    def entries_of(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the rank and the entry that get each of these positions, if still to come."""

    @abstractmethod
    def after(self, num_batches: int) -> Remaining:
        """Return what is left when every rank has consumed `num_batches`."""

    def block(self, rank: int, start: int, stop: int) -> Block:
        positions, num_real = self._positions(rank, start, stop)
        is_real = None if num_real == len(positions) else np.arange(len(positions)) < num_real
        return Block(
            first=start,
            indices=self._order.indices(positions),
            bounds=self.share.bounds(rank, start, stop),
            is_real=is_real,
        )

    def picked(self, rank: int, numbers: range) -> tuple[Indices, Indices]:
        # Positions are cheap, so those between are computed too; indices are not.
        start, stop = numbers[0], numbers[-1] + 1
        positions, _ = self._positions(rank, start, stop)
        bounds, chosen = every_nth(self.share.bounds(rank, start, stop), numbers.step)
        return self._order.indices(positions[chosen]), bounds

    def draws(self, rank: int, numbers: range) -> Draws:
        positions, _ = self._positions(rank, numbers[0], numbers[-1] + 1)
        bounds = self.share.bounds(rank, numbers[0], numbers[-1] + 1)
        return draws_at(self._order, positions[every_nth(bounds, numbers.step)[1]])

    def _positions(self, rank: int, start: int, stop: int) -> tuple[Indices, int]:
        """Return the positions of batches `[start, stop)`, and how many of them are real."""
        first, end = self.share.span(rank, start, stop)
        num_real = self.share.num_real(rank, first, end)
        positions = self.positions_of(rank, first, first + num_real)
        if num_real < end - first:
            padding = self.share.padding_places(rank, first + num_real, end)
            positions = np.concatenate([positions, padding % self._order.num_positions])
        return positions, num_real

    def num_real(self, start: int, stop: int) -> int:
        return self.share.num_real_of_all(start, stop)

    def num_left_after(self, num_batches: int) -> int:
        return self.share.num_positions - self.share.num_consumed(num_batches)

    def find(self, index: int) -> list[Place]:
        positions = self._order.find(index)
        if not len(positions):
            return []
        ranks, entries = self.entries_of(positions)
        # Where ranks have unequally many entries, those that have fewer have no real ones beyond.
        reached = entries < self.share.num_entries(0)
        batches, slots = np.divmod(entries[reached], self.share.batch_size)
        columns = (batches.tolist(), ranks[reached].tolist(), slots.tolist(), repeat(True))
        padding = self.share.padded_with(positions, self._order.num_positions)
        return [*map(Place, *columns), *padding]


@runtime_checkable
class StridedOrder(Protocol):
    """An order of which a few entries take several times as long, each, as many together."""

    def indices_every(self, first: int, step: int, count: int) -> Indices:
        """Return the index at each position `first + i * step`, `count` of them."""


@dataclass(frozen=True)
class PrefixRest:
    """The positions from `start` on."""

    order: EpochOrder
    tail: str
    start: int = 0

    @property
    def num_left(self) -> int:
        return self.order.num_positions - self.start

    def deal(self, world_size: int, batch_size: int) -> StridedDeal:
        return StridedDeal(self, world_size, batch_size)


class StridedDeal(ShareDeal):
    """Positions dealt one by one: entry t of rank r is position `start + t * world_size + r`."""

    def __init__(self, rest: PrefixRest, world_size: int, batch_size: int) -> None:
        super().__init__(rest.order, Share(rest.num_left, world_size, batch_size, rest.tail))
        self._rest = rest
        self._ahead: BlocksAhead | None = None
        if isinstance(rest.order, StridedOrder):
            self._ahead = BlocksAhead(self._block_of, self.num_batches)

    def block(self, rank: int, start: int, stop: int) -> Block:
        if self._ahead is not None:
            return self._ahead.block(rank, start, stop)
        return super().block(rank, start, stop)

    def _block_of(self, rank: int, start: int, stop: int) -> Block:
        """Return the same for an order that is fastest for evenly spaced positions."""
        share, order = self.share, cast(StridedOrder, self._order)
        first, end = share.span(rank, start, stop)
        if not 0 < end - first == share.num_real(rank, first, end):
            return super().block(rank, start, stop)
        place = self._rest.start + first * share.world_size + rank
        indices = order.indices_every(place, share.world_size, end - first)
        return Block(first=start, indices=indices, bounds=share.bounds(rank, start, stop))

    def positions_of(self, rank: int, first: int, end: int) -> Indices:
        positions = np.arange(end - first, dtype=np.int64)
        positions *= self.share.world_size
        if len(positions):
            positions += self._rest.start + first * self.share.world_size + rank
        return positions

    def entries_of(self, positions: Indices) -> tuple[Indices, Indices]:
        offsets = positions[positions >= self._rest.start] - self._rest.start
        entries = offsets // self.share.world_size
        return offsets - entries * self.share.world_size, entries

    def after(self, num_batches: int) -> PrefixRest:
        return PrefixRest(self._order, self._rest.tail, self._end_of(num_batches))

    def without(self, num_batches: int, skips: Spans) -> PrefixRest:
        """Return what is left after `num_batches`, without some batches that follow."""
        holes = tuple((self._end_of(start), self._end_of(stop)) for start, stop in skips)
        order = HoledOrder(self._order, tuple(hole for hole in holes if hole[0] < hole[1]))
        return PrefixRest(order, self._rest.tail, self._end_of(num_batches))

    def has_ahead(self, num_batches: int) -> bool:
        """Whether samples that are still to come are skipped."""
        inner = getattr(self._order, "has_ahead", None)
        return inner is not None and bool(inner(self._end_of(num_batches)))

    def _end_of(self, num_batches: int) -> int:
        """Return the first position that is left after `num_batches`."""
        return self._rest.start + self.share.num_consumed(num_batches)
