"""The orders of the systems that Feedline continues, bit for bit.

They come from `torch.Generator` seeded with `seed + epoch` and `randperm`, so they cost time and
memory proportional to the dataset, and epoch 1 of seed 0 equals epoch 0 of seed 1. Use them only to
continue a run that was started elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.lazy import lazy
from feedline.plan import BatchRule, Bucket, EpochOrder, FixedBatch, Order, Plan, Remaining
from feedline.plan.bucket_deal import BucketRest
from feedline.plan.bucket_digests import describe_buckets, describe_rule
from feedline.plan.draws import Draws
from feedline.plan.frozen import store
from feedline.plan.interleave import Consecutive, Layout
from feedline.plan.orders import DeferredEpoch
from feedline.plan.permutation import MAX_SIZE
from feedline.words import one_line

Indices = NDArray[np.int64]


def check_torch_seed(seed: Any) -> int:
    """Return `seed` if a torch generator accepts it, or raise."""
    if isinstance(seed, str):
        raise InvalidValueError(f"seed={seed!r} must be an integer with order='torch'")
    return check_integer("seed", seed, -(2**63), 2**63 - 1)


def generator_of(seed: int, epoch: int) -> torch.Generator:
    """Return the generator of one epoch."""
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return generator


def random_order(size: int, generator: torch.Generator) -> Indices:
    """Return the next random permutation of a generator."""
    order: Indices = torch.randperm(size, generator=generator).numpy()
    return order


class ListedEpoch:
    """An epoch whose order is a list."""

    def __init__(self, listed: Indices) -> None:
        self.num_positions = len(listed)
        self._listed = listed

    def indices(self, positions: Indices) -> Indices:
        chosen: Indices = self._listed[positions]
        return chosen

    def draws(self, positions: Indices) -> Draws:
        return Draws.once(len(positions))

    def find(self, index: int) -> Indices:
        return np.flatnonzero(self._listed == index)


@one_line
@dataclass(frozen=True, kw_only=True)
class TorchShuffled(Order):
    """One `randperm` over the dataset, as torch's DistributedSampler draws it."""

    num_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        store(
            self,
            num_samples=check_integer("num_samples", self.num_samples, 1, MAX_SIZE),
            seed=check_torch_seed(self.seed),
        )

    @property
    def num_indices(self) -> int:
        return self.num_samples

    def at(self, epoch: int) -> EpochOrder:
        def draw() -> EpochOrder:
            return ListedEpoch(random_order(self.num_samples, generator_of(self.seed, epoch)))

        return DeferredEpoch(self.num_samples, draw)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch shuffled",
            "num_samples": self.num_samples,
            "seed": self.seed,
        }


@one_line
@dataclass(frozen=True, kw_only=True)
class TorchBucketPlan(Plan):
    """One `randperm` over the buckets, then one per bucket in that order, from one generator.

    It is the order of the system that `SequentialBucketSampler` continues.
    """

    buckets: Sequence[Bucket]
    rule: BatchRule = field(default_factory=FixedBatch)
    shuffle_buckets: bool = True
    shuffle_within: bool = True
    tail: str = "pad_ranks_drop"
    seed: int = 0
    _latest: dict[int, _TorchBucketEpoch] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        store(self, buckets=tuple(self.buckets), seed=check_torch_seed(self.seed))

    @lazy
    def num_indices(self) -> int:
        return max(bucket.end for bucket in self.buckets)

    def begin(self, epoch: int) -> Remaining:
        # Drawing costs time in proportion to the dataset, so the latest epoch is kept.
        if epoch not in self._latest:
            self._latest.clear()
            self._latest[epoch] = _TorchBucketEpoch(self, epoch)
        return BucketRest.whole(self._latest[epoch])

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch buckets",
            "buckets": self._described,
            "rule": describe_rule(self.rule),
            "shuffle_buckets": bool(self.shuffle_buckets),
            "shuffle_within": bool(self.shuffle_within),
            "tail": self.tail,
            "seed": self.seed,
        }

    @lazy
    def _described(self) -> Any:
        return describe_buckets(self.buckets)


class _TorchBucketEpoch:
    """One epoch; the lists are made when the first of them is needed."""

    def __init__(self, plan: TorchBucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self.members = [bucket.members for bucket in plan.buckets]
        self.sizes = np.array(list(map(len, self.members)), dtype=np.int64)
        self.rule = plan.rule
        self.tail = plan.tail

    @lazy
    def _drawn(self) -> tuple[list[int], dict[int, Indices]]:
        plan = self._plan
        generator = generator_of(plan.seed, self._epoch)
        sequence = list(range(len(plan.buckets)))
        if plan.shuffle_buckets:
            sequence = random_order(len(sequence), generator).tolist()
        orders = {}
        for bucket in sequence:
            members = np.asarray(self.members[bucket])
            if plan.shuffle_within:
                members = members[random_order(len(members), generator)]
            orders[bucket] = members
        return sequence, orders

    def order_of(self, bucket: int) -> EpochOrder:
        return DeferredEpoch(len(self.members[bucket]), lambda: ListedEpoch(self._drawn[1][bucket]))

    def layout(self, counts: Indices, segment: int) -> Layout:
        return Consecutive(counts, self._drawn[0])
