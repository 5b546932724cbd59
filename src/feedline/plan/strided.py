"""Orders dealt position by position, so that what is consumed is always a prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.segment import Remaining
from feedline.plan.tails import Share

__all__ = ["PrefixRest", "StridedDeal", "deal_block", "pick"]


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
        share = Share(
            num_positions=self.num_left,
            world_size=world_size,
            batch_size=batch_size,
            tail=self.tail,
        )
        return StridedDeal(self, share)


class StridedDeal:
    """Positions dealt one by one: entry t of rank r is position `start + t * world_size + r`."""

    def __init__(self, rest: PrefixRest, share: Share) -> None:
        self._rest = rest
        self.share = share
        self.num_batches = share.num_batches
        self.num_dropped = share.num_dropped
        self.num_padded = share.num_padded

    def block(self, rank: int, start: int, stop: int) -> Block:
        return deal_block(self.share, self._rest.order, rank, start, stop, self._positions_of)

    def picked(self, rank: int, numbers: range) -> tuple[Indices, Indices]:
        return pick(self.share, self._rest.order, rank, numbers, self._positions_of)

    def _positions_of(self, rank: int, first: int, end: int) -> Indices:
        """Return the positions of real entries `[first, end)` of `rank`."""
        positions = np.arange(end - first, dtype=np.int64)
        positions *= self.share.world_size
        if len(positions):
            positions += self._rest.start + first * self.share.world_size + rank
        return positions

    def num_real(self, start: int, stop: int) -> int:
        return self.share.num_real_of_all(start, stop)

    def after(self, num_batches: int) -> Remaining:
        consumed = self.share.num_consumed(num_batches)
        return PrefixRest(self._rest.order, self._rest.tail, self._rest.start + consumed)

    def find(self, index: int) -> list[Place]:
        share, order = self.share, self._rest.order
        positions = order.find(index)
        offsets = positions[positions >= self._rest.start] - self._rest.start
        entries, ranks = np.divmod(offsets, share.world_size)
        # Every rank that has a real entry here gets at least as far as rank 0 gets everywhere.
        reached = entries < share.num_entries(0)
        batches, slots = np.divmod(entries[reached], share.batch_size)
        columns = (batches.tolist(), ranks[reached].tolist(), slots.tolist(), repeat(True))
        return [*map(Place, *columns), *share.padded_with(positions, order.num_positions)]


PositionsOf = Callable[[int, int, int], Indices]


def deal_block(
    share: Share,
    order: EpochOrder,
    rank: int,
    start: int,
    stop: int,
    positions_of: PositionsOf,
) -> Block:
    """Return batches `[start, stop)` of `rank`: real entries by `positions_of`, then padding."""
    positions, num_real = _positions(share, order, rank, start, stop, positions_of)
    is_real = None if num_real == len(positions) else np.arange(len(positions)) < num_real
    return Block(
        first=start,
        indices=order.indices(positions),
        bounds=share.bounds(rank, start, stop),
        is_real=is_real,
    )


def pick(
    share: Share, order: EpochOrder, rank: int, numbers: range, positions_of: PositionsOf
) -> tuple[Indices, Indices]:
    """Return the indices of batches `numbers`, end to end, and their bounds.

    Positions are cheap, so those between are computed too; indices are not, so those are left out.
    """
    start, stop = numbers[0], numbers[-1] + 1
    positions, _ = _positions(share, order, rank, start, stop, positions_of)
    bounds, chosen = every_nth(share.bounds(rank, start, stop), numbers.step)
    return order.indices(positions[chosen]), bounds


def _positions(
    share: Share,
    order: EpochOrder,
    rank: int,
    start: int,
    stop: int,
    positions_of: PositionsOf,
) -> tuple[Indices, int]:
    """Return the positions of batches `[start, stop)`, and how many of them are not padding."""
    first, end = share.span(rank, start, stop)
    num_real = share.num_real(rank, first, end)
    positions = positions_of(rank, first, first + num_real)
    if num_real < end - first:
        padding = share.padding_places(rank, first + num_real, end) % order.num_positions
        positions = np.concatenate([positions, padding])
    return positions, num_real
