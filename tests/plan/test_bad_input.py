"""Bad input is one clear error that names the value and the bound, and it changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from feedline.errors import EmptyEpochError, InvalidValueError
from feedline.plan import (
    BucketPlan,
    Concatenated,
    CostBatch,
    EqualChunks,
    Mixture,
    Phase,
    Plan,
    Replay,
    SamplePlan,
    Segment,
    Shuffled,
    Subset,
    TokenBatch,
    UnequalChunks,
    WindowPlan,
    derive_key,
)
from refusals import refusal

MAX = 2**63 - 1
HUGE = 10**400
NAN, INF = math.nan, math.inf

CHUNKS = EqualChunks(num_samples=100, chunk_size=10)
PLAN = SamplePlan(order=Shuffled(num_samples=100))


def mixture(**options: Any) -> Mixture:
    return Mixture(**{"sizes": (50, 50), "weights": (1, 1)} | options)


def groups(**options: Any) -> BucketPlan:
    return BucketPlan.from_groups({"a": range(40), "b": range(40, 60)}, **options)


def lengths(**options: Any) -> BucketPlan:
    return BucketPlan.from_lengths([3, 5], **options)


OTHERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # Weights, temperatures and costs.
    "weight nan": (lambda: mixture(weights=(NAN, 1)), ("weights[0]=nan", "finite")),
    "weight inf": (lambda: mixture(weights=(1, INF)), ("weights[1]=inf", "finite")),
    "weight -inf": (lambda: mixture(weights=(1, -INF)), ("weights[1]=-inf", "finite")),
    "weight -1": (lambda: mixture(weights=(-1, 1)), ("weights[0]=-1", "at least 0")),
    "weight huge": (lambda: mixture(weights=(HUGE, 1)), ("weights", "finite")),
    "weights zero": (lambda: mixture(weights=(0, 0)), ("weights=[0.0, 0.0]", "positive")),
    "weights none": (lambda: mixture(weights=None), ("weights=None",)),
    "weights text": (lambda: mixture(weights="12"), ("weights='12'",)),
    "weights texts": (lambda: mixture(weights=("1", "2")), ("weights",)),
    "weights words": (lambda: mixture(weights=("a", 1)), ("weights=('a', 1)",)),
    "weights too few": (lambda: mixture(weights=(1,)), ("1 entry", "2 sources")),
    "weights too many": (lambda: mixture(weights=(1, 1, 1)), ("3 entries", "2 sources")),
    "weights empty": (lambda: mixture(weights=()), ("weights",)),
    "weight of an empty source": (lambda: mixture(sizes=(9, 0)), ("weights[1]=1.0", "sizes[1]=0")),
    "phase weights": (lambda: Phase(weights=(NAN,)), ("weights[0]=nan",)),
    "changed weights": (
        lambda: mixture().changed((1, INF), epoch=0, position=1),
        ("weights[1]=inf",),
    ),
    "temperature 0": (lambda: mixture(temperature=0), ("temperature=0", "above 0")),
    "temperature -1": (lambda: mixture(temperature=-1), ("temperature=-1", "above 0")),
    "temperature nan": (lambda: mixture(temperature=NAN), ("temperature=nan", "finite")),
    "temperature inf": (lambda: mixture(temperature=INF), ("temperature=inf", "finite")),
    "temperature huge": (lambda: mixture(temperature=HUGE), ("temperature=1000", "finite")),
    "temperature text": (lambda: mixture(temperature="2"), ("temperature='2'",)),
    "temperature none": (lambda: mixture(temperature=None), ("temperature=None",)),
    "cost 0": (lambda: groups(cost=lambda key: 0), ("costs[0]=0", "above 0")),
    "cost -1": (lambda: groups(cost=lambda key: -1), ("costs[0]=-1", "above 0")),
    "cost nan": (lambda: groups(cost=lambda key: NAN), ("costs[0]=nan", "finite")),
    "cost inf": (lambda: groups(cost=lambda key: INF), ("costs[0]=inf", "finite")),
    "cost text": (lambda: groups(cost=lambda key: "x"), ("'x'",)),
    "cost none": (lambda: groups(cost=lambda key: None), ("None",)),
    "base_cost 0": (lambda: groups(cost=lambda key: 1, base_cost=0), ("base_cost=0",)),
    "CostBatch text": (lambda: CostBatch(["x"]), ("costs", "'x'")),
    "CostBatch huge": (lambda: CostBatch([HUGE]), ("costs", "finite")),
    "too few costs": (lambda: groups(rule=CostBatch([1])).begin(0).deal(1, 1), ("1", "2 buckets")),
    "too few lengths": (lambda: groups(rule=TokenBatch([1])).begin(0).deal(1, 9), ("2 buckets",)),
    # Sizes that do not fit together.
    "sizes empty": (lambda: Mixture(sizes=(), weights=()), ("at least one",)),
    "sizes sum": (lambda: mixture(sizes=(MAX, 1)), (str(MAX + 1), str(MAX))),
    "epoch_size 0": (lambda: mixture(epoch_size=0), ("epoch_size=0", "at least 1")),
    "epoch_size text": (lambda: mixture(epoch_size="9"), ("epoch_size='9'",)),
    "phase too late": (
        lambda: mixture(phases=[Phase(weights=(1, 1), position=100)]),
        ("position=100", "100"),
    ),
    "phases out of order": (
        lambda: mixture(phases=[Phase(weights=(1, 1), position=p) for p in (9, 5)]),
        ("(0, 5)", "(0, 9)"),
    ),
    "concatenated sum": (
        lambda: Concatenated([Shuffled(num_samples=MAX), Shuffled(num_samples=1)]),
        (str(MAX + 1), str(MAX)),
    ),
    "concatenated empty": (lambda: Concatenated([]), ("at least one",)),
    "subset order": (
        lambda: Subset([1, 2], order=Shuffled(num_samples=3)),
        ("num_indices=3", "len(selected)=2"),
    ),
    "unequal sum": (lambda: UnequalChunks([2**62, 2**62]), (str(2**63),)),
    "unequal none": (lambda: UnequalChunks([]), ("0 chunks", "at least one")),
    "unequal zero": (lambda: UnequalChunks([0, 0]), ("0 samples", "at least one")),
    "edges fall": (lambda: lengths(edges=[5, 3]), ("edges=[5, 3]", "increasing")),
    "edges short": (lambda: lengths(edges=[4]), ("lengths[1]=5", "at most", "4")),
    "edges empty": (lambda: lengths(edges=[]), ("edges=[]", "not empty")),
    "edges and quantiles": (lambda: lengths(edges=[5], num_buckets=1), ("exactly one",)),
    "neither": (lambda: lengths(), ("exactly one",)),
    "lengths zero": (lambda: BucketPlan.from_lengths([3, 0], num_buckets=1), ("lengths[1]=0", "1")),
    "lengths floats": (lambda: BucketPlan.from_lengths([1.5], num_buckets=1), ("float64",)),
    "lengths empty": (lambda: BucketPlan.from_lengths([], num_buckets=1), ("empty",)),
    "lengths huge": (
        lambda: BucketPlan.from_lengths(np.array([2**63], np.uint64), num_buckets=1),
        (str(2**63), str(MAX)),
    ),
    # Lists of indices, for subsets and buckets alike.
    **{
        f"{name} {label}": (lambda make=make, bad=bad: make(bad), fragments)
        for name, make in {
            "subset": lambda bad: Subset(bad).indices(0, [0]),
            "bucket": lambda bad: (
                BucketPlan.from_groups({"a": bad}).segment(world_size=1, batch_size=1).batch(0, 0)
            ),
        }.items()
        for label, bad, fragments in [
            ("empty", [], ("at least",)),
            ("empty range", range(0), ("at least",)),
            ("negative", [3, -1], ("-1",)),
            ("negative range", range(-3, 2), ("range(-3, 2)", "negative")),
            ("floats", [1.5], ("float64", "integers")),
            ("texts", ["a"], ("integers",)),
            ("none", None, ("dimensions",)),
            ("flat", [[1, 2]], ("2 dimensions", "1")),
            ("ragged", [[1], [1, 2]], ("",)),
            ("too large", [2**63], (str(2**63), str(MAX))),
            ("too large range", range(2**63, 2**63 + 3), (str(2**63), str(MAX))),
            ("too long range", range(2**64), (str(MAX),)),
        ]
    },
    "no buckets": (lambda: BucketPlan.from_groups({}), ("at least one",)),
    # Positions.
    "position -1": (lambda: PLAN.order.indices(0, [-1]), ("-1", "100")),
    "position n": (lambda: PLAN.order.indices(0, [5, 100]), ("100", "[0, 100)")),
    "position 1.5": (lambda: PLAN.order.indices(0, [1.5]), ("positions", "integers")),
    "position nan": (lambda: PLAN.order.indices(0, [NAN]), ("positions", "integers")),
    "position text": (lambda: PLAN.order.indices(0, ["a"]), ("positions", "integers")),
    "position none": (lambda: PLAN.order.indices(0, None), ("positions",)),
    "position huge": (lambda: PLAN.order.indices(0, [2**64]), ("positions",)),
    # Words.
    "tail": (lambda: SamplePlan(order=PLAN.order, tail="wrap"), ("tail='wrap'", "'pad'")),
    "tail none": (lambda: WindowPlan(chunks=CHUNKS, tail=None), ("tail=None", "'pad'")),
    "mode": (lambda: groups(mode="mixed"), ("mode='mixed'", "'interleaved'")),
    "strategy": (lambda: mixture(strategy="cycle"), ("strategy='cycle'", "'repeat'")),
    "batch_by": (lambda: lengths(num_buckets=1, batch_by="x"), ("batch_by='x'", "'tokens'")),
    "epoch of a key": (lambda: derive_key(0, "purpose", 1.5), ("epoch=1.5", "integer")),
    "name of a key": (lambda: derive_key(0, "purpose", 0, 1.5), ("1.5", "integer")),
    "seed none": (lambda: Shuffled(num_samples=9, seed=None), ("seed=None",)),
    "seed float": (lambda: groups(seed=1.5), ("seed=1.5",)),
    "seed bool": (lambda: WindowPlan(chunks=CHUNKS, seed=True), ("seed=True",)),
    "seed bytes": (lambda: mixture(seed=b"x"), ("seed=b'x'",)),
    # Things of another kind.
    "order": (lambda: SamplePlan(order=5), ("order=5",)),
    "orders": (lambda: Concatenated([5]), ("5",)),
    "chunks": (lambda: WindowPlan(chunks=[3, 4]), ("chunks=[3, 4]",)),
    "sizes": (lambda: Mixture(sizes=5, weights=(1,)), ("sizes=5",)),
    "phases": (lambda: mixture(phases=[(1, 1)]), ("phases", "(1, 1)")),
    "groups": (lambda: BucketPlan.from_groups([range(4)]), ("groups", "range(0, 4)")),
    "edges": (lambda: lengths(edges=5), ("edges=5",)),
    "rule": (lambda: groups(rule=None), ("rule=None",)),
    "replay history": (
        lambda: Replay(plan=PLAN, world_size=1, batch_size=1, history=[(1, 2)]),
        ("history",),
    ),
    "phases none": (lambda: mixture(phases=None), ("phases=None",)),
    "buckets none": (lambda: BucketPlan(buckets=None), ("buckets=None",)),
    "lengths none": (lambda: TokenBatch(None), ("lengths=None",)),
    "costs none": (lambda: CostBatch(None), ("costs=None",)),
    "orders none": (lambda: Concatenated(None), ("orders=None",)),
    "base_cost text": (lambda: groups(cost=lambda key: 1, base_cost="x"), ("base_cost='x'",)),
    "samples beyond words": (lambda: Shuffled(num_samples=10**5000), ("num_samples=0x", str(MAX))),
    "replay plan": (lambda: Replay(plan=None, world_size=1, batch_size=1), ("plan=None",)),
    "replay none": (
        lambda: Replay(plan=PLAN, world_size=1, batch_size=1, history=None),
        ("history=None",),
    ),
    "replay too far": (
        lambda: Replay(plan=PLAN, world_size=1, batch_size=1, history=[(1, 1, 101)]),
        ("101", "100"),
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_bad_input_is_refused_with_value_and_bound(case: str) -> None:
    call, fragments = OTHERS[case]
    message = refusal(call)
    for fragment in fragments:
        assert fragment in message


SMALL_PLANS: dict[str, Plan] = {
    "samples": PLAN,
    "mixture": SamplePlan(order=mixture()),
    "buckets": groups(),
    "windows": WindowPlan(chunks=CHUNKS, preload=2),
}


@pytest.mark.parametrize("kind", SMALL_PLANS)
def test_a_fresh_epoch_without_a_batch_is_refused(kind: str) -> None:
    plan = SMALL_PLANS[kind]
    with pytest.raises(EmptyEpochError, match=r"num_batches=0 must be at least 1: \d+ samples.*51"):
        plan.segment(world_size=3, batch_size=51)
    assert issubclass(EmptyEpochError, InvalidValueError)
    assert plan.segment(world_size=1, batch_size=1).num_batches >= 60


def everything(segment: Segment) -> list[list[int]]:
    return [batch.indices.tolist() for rank in (0, 1) for batch in segment.batches(rank)]


@pytest.mark.parametrize("kind", SMALL_PLANS)
def test_a_plan_and_its_segment_work_as_before_after_bad_calls(kind: str) -> None:
    plan = SMALL_PLANS[kind]
    segment = plan.segment(world_size=2, batch_size=3)
    fields, before = plan.fields, everything(segment)
    for call in (
        lambda: plan.segment(world_size=0, batch_size=3),
        lambda: plan.segment(world_size=2, batch_size=1000),
        lambda: plan.resume(segment.cursor(2), world_size=2, batch_size=-1),
        lambda: segment.batch(2, 0),
        lambda: segment.batch(0, segment.num_batches),
        lambda: list(segment.batches(0, -1)),
        lambda: segment.find(plan.num_indices),
        lambda: segment.cursor(segment.num_batches + 1),
    ):
        refusal(call)
    assert plan.fields == fields
    assert everything(segment) == before
    assert everything(plan.segment(world_size=2, batch_size=3)) == before
