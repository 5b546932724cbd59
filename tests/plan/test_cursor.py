"""Cursors: they survive files, stay small, and know the plan that they belong to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given

from feedline.errors import FeedlineError, PlanMismatchError
from feedline.plan import (
    BucketPlan,
    Concatenated,
    CostBatch,
    Cursor,
    EqualChunks,
    Mixture,
    PastSegment,
    Phase,
    Plan,
    SamplePlan,
    Sequential,
    Shuffled,
    Subset,
    TokenBatch,
    UnequalChunks,
    WindowPlan,
)
from plan_kinds import any_plan, fits

pytestmark = pytest.mark.matrix

GROUPS = {"a": range(40), "b": range(40, 100)}


def shuffled(**options: Any) -> Plan:
    order = Shuffled(**{"num_samples": 100, "seed": 1} | options.pop("order", {}))
    return SamplePlan(**{"order": order, "tail": "drop"} | options)


def mixture(**order: Any) -> Plan:
    options = {
        "sizes": (60, 40),
        "weights": (2, 1),
        "temperature": 1.0,
        "epoch_size": 90,
        "strategy": "repeat",
        "phases": (Phase(weights=(1, 1), position=30),),
        "shuffle": True,
        "seed": 1,
    }
    return SamplePlan(order=Mixture(**options | order))


def buckets(groups: Any = GROUPS, **options: Any) -> Plan:
    defaults = {"rule": CostBatch((1, 2)), "mode": "sequential", "tail": "drop", "seed": 1}
    return BucketPlan.from_groups(groups, **defaults | options)


def windows(**options: Any) -> Plan:
    chunks = EqualChunks(**{"num_samples": 100, "chunk_size": 10} | options.pop("chunks", {}))
    return WindowPlan(**{"chunks": chunks, "preload": 2, "seed": 1} | options)


def unequal(sizes: list[int]) -> Plan:
    return WindowPlan(chunks=UnequalChunks(sizes))


def over(order: Any) -> Plan:
    return SamplePlan(order=order)


MAKERS = (shuffled, mixture, buckets, windows)
every_kind = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)


def some_cursor(plan: Plan) -> Cursor:
    segment = plan.segment(world_size=2, batch_size=3)
    resumed = plan.resume(segment.cursor(4), world_size=1, batch_size=2)
    return resumed.cursor(3)


@every_kind
def test_a_cursor_survives_json_and_a_file(make: Callable[[], Plan], tmp_path: Path) -> None:
    cursor = some_cursor(make())
    cursor.save(tmp_path / "cursor.json")
    assert Cursor.from_json(cursor.to_json()) == cursor
    assert Cursor.load(tmp_path / "cursor.json") == cursor
    assert Cursor.load(str(tmp_path / "cursor.json")) == cursor


@every_kind
def test_a_loaded_cursor_can_be_used_as_the_saved_one(make: Callable[[], Plan]) -> None:
    cursor = some_cursor(make())
    saved = make().resume(cursor, world_size=3, batch_size=2)
    loaded = make().resume(Cursor.from_json(cursor.to_json()), world_size=3, batch_size=2)
    for one, other in zip(saved.batches(2), loaded.batches(2), strict=True):
        assert one.indices.tolist() == other.indices.tolist()


def test_saving_replaces_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    target = tmp_path / "cursor.json"
    target.write_text("something else, and longer than a cursor\n" * 100)
    cursor = some_cursor(shuffled())
    cursor.save(target)
    assert Cursor.load(target) == cursor
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_save_that_fails_keeps_the_old_file_and_leaves_no_other(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    target = tmp_path / "cursor.json"
    old, new = some_cursor(shuffled()), some_cursor(windows())
    old.save(target)
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fail)
        with pytest.raises(OSError, match="no space left"):
            new.save(target)
    assert Cursor.load(target) == old
    assert list(tmp_path.iterdir()) == [target]


def test_a_cursor_that_cannot_be_written_as_json_leaves_no_file(tmp_path: Path) -> None:
    cursor = Cursor(fields={"weights": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        cursor.save(tmp_path / "cursor.json")
    assert list(tmp_path.iterdir()) == []


def test_a_cursor_does_not_grow_with_the_data_or_the_steps() -> None:
    def size(num_samples: int, done: int) -> int:
        plan = shuffled(order={"num_samples": num_samples})
        return len(plan.segment(world_size=8, batch_size=4).cursor(done).to_json())

    # The numbers themselves have more digits, nothing else.
    assert size(10**18, 10**16) - size(10**3, 10) == (18 - 3) + (16 - 1)
    assert size(10**18, 10**16) < 1000


def test_equal_neighbours_in_the_history_merge() -> None:
    plan = shuffled()
    segment = plan.segment(world_size=2, batch_size=3)
    for done in (1, 2, 5, 9):
        cursor = segment.cursor(done)
        assert cursor.history == (PastSegment(2, 3, done),)
        segment = plan.resume(cursor, world_size=2, batch_size=3)
    other = plan.resume(segment.cursor(9), world_size=1, batch_size=1).cursor(0)
    assert other.history == (PastSegment(2, 3, 9),)


VARIANTS: dict[str, tuple[Callable[[], Plan], Callable[[], Plan], str]] = {
    "num_samples": (shuffled, lambda: shuffled(order={"num_samples": 99}), "order.num_samples"),
    "seed": (shuffled, lambda: shuffled(order={"seed": 2}), "order.seed"),
    "seed type": (shuffled, lambda: shuffled(order={"seed": "1"}), "order.seed"),
    "tail": (shuffled, lambda: shuffled(tail="pad"), "tail"),
    "order kind": (shuffled, lambda: over(Sequential(num_samples=100)), "order.kind"),
    "mixture sizes": (mixture, lambda: mixture(sizes=(61, 40)), "order.sizes[0]"),
    "mixture weights": (mixture, lambda: mixture(weights=(2, 3)), "order.weights[1]"),
    "mixture temperature": (mixture, lambda: mixture(temperature=2.0), "order.temperature"),
    "mixture epoch_size": (mixture, lambda: mixture(epoch_size=91), "order.epoch_size"),
    "mixture strategy": (mixture, lambda: mixture(strategy="stop"), "order.strategy"),
    "mixture shuffle": (mixture, lambda: mixture(shuffle=False), "order.shuffle"),
    "mixture seed": (mixture, lambda: mixture(seed=2), "order.seed"),
    "mixture phases": (
        mixture,
        lambda: mixture(phases=(Phase(weights=(1, 1), position=31),)),
        "order.phases[0].position",
    ),
    "bucket key": (
        buckets,
        lambda: buckets({"a": range(40), "c": range(40, 100)}),
        "buckets[1].key",
    ),
    "bucket members": (
        buckets,
        lambda: buckets({"a": range(41), "b": range(41, 100)}),
        "buckets[0].members[1]",
    ),
    "bucket list": (
        lambda: buckets({"a": [0, 1, 2, 3], "b": range(4, 40)}),
        lambda: buckets({"a": [0, 1, 3, 2], "b": range(4, 40)}),
        "buckets[0].members.digest",
    ),
    "bucket rule": (buckets, lambda: buckets(rule=TokenBatch((1, 2))), "rule.kind"),
    "bucket costs": (buckets, lambda: buckets(rule=CostBatch((1, 3))), "rule.costs[1]"),
    "bucket mode": (buckets, lambda: buckets(mode="interleaved"), "mode"),
    "shuffle_buckets": (buckets, lambda: buckets(shuffle_buckets=False), "shuffle_buckets"),
    "shuffle_within": (buckets, lambda: buckets(shuffle_within=False), "shuffle_within"),
    "bucket tail": (buckets, lambda: buckets(tail="even"), "tail"),
    "bucket seed": (buckets, lambda: buckets(seed=2), "seed"),
    "chunk_size": (windows, lambda: windows(chunks={"chunk_size": 11}), "order.chunks.chunk_size"),
    "window samples": (
        windows,
        lambda: windows(chunks={"num_samples": 99}),
        "order.chunks.num_samples",
    ),
    "preload": (windows, lambda: windows(preload=3), "order.preload"),
    "window shuffle": (windows, lambda: windows(shuffle=False), "order.shuffle"),
    "window tail": (windows, lambda: windows(tail="pad"), "tail"),
    "window seed": (windows, lambda: windows(seed=2), "order.seed"),
    "chunk sizes": (
        lambda: unequal([20, 30]),
        lambda: unequal([30, 20]),
        "order.chunks.sizes.digest",
    ),
    "subset range": (
        lambda: over(Subset(range(0, 40))),
        lambda: over(Subset(range(1, 41))),
        "order.selected[0]",
    ),
    "subset list": (
        lambda: over(Subset(list(range(40)))),
        lambda: over(Subset(list(reversed(range(40))))),
        "order.selected.digest",
    ),
    "concatenated": (
        lambda: over(Concatenated([Shuffled(num_samples=30), Shuffled(num_samples=20)])),
        lambda: over(Concatenated([Shuffled(num_samples=30), Shuffled(num_samples=20, seed=1)])),
        "order.orders[1].seed",
    ),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


@every_variant
def test_every_single_parameter_changes_the_fingerprint(variant: str) -> None:
    make, make_other, _ = VARIANTS[variant]
    assert make().fingerprint == make().fingerprint
    assert make().fingerprint != make_other().fingerprint


@every_variant
def test_a_mismatch_names_the_field_with_both_values(variant: str) -> None:
    make, make_other, name = VARIANTS[variant]
    cursor = make().segment(world_size=1, batch_size=3).cursor(1)
    with pytest.raises(PlanMismatchError) as caught:
        make_other().resume(cursor, world_size=1, batch_size=3)
    assert name in caught.value.differences
    for field, (saved, current) in caught.value.differences.items():
        assert saved != current or type(saved) is not type(current)
        assert f"{field} was {saved!r} and is {current!r}" in str(caught.value)


def test_a_mismatch_lists_every_field_that_differs() -> None:
    cursor = some_cursor(shuffled())
    other = shuffled(order={"num_samples": 90, "seed": "x"}, tail="even")
    with pytest.raises(PlanMismatchError) as caught:
        other.resume(cursor, world_size=1, batch_size=1)
    assert caught.value.differences == {
        "order.num_samples": (100, 90),
        "order.seed": (1, "x"),
        "tail": ("drop", "even"),
    }


@given(any_plan)
def test_ranks_and_batch_sizes_are_not_part_of_the_fingerprint(plan: Plan) -> None:
    assume(fits(plan, 9))
    fingerprints = {
        plan.resume(Cursor(fields=plan.fields), world_size=w, batch_size=b).cursor(0).fingerprint
        for w, b in ((1, 9), (3, 9), (2, 11))
    }
    assert fingerprints == {plan.fingerprint}


def test_weights_changed_while_running_are_in_the_cursor_and_not_in_the_fingerprint() -> None:
    plan = mixture()
    assert isinstance(plan, SamplePlan)
    assert isinstance(plan.order, Mixture)
    changed = replace(plan, order=plan.order.changed((0, 1), epoch=0, position=60))
    assert changed.fingerprint == plan.fingerprint
    cursor = changed.segment(world_size=1, batch_size=30).cursor(2)
    resumed = plan.resume(Cursor.from_json(cursor.to_json()), world_size=1, batch_size=30)
    assert (resumed.batch(0, 2).indices >= 60).all()


def test_a_changed_mixture_inside_another_order_is_not_taken_for_an_unchanged_one() -> None:
    """Either the cursor brings the change along, or it is refused: never another order."""
    inner = Mixture(sizes=(60, 40), weights=(1, 0), epoch_size=60)

    def plan(part: Mixture) -> Plan:
        return over(Concatenated([part, Sequential(num_samples=10)]))

    try:
        changed = plan(inner.changed((0, 1), epoch=0, position=20))
        segment = changed.segment(world_size=1, batch_size=10)
        resumed = plan(inner).resume(segment.cursor(2), world_size=1, batch_size=10)
    except FeedlineError:
        return
    assert resumed.batch(0, 2).indices.tolist() == segment.batch(0, 2).indices.tolist()
