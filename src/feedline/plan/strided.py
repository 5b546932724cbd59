"""Orders dealt by a `Share`, and those dealt position by position: what is consumed is a prefix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np

from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.segment import Remaining
from feedline.plan.tails import Share


class _OrderRest(Remaining, Protocol):
    """What is left of an order."""

    @property
    def order(self) -> EpochOrder:
        """The order of the whole epoch."""

    @property
    def tail(self) -> str:
        """What happens to the tail."""


class ShareDeal(ABC):
    """What is left of an order, dealt by a `Share`: each rank's real entries, then padding."""

    def __init__(self, rest: _OrderRest, world_size: int, batch_size: int) -> None:
        self._order = rest.order
        self.share = Share(
            num_positions=rest.num_left,
            world_size=world_size,
            batch_size=batch_size,
            tail=rest.tail,
        )
        self.num_batches = self.share.num_batches
        self.num_dropped = self.share.num_dropped
        self.num_padded = self.share.num_padded

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


@dataclass(frozen=True)
class PrefixRest:
    """The positions from `start` on."""

    order: EpochOrder
    tail: str
    start: int

    @property
    def num_left(self) -> int:
        return self.order.num_positions - self.start

    def deal(self, world_size: int, batch_size: int) -> StridedDeal:
        return StridedDeal(self, world_size, batch_size)


class StridedDeal(ShareDeal):
    """Positions dealt one by one: entry t of rank r is position `start + t * world_size + r`."""

    def __init__(self, rest: PrefixRest, world_size: int, batch_size: int) -> None:
        super().__init__(rest, world_size, batch_size)
        self._rest = rest

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
        consumed = self.share.num_consumed(num_batches)
        return PrefixRest(self._order, self._rest.tail, self._rest.start + consumed)
