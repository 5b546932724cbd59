"""The bucket order of the system that `SequentialBucketSampler` continues, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.compat.torch_order import ListedEpoch, check_torch_seed, generator_of, random_order
from feedline.lazy import lazy
from feedline.plan import BatchRule, Bucket, EpochOrder, FixedBatch, Plan, Remaining
from feedline.plan.bucket_deal import BucketRest
from feedline.plan.frozen import store
from feedline.plan.interleave import Consecutive, Layout
from feedline.plan.orders import DeferredEpoch


@dataclass(frozen=True, kw_only=True)
class TorchBucketPlan(Plan):
    """One `randperm` over the buckets, then one per bucket in that order, from one generator."""

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

    @property
    def num_indices(self) -> int:
        return max(bucket.end for bucket in self.buckets)

    def begin(self, epoch: int) -> Remaining:
        # Drawing costs time in proportion to the dataset, so the latest epoch is kept.
        if epoch not in self._latest:
            self._latest.clear()
            self._latest[epoch] = _TorchBucketEpoch(self, epoch)
        return BucketRest(self._latest[epoch], (0,) * len(self.buckets), 0)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch buckets",
            "buckets": [bucket.description for bucket in self.buckets],
            "rule": self.rule.describe(),
            "shuffle_buckets": bool(self.shuffle_buckets),
            "shuffle_within": bool(self.shuffle_within),
            "tail": self.tail,
            "seed": self.seed,
        }


class _TorchBucketEpoch:
    """One epoch; the lists are made when the first of them is needed."""

    def __init__(self, plan: TorchBucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self.members = [bucket.members for bucket in plan.buckets]
        self.rule = plan.rule
        self.tail = plan.tail

    @lazy
    def _drawn(self) -> tuple[list[int], dict[int, NDArray[np.int64]]]:
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

    def layout(self, counts: list[int], segment: int) -> Layout:
        return Consecutive(counts, self._drawn[0])
