"""Plans of chunk samplers: which rows a cursor is for, and contiguous shards of them.

With contiguous shards, rank r of W draws from the r-th part of the rows, and from no other. What a
rank has left depends on its shard, so an epoch resumes only on the same number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.lazy import lazy
from feedline.plan import (
    Block,
    Cursor,
    Deal,
    Order,
    PastSegment,
    Place,
    Plan,
    Remaining,
    RoundsPlan,
    Segment,
)
from feedline.plan.seeds import Seed, derive_key
from feedline.words import one_line

OrderOn = Callable[[int, int, Seed], Order]


@one_line
@dataclass(frozen=True, kw_only=True)
class RowsPlan(Plan):
    """The order of `plan`, for rows `[start, stop)` of a matrix; indices count from `start`.

    Cursors from before masks were part of them are compared without the mask; those of a loader,
    which name the data, without the data.
    """

    plan: Plan
    start: int
    stop: int

    @property
    def num_indices(self) -> int:
        return self.plan.num_indices

    def begin(self, epoch: int) -> Remaining:
        return self.plan.begin(epoch)

    def describe(self) -> dict[str, Any]:
        return {"kind": "rows", "mask": [self.start, self.stop], "plan": self.plan.describe()}

    def resume(self, cursor: Cursor, *, world_size: int, batch_size: int) -> Segment:
        if isinstance(cursor, Cursor):
            fields = cursor.fields
            inner = fields.get("plan")
            if fields.get("kind") == "data" and isinstance(inner, Mapping):
                fields = {"order_version": fields.get("order_version"), **inner}
            if fields.get("kind") != "rows":
                replace(cursor, fields=fields).check_fields(self.plan.fields)
                fields = self.fields
            cursor = replace(cursor, fields=fields)
        return super().resume(cursor, world_size=world_size, batch_size=batch_size)


def shard_bounds(num_rows: int, world_size: int, rank: int, multiple_of: int) -> tuple[int, int]:
    """Return the start and end of a rank's shard; its size is rounded down to a multiple.

    Examples:
        >>> shard_bounds(103, world_size=2, rank=1, multiple_of=10)
        (50, 100)
    """
    size = num_rows // world_size
    size -= size % multiple_of
    if size == 0:
        raise InvalidValueError(
            f"world_size={world_size} is too large to divide {num_rows} rows into shards that are "
            f"multiples of {multiple_of}; use fewer ranks, smaller batches or "
            "enforce_equal_batches=False"
        )
    return rank * size, (rank + 1) * size


@one_line
@dataclass(frozen=True, kw_only=True, eq=False)
class ShardsPlan(Plan):
    """Every rank's own order over its own shard, equally many rows on each."""

    num_rows: int
    order_on: OrderOn = field(repr=False)
    seed: Seed
    tail: str
    multiple_of: int

    @property
    def num_indices(self) -> int:
        return self.num_rows

    def begin(self, epoch: int) -> Remaining:
        return _ShardsRest(self, epoch)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "contiguous shards",
            "order": self.order_on(0, self.num_rows, self.seed).describe(),
            "tail": self.tail,
            "multiple_of": self.multiple_of,
        }

    def shard(self, rank: int, world_size: int) -> tuple[int, Plan]:
        """Return the first row of a rank's shard, and the plan over it."""
        start, stop = shard_bounds(self.num_rows, world_size, rank, self.multiple_of)
        seed = derive_key(self.seed, "shard", 0, rank)
        return start, RoundsPlan(order=self.order_on(start, stop, seed), tail=self.tail)


@dataclass(frozen=True)
class _ShardsRest:
    """What is left after some batches, the same number on each rank of `world_size`."""

    plan: ShardsPlan
    epoch: int
    history: tuple[PastSegment, ...] = ()

    @property
    def num_left(self) -> int:
        if not self.history:
            return self.plan.num_rows
        world_size = self.history[0].world_size
        return world_size * self.of_rank(0, world_size).num_left

    def of_rank(self, rank: int, world_size: int) -> Remaining:
        """Return what is left of one rank's shard."""
        remaining = self.plan.shard(rank, world_size)[1].begin(self.epoch)
        for past in self.history:
            remaining = remaining.deal(1, past.batch_size).after(past.num_batches)
        return remaining

    def deal(self, world_size: int, batch_size: int) -> Deal:
        if self.history and self.history[0].world_size != world_size:
            raise PlanMismatchError(
                f"world_size={world_size} must be {self.history[0].world_size}, as when the state "
                "was saved, because contiguous shards tie rows to ranks; resume on the same "
                "number of ranks, or start a run with shards='windows'",
                {"world_size": (self.history[0].world_size, world_size)},
            )
        return _ShardsDeal(self, world_size, batch_size)


class _ShardsDeal:
    """Each rank's shard in batches. A shard is computed when its rank is asked for.

    Shards have equally many rows, so what counts entries asks the first one only.
    """

    def __init__(self, rest: _ShardsRest, world_size: int, batch_size: int) -> None:
        self._rest = rest
        self._world_size = world_size
        self._batch_size = batch_size
        self._deals: dict[int, tuple[int, Deal]] = {}

    @lazy
    def num_batches(self) -> int:
        return self._of(0)[1].num_batches

    @property
    def num_dropped(self) -> int:
        rows = shard_bounds(self._rest.plan.num_rows, self._world_size, 0, self._multiple)[1]
        beyond = self._rest.plan.num_rows - rows * self._world_size
        return beyond + self._world_size * self._of(0)[1].num_dropped

    @property
    def num_padded(self) -> int:
        return self._world_size * self._of(0)[1].num_padded

    @property
    def _multiple(self) -> int:
        return self._rest.plan.multiple_of

    def block(self, rank: int, start: int, stop: int) -> Block:
        first, deal = self._of(rank)
        block = deal.block(0, start, stop)
        return replace(block, indices=block.indices + first)

    def num_real(self, start: int, stop: int) -> int:
        return self._world_size * self._of(0)[1].num_real(start, stop)

    def after(self, num_batches: int) -> Remaining:
        if not num_batches:
            return self._rest
        past = PastSegment(self._world_size, self._batch_size, num_batches)
        return _ShardsRest(self._rest.plan, self._rest.epoch, (*self._rest.history, past))

    def find(self, index: int) -> list[Place]:
        size = shard_bounds(self._rest.plan.num_rows, self._world_size, 0, self._multiple)[1]
        rank = index // size
        if rank >= self._world_size:
            return []
        places = self._of(rank)[1].find(index - rank * size)
        return [place._replace(rank=rank) for place in places]

    def _of(self, rank: int) -> tuple[int, Deal]:
        if rank not in self._deals:
            first, _ = self._rest.plan.shard(rank, self._world_size)
            remaining = self._rest.of_rank(rank, self._world_size)
            self._deals[rank] = first, remaining.deal(1, self._batch_size)
        return self._deals[rank]
