"""Every kind of order has its own version; a cursor of another version is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedline.errors import PlanMismatchError
from feedline.plan import (
    BucketPlan,
    Concatenated,
    Cursor,
    EqualChunks,
    FileSharesPlan,
    Mixture,
    Order,
    Plan,
    RoundsPlan,
    SamplePlan,
    Sequential,
    Shuffled,
    Subset,
    Weighted,
    WindowOrder,
    WindowPlan,
)
from feedline.plan.drawn import ClassDraws, DrawnOrder
from feedline.plan.versions import VERSIONS

CHUNKS = EqualChunks(num_samples=100, chunk_size=10)
GROUPS = {0: range(60), 1: range(60, 100)}
CLASSES = ClassDraws(
    num_samples=100,
    run_starts=np.array([0, 50]),
    run_lengths=np.array([50, 50]),
    run_classes=np.array([0, 1]),
    weights=np.array([1.0, 1.0]),
    num_drawn=100,
    chunk_size=10,
    group_size=10,
    window_size=10,
)


def over(order: Order) -> Plan:
    return SamplePlan(order=order)


CHANGED: dict[str, Plan] = {
    "windows": WindowPlan(chunks=CHUNKS),
    "windows in a subset": over(Subset(range(5, 105), order=WindowOrder(chunks=CHUNKS))),
    "file shares": FileSharesPlan(sizes=[60, 40], strategy="undersampling"),
    "mixture": over(Mixture(sizes=(60, 40), weights=(1, 1))),
    "mixture in a chain": over(
        Concatenated([Sequential(num_samples=9), Mixture(sizes=(60, 40), weights=(1, 1))])
    ),
    "buckets": BucketPlan.from_groups(GROUPS, mode="interleaved"),
    "drawn": RoundsPlan(order=DrawnOrder(num_samples=100, num_drawn=90, chunk_size=10)),
    "class draws": RoundsPlan(order=CLASSES),
    "concatenated, with one seed": over(
        Concatenated([Shuffled(num_samples=60), Shuffled(num_samples=40)])
    ),
}
UNCHANGED: dict[str, Plan] = {
    "windows in order": WindowPlan(chunks=CHUNKS, shuffle=False),
    "file shares in order": FileSharesPlan(sizes=[60, 40], strategy="undersampling", shuffle=False),
    "mixture in order": over(Mixture(sizes=(60, 40), weights=(1, 1), shuffle=False)),
    "sequential buckets": BucketPlan.from_groups(GROUPS),
    "shuffled": over(Shuffled(num_samples=100)),
    "shuffled, large": over(Shuffled(num_samples=10**9)),
    "weighted": over(Weighted([1, 2, 3])),
    "subset": over(Subset(range(5, 105), order=Shuffled(num_samples=100))),
    "concatenated": over(Concatenated([Sequential(num_samples=9), Shuffled(num_samples=20)])),
    "concatenated, with other seeds": over(
        Concatenated([Shuffled(num_samples=60), Shuffled(num_samples=40, seed=1)])
    ),
}


def without_versions(fields: Any) -> Any:
    """Return fields as they were before kinds had versions."""
    if isinstance(fields, dict):
        return {k: without_versions(v) for k, v in fields.items() if k != "version"}
    return [without_versions(value) for value in fields] if isinstance(fields, list) else fields


def old_cursor(plan: Plan) -> Cursor:
    """Return a cursor as it was saved before kinds had versions."""
    cursor = plan.segment(world_size=1, batch_size=1).cursor(2)
    return Cursor.from_json(replace(cursor, fields=without_versions(cursor.fields)).to_json())


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_cursor_of_a_kind_that_did_not_change_still_loads(name: str) -> None:
    plan = UNCHANGED[name]
    resumed = plan.resume(old_cursor(plan), world_size=1, batch_size=1)
    assert resumed.num_done == 2
    assert old_cursor(plan).fingerprint == plan.fingerprint


@pytest.mark.parametrize("name", CHANGED)
def test_a_cursor_of_a_kind_that_changed_is_refused_with_both_versions(name: str) -> None:
    plan = CHANGED[name]
    kind = next(kind for kind in VERSIONS if name.startswith(kind))
    with pytest.raises(PlanMismatchError) as caught:
        plan.resume(old_cursor(plan), world_size=1, batch_size=1)
    message = str(caught.value)
    assert f"has version 1 of the order '{kind}'" in message
    assert f"this feedline has version {VERSIONS[kind]}" in message
    assert "Finish the epoch with the feedline that saved" in message
    assert "All differences" not in message
    assert list(caught.value.differences.values()) == [(1, VERSIONS[kind])]


def test_a_cursor_of_a_later_version_is_refused_too() -> None:
    plan = CHANGED["windows"]
    cursor = plan.segment(world_size=1, batch_size=1).cursor(2)
    fields = {**cursor.fields, "order": {**cursor.fields["order"], "version": 7}}
    with pytest.raises(PlanMismatchError, match=r"has version 7 .* has version 2"):
        plan.resume(replace(cursor, fields=fields), world_size=1, batch_size=1)


def test_what_else_differs_is_named_with_the_versions() -> None:
    other = WindowPlan(chunks=CHUNKS, seed=3)
    with pytest.raises(PlanMismatchError, match=r"has version 1 .*order.seed was 0 and is 3") as e:
        other.resume(old_cursor(CHANGED["windows"]), world_size=1, batch_size=1)
    assert e.value.differences == {"order.seed": (0, 3), "order.version": (1, 2)}


def test_a_cursor_of_another_kind_is_not_called_another_version() -> None:
    cursor = CHANGED["mixture"].segment(world_size=1, batch_size=1).cursor(2)
    with pytest.raises(PlanMismatchError, match=r"order\.kind was 'mixture' and is 'shuffled'"):
        UNCHANGED["shuffled"].resume(cursor, world_size=1, batch_size=1)


def test_every_kind_that_changed_is_tried_here() -> None:
    assert {kind for kind in VERSIONS if any(name.startswith(kind) for name in CHANGED)} == set(
        VERSIONS
    )
