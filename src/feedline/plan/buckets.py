"""Buckets: samples that may share a batch, all ranks in the same bucket at the same step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import (
    InvalidValueError,
    check_choice,
    check_flag,
    check_integer,
    check_sequence,
)
from feedline.lazy import lazy
from feedline.plan.bucket_deal import (
    BatchRule,
    BucketRest,
    CostBatch,
    FixedBatch,
    TokenBatch,
    batch_sizes_of,
    check_rule,
)
from feedline.plan.bucket_digests import describe_buckets, describe_rule
from feedline.plan.deals import Remaining
from feedline.plan.frozen import described, store
from feedline.plan.interleave import Consecutive, Interleave, Layout
from feedline.plan.orders import (
    DeferredEpoch,
    EpochOrder,
    PermutedEpoch,
    SelectedEpoch,
    check_members,
    describe_members,
    end_of,
)
from feedline.plan.permutation import MAX_SIZE, Permutation
from feedline.plan.plan import Plan
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.plan.shares import check_tail
from feedline.plan.versions import of_kind
from feedline.words import one_line, several, shown

_BATCHES_PER_BLOCK = 1024
_FIXED = FixedBatch()


@one_line
@dataclass(frozen=True, eq=False, slots=True)
class Bucket:
    """Samples that may share a batch: a range, or a list that costs 8 bytes an entry.

    Args:
        key: What the bucket is called, such as a resolution or a length.
        members: Its samples: a range, or a list of indices.
    """

    key: Hashable
    members: range | NDArray[np.int64]

    def __post_init__(self) -> None:
        members = check_members(f"bucket {self.key!r}", self.members)
        if len(members) == 0:
            raise InvalidValueError(
                f"bucket {self.key!r} has 0 samples but must have at least 1; remove it"
            )
        store(self, members=members)

    @property
    def end(self) -> int:
        """One more than the largest index."""
        return end_of(self.members)

    def describe(self) -> dict[str, Any]:
        """Return the bucket as JSON values."""
        return {"key": repr(self.key), "members": describe_members(self.members)}


@dataclass(frozen=True, kw_only=True, repr=False)
class BucketPlan(Plan):
    """Batches that each come from one bucket.

    Args:
        buckets: The buckets, in the order in which they are consumed when nothing is shuffled.
        rule: The number of samples of a bucket in a batch.
        mode: `sequential` finishes a bucket before the next; `interleaved` mixes batches of all
            buckets within blocks of about a thousand batches.
        shuffle_buckets: Shuffle the buckets in every epoch.
        shuffle_within: Shuffle the samples of each bucket in every epoch.
        tail: The tail policy of each bucket; see `Share`.
        seed: Any integer or string.

    Examples:
        >>> plan = BucketPlan.from_groups({"wide": range(6), "tall": range(6, 10)})
        >>> segment = plan.segment(world_size=2, batch_size=1)
        >>> segment.num_batches
        5
    """

    buckets: Sequence[Bucket]
    rule: BatchRule = field(default_factory=FixedBatch)
    mode: str = "sequential"
    shuffle_buckets: bool = True
    shuffle_within: bool = True
    tail: str = "drop"
    seed: Seed = 0

    def __post_init__(self) -> None:
        store(self, buckets=check_sequence("buckets", self.buckets), seed=check_seed(self.seed))
        if not self.buckets:
            raise InvalidValueError("buckets=() must contain at least one bucket")
        for bucket in self.buckets:
            if not isinstance(bucket, Bucket):
                raise InvalidValueError(
                    f"buckets contains {bucket!r:.80} but must contain Bucket objects"
                )
        for name in ("shuffle_buckets", "shuffle_within"):
            store(self, **{name: check_flag(name, getattr(self, name))})
        check_rule(self.rule, len(self.buckets))
        check_choice("mode", self.mode, ("sequential", "interleaved"))
        check_tail(self.tail)

    @classmethod
    def from_groups(
        cls,
        groups: Mapping[Any, range | ArrayLike],
        *,
        cost: Callable[[Any], float] | None = None,
        base_cost: float = 1.0,
        rule: BatchRule = _FIXED,
        mode: str = "sequential",
        shuffle_buckets: bool = True,
        shuffle_within: bool = True,
        tail: str = "drop",
        seed: Seed = 0,
    ) -> BucketPlan:
        """Return a plan over explicit groups.

        Args:
            groups: The indices of each bucket, by its key.
            cost: Returns what a sample of a bucket costs, given its key. A batch then has
                `batch_size * base_cost / cost(key)` samples, rounded down, and at least one.
            base_cost: The cost of a sample that the batch size speaks of.
            rule: How many samples of a bucket make a batch; give this or `cost`.
            mode: `sequential` or `interleaved`; see `BucketPlan`.
            shuffle_buckets: Whether buckets come in a new order in every epoch.
            shuffle_within: Whether the samples of a bucket come in a new order in every epoch.
            tail: What happens to the tail of each bucket; see `Share`.
            seed: Any integer or string.
        """
        if not isinstance(groups, Mapping):
            raise InvalidValueError(f"groups={groups!r:.80} must be a mapping from key to indices")
        buckets = [Bucket(key, members) for key, members in groups.items()]  # type: ignore[arg-type]
        if cost is not None:
            costs = CostBatch([cost(bucket.key) for bucket in buckets]).costs
            if not isinstance(base_cost, int | float) or not base_cost > 0:
                raise InvalidValueError(f"base_cost={base_cost!r:.80} must be a number above 0")
            if rule != _FIXED:
                raise InvalidValueError(f"rule={rule!r:.80} and cost: give only one of them")
            rule = CostBatch([value / base_cost for value in costs])
        return cls(
            buckets=buckets,
            rule=rule,
            mode=mode,
            shuffle_buckets=shuffle_buckets,
            shuffle_within=shuffle_within,
            tail=tail,
            seed=seed,
        )

    @classmethod
    def from_lengths(
        cls,
        lengths: ArrayLike,
        *,
        edges: Sequence[int] | None = None,
        num_buckets: int | None = None,
        batch_by: str = "samples",
        rule: BatchRule = _FIXED,
        mode: str = "sequential",
        shuffle_buckets: bool = True,
        shuffle_within: bool = True,
        tail: str = "drop",
        seed: Seed = 0,
    ) -> BucketPlan:
        """Return a plan that puts samples of similar length into one bucket.

        A bucket's key is its edge, the greatest length in it.

        Args:
            lengths: The length of each sample.
            edges: The greatest length of each bucket; give this or `num_buckets`.
            num_buckets: The number of buckets, with quantiles of the lengths as edges.
            batch_by: `samples`, or `tokens` where the batch size is a budget: the samples of a
                batch times the bucket's edge never exceed it.
            rule: How many samples of a bucket make a batch, in place of `batch_by`.
            mode: `sequential` or `interleaved`; see `BucketPlan`.
            shuffle_buckets: Whether buckets come in a new order in every epoch.
            shuffle_within: Whether the samples of a bucket come in a new order in every epoch.
            tail: What happens to the tail of each bucket; see `Share`.
            seed: Any integer or string.

        Examples:
            >>> plan = BucketPlan.from_lengths([3, 9, 4, 8], edges=[4, 16], batch_by="tokens")
            >>> [len(bucket.members) for bucket in plan.buckets]
            [2, 2]
        """
        check_choice("batch_by", batch_by, ("samples", "tokens"))
        members = members_by_length(lengths, edges, num_buckets)
        if batch_by == "tokens":
            if rule != _FIXED:
                raise InvalidValueError(
                    f"rule={rule!r:.80} and batch_by='tokens': give only one of them"
                )
            rule = TokenBatch(list(members))
        return cls(
            buckets=[Bucket(edge, inside) for edge, inside in members.items()],
            rule=rule,
            mode=mode,
            shuffle_buckets=shuffle_buckets,
            shuffle_within=shuffle_within,
            tail=tail,
            seed=seed,
        )

    def __repr__(self) -> str:
        num_samples = sum(len(bucket.members) for bucket in self.buckets)
        counts = f"{several(len(self.buckets), 'bucket')}, {several(num_samples, 'sample')}"
        options = f"tail={self.tail!r}, rule={shown(self.rule, 50)}, seed={shown(self.seed, 50)}"
        return f"{type(self).__name__}({counts}, mode={self.mode!r}, {options})"

    @property
    def is_selection(self) -> bool:
        return True

    @lazy
    def num_indices(self) -> int:
        return max(bucket.end for bucket in self.buckets)

    def begin(self, epoch: int) -> Remaining:
        return BucketRest.whole(_BucketEpoch(self, epoch))

    @lazy
    def members(self) -> list[range | NDArray[np.int64]]:
        """The samples of each bucket."""
        return [bucket.members for bucket in self.buckets]

    @lazy
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples in each bucket."""
        return np.fromiter(map(len, self.members), dtype=np.int64, count=len(self.members))

    def largest_batch(self, batch_size: int) -> int:
        return int(batch_sizes_of(self.rule, len(self.buckets), batch_size).max())

    def describe(self) -> dict[str, Any]:
        kind = of_kind("buckets", has_changed=self.mode == "interleaved")
        return described(self, buckets=self._described, rule=self._rule, **kind)

    @lazy
    def _described(self) -> Any:
        return describe_buckets(self.buckets)

    @lazy
    def _rule(self) -> dict[str, Any]:
        return describe_rule(self.rule)

    def bucket_batch_size(self, bucket: int, batch_size: int) -> int:
        return self.rule.batch_size(bucket, batch_size)

    @property
    def has_equal_batches(self) -> bool:
        return isinstance(self.rule, FixedBatch)

    @property
    def num_listed(self) -> int:
        return sum(len(b.members) for b in self.buckets if isinstance(b.members, np.ndarray))

    def epoch_order(self, epoch: int, bucket: int = 0) -> EpochOrder:
        return _BucketEpoch(self, epoch).order_of(bucket)


class _BucketEpoch:
    """Everything about one epoch that does not depend on the ranks."""

    def __init__(self, plan: BucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self.members, self.sizes = plan.members, plan.sizes
        self.rule = plan.rule
        self.tail = plan.tail

    def order_of(self, bucket: int) -> EpochOrder:
        return DeferredEpoch(len(self.members[bucket]), lambda: self._prepare(bucket))

    def _prepare(self, bucket: int) -> EpochOrder:
        members = self.members[bucket]
        permutation = None
        if self._plan.shuffle_within:
            key = derive_key(self._plan.seed, "bucket", self._epoch, bucket)
            permutation = Permutation(len(members), key)
        return SelectedEpoch(PermutedEpoch(len(members), permutation), members)

    def layout(self, counts: NDArray[np.int64], segment: int) -> Layout:
        plan = self._plan
        if plan.mode == "interleaved":
            epoch = self._epoch if plan.shuffle_buckets else 0
            key = derive_key(plan.seed, "bucket layout", epoch, segment)
            return Interleave(counts, key=key, block_length=_BATCHES_PER_BLOCK)
        sequence = np.arange(len(counts))
        if plan.shuffle_buckets:
            key = derive_key(plan.seed, "bucket sequence", self._epoch)
            sequence = Permutation(len(counts), key).forward(sequence)
        return Consecutive(counts, sequence)


def members_by_length(
    lengths: ArrayLike, edges: Sequence[int] | None, num_buckets: int | None
) -> dict[int, NDArray[np.int64]]:
    """Return, for each edge that has any, the indices of the samples up to that length.

    The lists are views of one array, so together they cost 8 bytes a sample.
    """
    values = _check_lengths(lengths)
    if (edges is None) == (num_buckets is None):
        raise InvalidValueError(
            f"edges={edges!r} and num_buckets={num_buckets!r}: pass exactly one of them"
        )
    if edges is None:
        bounds = quantile_edges(values, check_integer("num_buckets", num_buckets, 1))
    else:
        bounds = _check_edges(edges)
    longest = int(values.argmax())
    if values[longest] > bounds[-1]:
        raise InvalidValueError(
            f"lengths[{longest}]={values[longest]} must be at most the last edge {bounds[-1]}; add "
            "an edge or remove longer samples"
        )
    which = np.searchsorted(bounds, values, side="left").astype(np.int32)
    by_bucket = np.argsort(which, kind="stable").astype(np.int64, copy=False)
    starts = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(bounds)))]).tolist()
    parts = zip(bounds.tolist(), starts, starts[1:], strict=False)
    return {edge: by_bucket[start:stop] for edge, start, stop in parts if stop > start}


def quantile_edges(lengths: NDArray[Any], num_buckets: int) -> NDArray[np.int64]:
    """Return the distinct lengths at the quantiles 1/num_buckets, 2/num_buckets, …, 1.

    Examples:
        >>> quantile_edges(np.array([5, 1, 4, 2, 3, 6]), 3).tolist()
        [2, 4, 6]
    """
    ranks = [-(-len(lengths) * i // num_buckets) - 1 for i in range(1, num_buckets + 1)]
    ranks = sorted({max(rank, 0) for rank in ranks})
    return np.unique(np.partition(lengths, ranks)[ranks]).astype(np.int64)


def _check_lengths(lengths: ArrayLike) -> NDArray[Any]:
    try:
        values = np.asarray(lengths)
    except ValueError:
        raise InvalidValueError(
            "lengths holds lists of different lengths but must hold integers; pass the length of "
            "each sample, such as [len(sample) for sample in samples]"
        ) from None
    if values.ndim != 1 or values.size == 0:
        raise InvalidValueError(
            f"lengths has shape {values.shape} but must be a list that is not empty"
        )
    if values.dtype.kind not in "iu":
        raise InvalidValueError(f"lengths holds {values.dtype} but must hold integers")
    if values.min() < 1:
        place = int(values.argmin())
        raise InvalidValueError(f"lengths[{place}]={values[place]} must be at least 1")
    if values.max() > MAX_SIZE:
        place = int(values.argmax())
        raise InvalidValueError(f"lengths[{place}]={values[place]} must be at most {MAX_SIZE}")
    return values


def _check_edges(edges: Sequence[int]) -> NDArray[np.int64]:
    given = check_sequence("edges", edges)
    values = [check_integer(f"edges[{i}]", edge, 1, MAX_SIZE) for i, edge in enumerate(given)]
    if not values or any(low >= high for low, high in pairwise(values)):
        raise InvalidValueError(f"edges={list(edges)} must be an increasing list that is not empty")
    return np.array(values, dtype=np.int64)
