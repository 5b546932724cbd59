"""Buckets dealt to ranks: their batch sizes, and what is left of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from feedline.errors import InvalidValueError, check_integer, check_positive, check_sequence
from feedline.plan.ahead import BlocksAhead
from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.bucket_shares import BucketShares, sum_of
from feedline.plan.draws import Draws
from feedline.plan.frozen import described, store
from feedline.plan.interleave import Layout, edges_of
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.shares import MAX_BATCH, PrefixRest, StridedDeal
from feedline.plan.skipping import HoledOrder, Spans
from feedline.words import one_line, several

_MOST_ORDERS = 4096


@runtime_checkable
class BatchRule(Protocol):
    """Turns the run's batch size into that of one bucket."""

    def batch_size(self, bucket: int, batch_size: int) -> int:
        """Return the number of samples of `bucket` in a batch."""

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the answer, as JSON values."""


@dataclass(frozen=True)
class FixedBatch:
    """The same number of samples in every bucket."""

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return batch_size

    def describe(self) -> dict[str, Any]:
        return {"kind": "fixed"}


@one_line
@dataclass(frozen=True)
class CostBatch:
    """Fewer samples where each costs more: `batch_size / cost`, rounded down, at least one.

    `costs` holds the cost of a sample of each bucket, as a multiple of the sample that `batch_size`
    refers to.

    Args:
        costs: What a sample of each bucket costs.

    Examples:
        >>> CostBatch((1, 4)).batch_size(1, 32)
        8
    """

    costs: Sequence[float]

    def __post_init__(self) -> None:
        given = check_sequence("costs", self.costs)
        store(
            self, costs=tuple(check_positive(f"costs[{i}]", cost) for i, cost in enumerate(given))
        )

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return max(1, math.floor(batch_size / Fraction(self.costs[bucket])))

    def describe(self) -> dict[str, Any]:
        return described(self, kind="cost")


@one_line
@dataclass(frozen=True)
class TokenBatch:
    """As many samples as fit into a token budget, with padding to the bucket's length.

    Here the run's batch size is the budget.

    Args:
        lengths: The length that samples of each bucket are padded to.

    Examples:
        >>> TokenBatch((128, 512)).batch_size(1, 4096)
        8
    """

    lengths: Sequence[int]

    def __post_init__(self) -> None:
        given = check_sequence("lengths", self.lengths)
        checked = (check_integer(f"lengths[{i}]", size, 1) for i, size in enumerate(given))
        store(self, lengths=tuple(checked))

    def batch_size(self, bucket: int, batch_size: int) -> int:
        length = self.lengths[bucket]
        if batch_size < length:
            raise InvalidValueError(
                f"batch_size={batch_size} tokens must be at least {length}, the length of bucket "
                f"{bucket}; increase the budget or remove samples of that length"
            )
        return batch_size // length

    def describe(self) -> dict[str, Any]:
        return described(self, kind="tokens")


def check_rule(rule: Any, num_buckets: int) -> None:
    """Raise unless `rule` is a rule for `num_buckets` buckets."""
    if not isinstance(rule, BatchRule):
        raise InvalidValueError(f"rule={rule!r:.80} must be a BatchRule, such as FixedBatch()")
    known = getattr(rule, "costs", getattr(rule, "lengths", None))
    if known is not None and len(known) != num_buckets:
        raise InvalidValueError(
            f"rule has {several(len(known), 'entry', 'entries')} but must have one for each of the "
            f"{several(num_buckets, 'bucket')}"
        )


def batch_sizes_of(rule: BatchRule, num_buckets: int, batch_size: int) -> Indices:
    """Return the number of samples in a batch of each bucket.

    Examples:
        >>> batch_sizes_of(CostBatch((1, 4)), 2, 32).tolist()
        [32, 8]
    """
    # Not isinstance: a subclass may have rules of its own.
    if type(rule) is FixedBatch:
        return np.full(num_buckets, batch_size, dtype=np.int64)
    if type(rule) is TokenBatch and max(rule.lengths) <= batch_size:
        fitting: Indices = batch_size // np.array(rule.lengths, dtype=np.int64)
        return fitting
    if type(rule) is CostBatch and batch_size / min(rule.costs) <= MAX_BATCH:
        # numpy takes the remainder first, which is exact, so the quotient is exact too.
        whole = np.floor_divide(float(batch_size), np.array(rule.costs))
        at_least_one: Indices = np.maximum(whole, 1).astype(np.int64)
        return at_least_one
    sizes = (rule.batch_size(bucket, batch_size) for bucket in range(num_buckets))
    checked = [
        check_integer(f"the batch size of bucket {bucket}", size, 1, MAX_BATCH)
        for bucket, size in enumerate(sizes)
    ]
    return np.array(checked, dtype=np.int64)


class BucketOrders(Protocol):
    """One epoch of buckets."""

    members: list[range | Indices]
    sizes: Indices
    rule: BatchRule
    tail: str

    def order_of(self, bucket: int) -> EpochOrder:
        """Return the order of one bucket's samples."""

    def layout(self, counts: Indices, segment: int) -> Layout:
        """Return which bucket each batch of a segment comes from."""


@dataclass(frozen=True, eq=False)
class BucketRest:
    """What is left: each bucket is consumed in its own order, so one number per bucket says it."""

    epoch: BucketOrders
    consumed: Indices
    segment: int = 0

    @classmethod
    def whole(cls, epoch: BucketOrders) -> BucketRest:
        """Return an epoch of which nothing is consumed."""
        return cls(epoch, np.zeros(len(epoch.sizes), dtype=np.int64))

    @property
    def num_left(self) -> int:
        return sum_of(self.epoch.sizes - self.consumed)

    def deal(self, world_size: int, batch_size: int) -> BucketDeal:
        return BucketDeal(self, world_size, batch_size)


class BucketDeal:
    """Batches of all buckets, every rank in the same bucket at the same step."""

    def __init__(self, rest: BucketRest, world_size: int, batch_size: int) -> None:
        self._rest, self._world_size = rest, world_size
        epoch = rest.epoch
        sizes = batch_sizes_of(epoch.rule, len(epoch.sizes), batch_size)
        self._shares = BucketShares(epoch.sizes - rest.consumed, world_size, sizes, epoch.tail)
        counts = self._shares.num_batches
        self._layout = epoch.layout(counts, rest.segment)
        self.num_batches = sum_of(counts)
        self._ahead = BlocksAhead(self._block_of, self.num_batches)
        # A bucket's order is prepared at its first batch; of very many, the latest are kept.
        self._deal_of = lru_cache(maxsize=_MOST_ORDERS)(self._make_deal)

    def _make_deal(self, bucket: int) -> StridedDeal:
        rest = self._rest
        order, consumed = rest.epoch.order_of(bucket), int(rest.consumed[bucket])
        batch_size = int(self._shares.batch_sizes[bucket])
        return PrefixRest(order, rest.epoch.tail, consumed).deal(self._world_size, batch_size)

    @property
    def num_dropped(self) -> int:
        return self._shares.num_dropped

    @property
    def num_padded(self) -> int:
        return self._shares.num_padded

    def block(self, rank: int, start: int, stop: int) -> Block:
        # A block of few batches has a handful of each bucket.
        return self._ahead.block(rank, start, stop)

    def _block_of(self, rank: int, start: int, stop: int) -> Block:
        return self._merged(start, stop, lambda deal, first, end: deal.block(rank, first, end))

    def draws(self, rank: int, numbers: range) -> Draws:
        def of_bucket(deal: StridedDeal, first: int, end: int) -> Block:
            draws = deal.draws(rank, range(first, end))
            bounds = deal.share.bounds(rank, first, end)
            return Block(first=first, indices=draws.numbers, bounds=bounds)

        # A bucket is not a source: its samples may be in another bucket in another plan.
        block = self._merged(numbers[0], numbers[-1] + 1, of_bucket)
        chosen = block.indices[every_nth(block.bounds, numbers.step)[1]]
        return Draws(np.zeros(len(chosen), dtype=np.int64), chosen)

    def _merged(
        self, start: int, stop: int, part: Callable[[StridedDeal, int, int], Block]
    ) -> Block:
        """Return batches `[start, stop)`; `part` returns consecutive ones of a bucket."""
        buckets, ordinals = self._layout.locate(np.arange(start, stop))
        if len(buckets) and buckets[0] == buckets[-1] and (buckets == buckets[0]).all():
            first = int(ordinals[0])
            own = part(self._deal_of(int(buckets[0])), first, first + len(buckets))
            return Block(
                first=start,
                indices=own.indices,
                bounds=own.bounds,
                is_real=own.is_real,
                buckets=buckets,
            )
        by_bucket = np.argsort(buckets, kind="stable")
        edges = np.flatnonzero(np.diff(buckets[by_bucket], prepend=-1, append=-1))
        parts = []
        for low, high in pairwise(edges.tolist()):
            numbers = by_bucket[low:high]
            # A bucket's batches come in order, so those of a block are consecutive.
            first = int(ordinals[numbers[0]])
            deal = self._deal_of(int(buckets[numbers[0]]))
            parts.append((numbers, part(deal, first, first + high - low)))
        return _merge(start, stop - start, parts, buckets)

    def num_real(self, start: int, stop: int) -> int:
        if stop - start > len(self._rest.consumed):
            before, then = self._layout.counts_before(start), self._layout.counts_before(stop)
            consumed = self._shares.num_consumed
            return sum_of(consumed(then) - consumed(before))
        buckets, ordinals = self._layout.locate(np.arange(start, stop))
        reached = self._shares.num_consumed(ordinals + 1, buckets)
        return sum_of(reached - self._shares.num_consumed(ordinals, buckets))

    def num_left_after(self, num_batches: int) -> int:
        return self._rest.num_left - self.num_real(0, num_batches)

    def after(self, num_batches: int) -> BucketRest:
        counts = self._layout.counts_before(num_batches)
        consumed = self._rest.consumed + self._shares.num_consumed(counts)
        return BucketRest(self._rest.epoch, consumed, self._rest.segment + 1)

    def without(self, num_batches: int, skips: Spans) -> BucketRest:
        """Return what is left after `num_batches`, without some batches that follow."""
        rest = self.after(num_batches)
        lows, highs = (
            np.array([self.after(skip[side]).consumed for skip in skips]) for side in (0, 1)
        )
        return BucketRest(_SkippingBuckets(rest.epoch, lows, highs), rest.consumed, rest.segment)

    def find(self, index: int) -> list[Place]:
        found = []
        for bucket, members in enumerate(self._rest.epoch.members):
            if index not in members:
                continue
            places = sorted(self._deal_of(bucket).find(index))
            batches = np.array([place.batch for place in places], dtype=np.int64)
            numbers = self._layout.positions_of(bucket, batches).tolist()
            found += [
                place._replace(batch=number) for place, number in zip(places, numbers, strict=True)
            ]
        return found


class _SkippingBuckets:
    """An epoch of buckets without some samples: those at `[low, high)` in each bucket's order."""

    def __init__(self, epoch: BucketOrders, lows: Indices, highs: Indices) -> None:
        self._epoch, self._lows, self._highs = epoch, lows, highs
        self.members = epoch.members
        self.sizes = epoch.sizes - (highs - lows).sum(axis=0)
        self.rule, self.tail = epoch.rule, epoch.tail

    def order_of(self, bucket: int) -> EpochOrder:
        holes = zip(self._lows[:, bucket].tolist(), self._highs[:, bucket].tolist(), strict=True)
        order = self._epoch.order_of(bucket)
        return HoledOrder(order, tuple((low, high) for low, high in holes if low < high))

    def layout(self, counts: Indices, segment: int) -> Layout:
        return self._epoch.layout(counts, segment)


def _merge(first: int, num_batches: int, parts: list[tuple[Any, Block]], buckets: Any) -> Block:
    """Return one block out of the blocks of several buckets, each with its batch numbers."""
    lengths = np.zeros(num_batches, dtype=np.int64)
    for numbers, block in parts:
        lengths[numbers] = block.bounds[1:] - block.bounds[:-1]
    bounds = edges_of(lengths)
    indices = np.empty(int(bounds[-1]), dtype=np.int64)
    size = int(lengths[0]) if num_batches else 0
    if (
        size * num_batches == len(indices)
        and (lengths == size).all()
        and all(block.is_real is None for _, block in parts)
    ):
        rows = indices.reshape(num_batches, size)
        for numbers, block in parts:
            rows[numbers] = block.indices.reshape(len(numbers), size)
        return Block(first=first, indices=indices, bounds=bounds, buckets=buckets)
    is_real = None
    if any(block.is_real is not None for _, block in parts):
        is_real = np.ones(len(indices), dtype=np.bool_)
    for numbers, block in parts:
        shift = np.repeat(bounds[numbers] - block.bounds[:-1], np.diff(block.bounds))
        places = shift + np.arange(len(block.indices))
        indices[places] = block.indices
        if is_real is not None and block.is_real is not None:
            is_real[places] = block.is_real
    return Block(first=first, indices=indices, bounds=bounds, is_real=is_real, buckets=buckets)
