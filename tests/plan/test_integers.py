"""Integers of numpy are as good as Python's, and any integer and any string is a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from feedline.plan import (
    BucketPlan,
    Cursor,
    EqualChunks,
    Mixture,
    Permutation,
    Phase,
    Plan,
    Replay,
    SamplePlan,
    Sequential,
    Shuffled,
    TokenBatch,
    WindowPlan,
    derive_key,
)

pytestmark = pytest.mark.matrix

number_types = pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64])

# Each makes a plan out of numbers that `kind` has made.
PLANS: dict[str, Callable[[Callable[[int], Any]], Plan]] = {
    "sequential": lambda kind: SamplePlan(order=Sequential(num_samples=kind(200))),
    "shuffled": lambda kind: SamplePlan(order=Shuffled(num_samples=kind(200), seed=kind(3))),
    "mixture": lambda kind: SamplePlan(
        order=Mixture(
            sizes=(kind(90), kind(200)),
            weights=(kind(1), kind(2)),
            epoch_size=kind(250),
            phases=[Phase(weights=(1, 1), epoch=kind(0), position=kind(100))],
        )
    ),
    "buckets": lambda kind: BucketPlan.from_lengths(
        [kind(3), kind(7)] * 100,
        edges=[kind(4), kind(9)],
        rule=TokenBatch((kind(1), kind(2))),
    ),
    "windows": lambda kind: WindowPlan(
        chunks=EqualChunks(num_samples=kind(200), chunk_size=kind(10)), preload=kind(2)
    ),
}
plans = pytest.mark.parametrize("name", PLANS)


@plans
@number_types
def test_a_plan_of_numpy_integers_has_the_same_fingerprint(name: str, kind: type) -> None:
    assert PLANS[name](kind).fingerprint == PLANS[name](int).fingerprint


@plans
@number_types
def test_a_plan_of_numpy_integers_gives_the_same_batches(name: str, kind: type) -> None:
    one = PLANS[name](kind).segment(world_size=2, batch_size=9)
    other = PLANS[name](int).segment(world_size=2, batch_size=9)
    for found, expected in zip(one.batches(1), other.batches(1), strict=True):
        assert found.indices.tolist() == expected.indices.tolist()


@plans
@number_types
def test_a_segment_takes_numpy_integers(name: str, kind: type) -> None:
    """All numbers fit in 8 bits, but their products do not."""
    plan = PLANS[name](int)
    segment = plan.segment(world_size=kind(2), batch_size=kind(9), epoch=kind(1))
    expected = plan.segment(world_size=2, batch_size=9, epoch=1)
    last = expected.num_batches - 1
    found = segment.batch(kind(1), kind(last))
    assert found.indices.tolist() == expected.batch(1, last).indices.tolist()
    assert segment.find(kind(17)) == expected.find(17)
    assert segment.cursor(kind(last)).to_json() == expected.cursor(last).to_json()


@number_types
def test_batch_numbers_may_be_numpy_integers_when_the_epoch_is_long(kind: type) -> None:
    segment = SamplePlan(order=Sequential(num_samples=10**12)).segment(
        world_size=kind(100), batch_size=kind(200)
    )
    number = kind(120)
    assert segment.batch(kind(7), number).indices[0] == 120 * 100 * 200 + 7


@number_types
def test_resuming_takes_numpy_integers(kind: type) -> None:
    plan = PLANS["shuffled"](int)
    cursor = plan.segment(world_size=2, batch_size=9).cursor(3)
    resumed = plan.resume(cursor, world_size=kind(2), batch_size=kind(9))
    assert resumed.num_done == 3
    other = plan.resume(cursor, world_size=kind(3), batch_size=kind(5))
    text = other.cursor(2).to_json()
    expected = plan.resume(cursor, world_size=3, batch_size=5).cursor(2)
    assert Cursor.from_json(text) == expected


@number_types
def test_a_replay_takes_numpy_integers(kind: type) -> None:
    plan = PLANS["shuffled"](int)
    replay = Replay(plan=plan, world_size=kind(2), batch_size=kind(9), history=[(kind(1), 3, 4)])
    expected = Replay(plan=plan, world_size=2, batch_size=9, history=[(1, 3, 4)])
    found = replay.batch(rank=kind(1), number=kind(6))
    assert found.indices.tolist() == expected.batch(rank=1, number=6).indices.tolist()
    assert type(found.number) is int
    assert replay.find(kind(9)) == expected.find(9)


@number_types
def test_a_phase_at_a_step_takes_numpy_integers(kind: type) -> None:
    """All numbers fit in 8 bits, but the position does not."""
    numbers = {
        "step": 120,
        "world_size": 100,
        "batch_size": 200,
        "num_batches": 250,
        "grad_acc_steps": 2,
    }
    phase = Phase.at_step((1,), **{name: kind(number) for name, number in numbers.items()})
    assert phase == Phase.at_step((1,), **numbers)
    assert (phase.epoch, phase.position) == (0, 120 * 2 * 100 * 200)


@number_types
@pytest.mark.parametrize("n", [200, 10**6])
def test_a_permutation_takes_numpy_integers(kind: type, n: int) -> None:
    size = kind(n) if n < 256 else np.int64(n)
    places = np.arange(150)
    found = Permutation(size, kind(5), kind(2)).forward(places)
    assert found.tolist() == Permutation(n, 5, 2).forward(places).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64])
def test_positions_may_have_any_integer_type(dtype: type) -> None:
    order = Shuffled(num_samples=5000)
    expected = order.indices(0, range(200)).tolist()
    assert order.indices(0, np.arange(200, dtype=dtype)).tolist() == expected


SEEDS = (0, -1, 2**64, -(2**200), 10**5000, "", "0", "é", "\ud800", "a" * 10**5)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: type(seed).__name__)
def test_any_integer_and_any_string_is_a_seed(seed: int | str) -> None:
    plan = SamplePlan(order=Shuffled(num_samples=50, seed=seed))
    segment = plan.segment(world_size=1, batch_size=50)
    assert sorted(segment.batch(0, 0).indices.tolist()) == list(range(50))
    assert Cursor.from_json(segment.cursor(1).to_json()).fingerprint == plan.fingerprint


def test_different_arguments_of_a_key_give_different_keys() -> None:
    arguments = [
        (0, "order"),
        (1, "order"),
        ("0", "order"),
        (0, "orde", 0, "r"),
        (0, "order", 1),
        (1, "order", 1),
        (0, "order", 0, 0),
        (0, "order", 0, "0"),
        (0, "order", 0, 0, 0),
        (0, "order", 0, 1, 0),
        (0, "order", 0, 10),
        (0, "order", 0, "a", "bc"),
        (0, "order", 0, "ab", "c"),
        (-1, "order"),
    ]
    assert len({derive_key(*each) for each in arguments}) == len(arguments)


def test_a_numpy_seed_is_that_number() -> None:
    assert derive_key(np.int64(7), "order", np.int32(2)) == derive_key(7, "order", 2)
