"""Integers out of bounds, and what is no integer at all, are refused with value and bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Permutation,
    Phase,
    Replay,
    SamplePlan,
    Sequential,
    Share,
    Shuffled,
    TokenBatch,
    WindowOrder,
    WindowPlan,
)
from refusals import refusal

MAX = 2**63 - 1
CHUNKS = EqualChunks(num_samples=100, chunk_size=10)
PLAN = SamplePlan(order=Shuffled(num_samples=100))
SEGMENT = PLAN.segment(world_size=2, batch_size=3)
CURSOR = SEGMENT.cursor(4)
REPLAY = Replay(plan=PLAN, world_size=2, batch_size=3)
MIXTURE = Mixture(sizes=(50, 50), weights=(1, 1))


def lengths(**options: Any) -> BucketPlan:
    return BucketPlan.from_lengths([3, 5], **options)


def share(**options: Any) -> Share:
    sizes = {"num_positions": 9, "world_size": 1, "batch_size": 1}
    return Share(**{**sizes, "tail": "drop"} | options)


def at_step(**options: Any) -> Phase:
    sizes = {"step": 1, "world_size": 1, "batch_size": 1, "num_batches": 1}
    return Phase.at_step((1,), **sizes | options)


def window_batch(preload: Any) -> Any:
    plan = WindowPlan(chunks=CHUNKS, preload=preload)
    return plan.segment(world_size=2, batch_size=3).batch(0, 0)


# Each takes an integer in [low, high]; high is None where there is no bound but memory.
INTEGERS: dict[str, tuple[Callable[[Any], Any], int, int | None]] = {
    "Sequential.num_samples": (lambda v: Sequential(num_samples=v), 1, MAX),
    "Shuffled.num_samples": (lambda v: Shuffled(num_samples=v), 1, MAX),
    "Mixture.sizes": (lambda v: Mixture(sizes=(v, 1), weights=(1, 1)), 0, MAX),
    "EqualChunks.num_samples": (lambda v: EqualChunks(num_samples=v, chunk_size=1), 1, MAX),
    "EqualChunks.chunk_size": (lambda v: EqualChunks(num_samples=9, chunk_size=v), 1, MAX),
    "WindowOrder.preload": (
        lambda v: WindowOrder(chunks=CHUNKS, preload=v).indices(0, [0]),
        1,
        MAX,
    ),
    "WindowPlan.preload": (lambda v: window_batch(v), 1, MAX),
    "from_lengths.edges": (lambda v: lengths(edges=[v]), 1, MAX),
    "from_lengths.num_buckets": (lambda v: lengths(num_buckets=v), 1, None),
    "TokenBatch.lengths": (lambda v: TokenBatch([v]), 1, None),
    "Permutation.n": (lambda v: Permutation(v, 1), 1, MAX),
    "Permutation.key": (lambda v: Permutation(9, v), 0, 2**128 - 1),
    "Permutation.number": (lambda v: Permutation(9, 1, v), 0, 2**64 - 1),
    "Phase.epoch": (lambda v: Phase(weights=(1,), epoch=v), 0, None),
    "Phase.position": (lambda v: Phase(weights=(1,), position=v), 0, None),
    "at_step.step": (lambda v: at_step(step=v), 0, None),
    "at_step.world_size": (lambda v: at_step(world_size=v), 1, None),
    "at_step.batch_size": (lambda v: at_step(batch_size=v), 1, None),
    "at_step.num_batches": (lambda v: at_step(num_batches=v), 1, None),
    "at_step.grad_acc_steps": (lambda v: at_step(grad_acc_steps=v), 1, None),
    "changed.epoch": (lambda v: MIXTURE.changed((1, 1), epoch=v, position=1), 0, None),
    "changed.position": (lambda v: MIXTURE.changed((1, 1), epoch=0, position=v), 0, 99),
    "Share.num_positions": (lambda v: share(num_positions=v), 0, None),
    "Share.world_size": (lambda v: share(world_size=v), 1, 2**31),
    "Share.batch_size": (lambda v: share(batch_size=v), 1, 2**31),
    "segment.world_size": (lambda v: PLAN.segment(world_size=v, batch_size=1), 1, 2**31),
    "segment.batch_size": (lambda v: PLAN.segment(world_size=1, batch_size=v), 1, 2**31),
    "segment.epoch": (lambda v: PLAN.segment(world_size=1, batch_size=1, epoch=v), 0, None),
    "resume.world_size": (lambda v: PLAN.resume(CURSOR, world_size=v, batch_size=1), 1, 2**31),
    "resume.batch_size": (lambda v: PLAN.resume(CURSOR, world_size=1, batch_size=v), 1, 2**31),
    "batch.rank": (lambda v: SEGMENT.batch(v, 0), 0, 1),
    "batch.number": (lambda v: SEGMENT.batch(0, v), 0, 15),
    "block.rank": (lambda v: SEGMENT.block(v, 0, 1), 0, 1),
    "block.start": (lambda v: SEGMENT.block(0, v, 16), 0, 16),
    "block.stop": (lambda v: SEGMENT.block(0, 0, v), 0, 16),
    "batches.rank": (lambda v: list(SEGMENT.batches(v)), 0, 1),
    "batches.start": (lambda v: list(SEGMENT.batches(0, v)), 0, 16),
    "find.index": (lambda v: SEGMENT.find(v), 0, 99),
    "cursor.num_batches": (lambda v: SEGMENT.cursor(v), 0, 16),
    "Replay.world_size": (lambda v: Replay(plan=PLAN, world_size=v, batch_size=1), 1, 2**31),
    "Replay.batch.rank": (lambda v: REPLAY.batch(rank=v, number=0), 0, 1),
    "Replay.batch.number": (lambda v: REPLAY.batch(rank=0, number=v), 0, 15),
    "Replay.find": (lambda v: REPLAY.find(v), 0, 99),
    "Order.indices.epoch": (lambda v: PLAN.order.indices(v, [0]), 0, None),
}

EVERY_INTEGER = pytest.mark.parametrize("name", INTEGERS)


@EVERY_INTEGER
@pytest.mark.parametrize("below", [1, 10**30])
def test_an_integer_below_its_bound_is_refused(name: str, below: int) -> None:
    call, low, _ = INTEGERS[name]
    message = refusal(lambda: call(low - below))
    assert str(low - below) in message
    assert str(low) in message.replace(str(low - below), "")


@pytest.mark.parametrize("name", [name for name in INTEGERS if INTEGERS[name][2] is not None])
@pytest.mark.parametrize("above", [1, 10**30])
def test_an_integer_above_its_bound_is_refused(name: str, above: int) -> None:
    call, _, high = INTEGERS[name]
    assert high is not None
    message = refusal(lambda: call(high + above))
    assert str(high + above) in message
    # A bound may be stated as the last number allowed or as the first that is not.
    rest = message.replace(str(high + above), "", 1)
    assert str(high) in rest or str(high + 1) in rest


# None is the default of these, with a meaning of its own.
OPTIONAL = {"Permutation.number", "batches.start", "from_lengths.num_buckets"}
NO_INTEGERS = (1.5, 2.0, math.nan, math.inf, "3", None, True, [1], b"1", 1j)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}={value!r}")
        for name in INTEGERS
        for value in NO_INTEGERS
        if value is not None or name not in OPTIONAL
    ],
)
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    call, _, _ = INTEGERS[name]
    message = refusal(lambda: call(value))
    assert f"={value!r} must be" in message
