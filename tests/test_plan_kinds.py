"""Plans answer for themselves: outside of `plan/` nothing asks which kind a plan or an order is."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import feedline.plan
from feedline.feed.data_plan import DataPlan
from feedline.plan import (
    Bucket,
    BucketPlan,
    CostBatch,
    EqualChunks,
    FileSharesPlan,
    Mixture,
    Order,
    Plan,
    RoundsPlan,
    SamplePlan,
    Segment,
    Shuffled,
    UnequalChunks,
    WindowOrder,
    WindowPlan,
)
from feedline.store import FolderStore, pack

SOURCE = Path(__file__).resolve().parent.parent / "src" / "feedline"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent.name != "plan")
KINDS = {
    name
    for name, kind in vars(feedline.plan).items()
    if isinstance(kind, type) and issubclass(kind, Plan | Order) and kind not in (Plan, Order)
}


def asked_kinds(tree: ast.Module) -> set[str]:
    """The kinds of plans that `isinstance` or `match` asks for in a file."""
    asked: set[str] = set()
    for node in ast.walk(tree):
        where: list[ast.AST] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            where = list(node.args[1:])
        elif isinstance(node, ast.MatchClass):
            where = [node.cls]
        parts = [part for place in where for part in ast.walk(place)]
        names = {getattr(part, "id", getattr(part, "attr", "")) for part in parts}
        asked |= {name for name in names if name in KINDS or name.endswith("Plan")} - {"Plan"}
    return asked


def test_the_kinds_are_known() -> None:
    assert {"SamplePlan", "BucketPlan", "WindowPlan", "Mixture", "Shuffled"} <= KINDS


def test_nobody_outside_asks_for_the_kind_of_a_plan() -> None:
    asked = {
        path.relative_to(SOURCE).as_posix(): kinds
        for path in FILES
        if (kinds := asked_kinds(ast.parse(path.read_text("utf-8"))))
    }
    assert not asked, "ask the plan instead: give `Plan` a method that answers"


CHUNKS = EqualChunks(num_samples=60, chunk_size=7)
MIXTURE = Mixture(sizes=(40, 20), weights=(1, 3))
BUCKETS = (Bucket("wide", range(40)), Bucket("tall", list(range(40, 60))))  # type: ignore[arg-type]
PLANS: dict[str, Plan] = {
    "samples": SamplePlan(order=Shuffled(num_samples=60), tail="even"),
    "mixture": SamplePlan(order=MIXTURE, tail="pad"),
    "windows": WindowPlan(chunks=CHUNKS, preload=3),
    "unequal windows": WindowPlan(chunks=UnequalChunks([20, 30, 10]), preload=2),
    "rounds": RoundsPlan(order=WindowOrder(chunks=CHUNKS, preload=3), tail="even"),
    "buckets": BucketPlan(buckets=BUCKETS, tail="even"),
    "costs": BucketPlan(buckets=BUCKETS, rule=CostBatch((1, 4))),
    "files": FileSharesPlan(sizes=[20, 30, 10], strategy="oversampling"),
}
ANSWERS = (
    *("tail", "chunks", "preload", "buckets", "mixture"),
    *("has_equal_batches", "ignores_batch_size", "num_listed"),
)
each_plan = pytest.mark.parametrize("name", PLANS)


def test_plans_say_what_they_are_made_of() -> None:
    def told(answer: str) -> dict[str, object]:
        return {name: getattr(plan, answer) for name, plan in PLANS.items()}

    assert [told("tail")[name] for name in ("samples", "mixture", "files")] == ["even", "pad", ""]
    assert {name for name, chunks in told("chunks").items() if chunks is not None} == {
        *("windows", "unequal windows", "rounds", "files"),
    }
    assert told("chunks")["rounds"] == CHUNKS
    assert [told("preload")[name] for name in ("samples", "windows", "rounds")] == [1, 3, 3]
    assert {name for name, found in told("mixture").items() if found is MIXTURE} == {"mixture"}
    assert [bucket.key for bucket in PLANS["costs"].buckets] == ["wide", "tall"]
    assert {name for name, found in told("buckets").items() if found} == {"buckets", "costs"}
    assert {name for name, found in told("has_equal_batches").items() if not found} == {"costs"}
    assert [PLANS["costs"].bucket_batch_size(n, 8) for n in range(2)] == [8, 2]
    assert {name: count for name, count in told("num_listed").items() if count} == {
        **{"unequal windows": 4, "files": 4, "buckets": 20, "costs": 20},
    }


@each_plan
def test_a_plan_that_ignores_the_batch_size_gives_a_rank_the_same_samples(name: str) -> None:
    plan = PLANS[name]
    streams = []
    for batch_size in (1, 5):
        segment = Segment(plan=plan, world_size=2, batch_size=batch_size)
        batches = [batch.indices.tolist() for batch in segment.batches(rank=1)]
        streams.append([index for batch in batches for index in batch][:20])
    if plan.ignores_batch_size:
        assert streams[0] == streams[1]
    assert plan.ignores_batch_size == (name not in ("buckets", "costs", "files"))


@each_plan
def test_the_order_of_an_epoch_is_what_one_rank_consumes(name: str) -> None:
    plan = PLANS[name]
    orders = [plan.epoch_order(1, number) for number in range(max(1, len(plan.buckets)))]
    if name == "files":
        assert orders == [None]
        return
    found: list[int] = []
    for order in orders:
        assert order is not None
        found += order.indices(np.arange(order.num_positions)).tolist()
    segment = plan.segment(world_size=1, batch_size=1, epoch=1)
    consumed = [int(batch.indices[0]) for batch in segment.batches(rank=0)]
    assert (sorted(found) if plan.buckets else found) == (
        sorted(consumed) if plan.buckets else consumed
    )


@each_plan
def test_a_plan_with_its_data_answers_as_the_plan_does(name: str, tmp_path: Path) -> None:
    pack({"x": np.arange(60)}, tmp_path / "data", progress=False)
    plan = PLANS[name]
    bound = DataPlan(plan=plan, store=FolderStore(tmp_path / "data"))
    assert [getattr(bound, answer) for answer in ANSWERS] == [
        getattr(plan, answer) for answer in ANSWERS
    ]
    assert bound.bucket_batch_size(0, 8) == plan.bucket_batch_size(0, 8)
    assert bound.largest_batch(8) == plan.largest_batch(8)
    assert (bound.epoch_order(0) is None) == (plan.epoch_order(0) is None)
