"""Hypothesis strategies for every kind of plan, and the accounting that all of them must pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np

from feedline.errors import TailError
from feedline.plan import (
    BucketPlan,
    Concatenated,
    Cursor,
    EqualChunks,
    Mixture,
    Order,
    PastSegment,
    Phase,
    Plan,
    SamplePlan,
    Segment,
    Sequential,
    Shuffled,
    Subset,
    UnequalChunks,
    Weighted,
    WindowPlan,
)

TAILS = ("drop", "pad", "even", "pad_ranks", "pad_ranks_drop")
seeds = st.one_of(st.integers(-5, 2**70), st.text(max_size=4))
tails = st.sampled_from(TAILS)
small = st.integers(1, 60)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Every order in which each index comes once."""
    kind = draw(st.sampled_from(["sequential", "shuffled", "concatenated", "subset"]))
    num_samples = draw(small)
    if kind == "sequential":
        return Sequential(num_samples=num_samples)
    if kind == "shuffled":
        return Shuffled(num_samples=num_samples, seed=draw(seeds))
    if kind == "concatenated":
        parts = draw(st.lists(small, min_size=1, max_size=4))
        return Concatenated([Shuffled(num_samples=n, seed=draw(seeds)) for n in parts])
    if draw(st.booleans()):
        chosen = range(7, 7 + 3 * num_samples, 3)
        return Subset(chosen, order=Shuffled(num_samples=num_samples, seed=draw(seeds)))
    listed = draw(st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True))
    return Subset(listed, order=Shuffled(num_samples=len(listed), seed=draw(seeds)))


@st.composite
def sample_plans(draw: st.DrawFn) -> Plan:
    return SamplePlan(order=draw(orders()), tail=draw(tails))


@st.composite
def mixture_plans(draw: st.DrawFn) -> Plan:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    weight = st.one_of(st.integers(0, 5), st.floats(0.01, 10))
    lists = st.lists(weight, min_size=len(sizes), max_size=len(sizes)).filter(any)
    epoch_size = draw(st.integers(1, 120))
    strategy = draw(st.sampled_from(["repeat", "stop"]))
    starts = draw(st.lists(st.integers(0, epoch_size - 1), unique=True, max_size=3))
    phases = [Phase(weights=draw(lists), position=start) for start in sorted(starts) if start]
    order = Mixture(
        sizes=sizes,
        weights=draw(lists),
        temperature=draw(st.sampled_from([1.0, 0.5, 2.0])),
        epoch_size=epoch_size,
        strategy=strategy,
        phases=phases,
        shuffle=draw(st.booleans()),
        seed=draw(seeds),
    )
    return SamplePlan(order=order, tail=draw(tails))


@st.composite
def bucket_plans(draw: st.DrawFn) -> Plan:
    options = {
        "mode": draw(st.sampled_from(["sequential", "interleaved"])),
        "shuffle_buckets": draw(st.booleans()),
        "shuffle_within": draw(st.booleans()),
        "tail": draw(tails),
        "seed": draw(seeds),
    }
    kind = draw(st.sampled_from(["ranges", "lists", "cost", "lengths", "tokens"]))
    if kind in ("lengths", "tokens"):
        lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=60))
        by = "tokens" if kind == "tokens" else "samples"
        if draw(st.booleans()):
            return BucketPlan.from_lengths(lengths, edges=[3, 6, 9], batch_by=by, **options)
        num_buckets = draw(st.integers(1, 5))
        return BucketPlan.from_lengths(lengths, num_buckets=num_buckets, batch_by=by, **options)
    sizes = draw(st.lists(st.integers(1, 25), min_size=1, max_size=5))
    ends = np.cumsum([0, *sizes]).tolist()
    groups = {number: range(*ends[number : number + 2]) for number in range(len(sizes))}
    if kind == "lists":
        shuffled = np.random.default_rng(draw(st.integers(0, 99))).permutation(ends[-1])
        groups = {key: shuffled[list(members)] for key, members in groups.items()}
    if kind == "cost":
        options["cost"] = lambda key: 1 + key
    return BucketPlan.from_groups(groups, **options)


@st.composite
def window_plans(draw: st.DrawFn) -> Plan:
    if draw(st.booleans()):
        chunks = EqualChunks(
            num_samples=draw(st.integers(1, 150)), chunk_size=draw(st.integers(1, 9))
        )
    else:
        sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=25).filter(any))
        chunks = UnequalChunks(sizes)
    return WindowPlan(
        chunks=chunks,
        preload=draw(st.integers(1, 4)),
        shuffle=draw(st.booleans()),
        tail=draw(tails),
        seed=draw(seeds),
    )


@st.composite
def weighted_orders(draw: st.DrawFn) -> Weighted:
    """Weights with zeros among them, drawn with and without replacement."""
    weight = st.one_of(st.integers(0, 5), st.floats(0, 10))
    weights = draw(st.lists(weight, min_size=1, max_size=60).filter(any))
    replacement = draw(st.booleans())
    most = 120 if replacement else np.count_nonzero(weights)
    num_samples = draw(st.none() | st.integers(1, most))
    return Weighted(weights, num_samples, replacement, seed=draw(seeds))


@st.composite
def weighted_plans(draw: st.DrawFn) -> Plan:
    order: Order = draw(weighted_orders())
    kind = draw(st.sampled_from(["alone", "subset", "concatenated"]))
    if kind == "subset":
        order = Subset(range(5, 5 + 2 * order.num_indices, 2), order=order)
    if kind == "concatenated":
        order = Concatenated([order, Shuffled(num_samples=draw(small)), draw(weighted_orders())])
    return SamplePlan(order=order, tail=draw(tails))


any_plan = st.one_of(
    sample_plans(), mixture_plans(), bucket_plans(), window_plans(), weighted_plans()
)
world_sizes = st.integers(1, 7)
# Buckets by tokens have lengths up to 9, so a budget of at least 9 fits all of them.
batch_sizes = st.integers(9, 20) | st.integers(1, 5)


def fits(plan: Plan, batch_size: int) -> bool:
    """Whether a token budget holds the longest sample; always true for other plans."""
    return not (
        isinstance(plan, BucketPlan)
        and plan.rule.describe()["kind"] == "tokens"
        and batch_size < max(plan.rule.describe()["lengths"])
    )


def all_indices(plan: Plan, epoch: int) -> Counter[int]:
    """How often each index is due in an epoch, straight from the plan's own ingredients."""
    if isinstance(plan, SamplePlan):
        positions = np.arange(plan.order.num_positions(epoch))
        return Counter(plan.order.indices(epoch, positions).tolist())
    if isinstance(plan, BucketPlan):
        return Counter(int(i) for bucket in plan.buckets for i in bucket.members)
    assert isinstance(plan, WindowPlan)
    return Counter(range(plan.chunks.num_samples))


@dataclass
class Account:
    """What the ranks received in an epoch, segment by segment."""

    plan: Plan
    epoch: int

    def __post_init__(self) -> None:
        self.real: Counter[int] = Counter()
        self.num_padded = 0

    def receive(self, segment: Segment, start: int, stop: int) -> None:
        """Let every rank of the segment consume batches `[start, stop)`."""
        for rank in range(segment.world_size):
            for batch in segment.block(rank, start, stop):
                self.real.update(batch.indices[batch.is_real].tolist())
                self.num_padded += int((~batch.is_real).sum())

    def close(self, segment: Segment) -> None:
        """Check that all that is missing is what the last segment says it drops."""
        due = all_indices(self.plan, self.epoch)
        assert not self.real - due, "something came more often than it should"
        assert sum((due - self.real).values()) == segment.num_dropped


def same_batches(first: Segment, second: Segment, start: int) -> None:
    """Check that two segments agree from batch `start` on, on every rank."""
    assert first.num_batches == second.num_batches
    for rank in range(first.world_size):
        pairs = zip(first.batches(rank, start), second.batches(rank, start), strict=True)
        for one, other in pairs:
            assert one.number == other.number
            assert one.indices.tolist() == other.indices.tolist()
            assert one.is_real.tolist() == other.is_real.tolist()
            assert one.bucket == other.bucket


def check_num_real(segment: Segment, start: int, stop: int) -> None:
    """Check `num_real` against the blocks of all ranks."""
    blocks = [segment.block(rank, start, stop) for rank in range(segment.world_size)]
    assert segment.num_real(start, stop) == sum(len(block.real_indices) for block in blocks)


def through_json(cursor: Cursor) -> Cursor:
    """The cursor as a fresh process would read it."""
    return Cursor.from_json(cursor.to_json())


__all__ = [
    "Account",
    "PastSegment",
    "TailError",
    "all_indices",
    "any_plan",
    "batch_sizes",
    "check_num_real",
    "fits",
    "same_batches",
    "tails",
    "through_json",
    "world_sizes",
]
