"""Orders, fingerprints and cursors are the same on every Python, numpy and platform, for good."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feedline.plan import Cursor, Mixture, Phase, SamplePlan, Shuffled
from golden import SECTIONS, VECTORS_FILE

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def vectors() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(VECTORS_FILE.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_computed_equals_what_was_promised(
    section: str, vectors: dict[str, dict[str, Any]]
) -> None:
    computed = SECTIONS[section]()
    assert list(computed) == list(vectors[section])
    changed = {name for name in computed if computed[name] != vectors[section][name]}
    assert not changed


def test_every_promise_is_checked(vectors: dict[str, dict[str, Any]]) -> None:
    assert list(vectors) == list(SECTIONS)


def test_a_cursor_of_the_first_release_can_be_loaded_where_the_order_never_changed(
    vectors: dict[str, dict[str, Any]],
) -> None:
    cursor = Cursor.from_json(vectors["cursors"]["shuffled"])
    order = {"kind": "shuffled", "num_samples": 50, "seed": 5}
    assert cursor.fields == {"order_version": 1, "kind": "samples", "order": order, "tail": "drop"}
    plan = SamplePlan(order=Shuffled(num_samples=50, seed=5))
    assert plan.resume(cursor, world_size=2, batch_size=3).num_done == 4


def test_a_cursor_that_was_promised_can_be_loaded(vectors: dict[str, dict[str, Any]]) -> None:
    cursor = Cursor.from_json(vectors["cursors"]["mixture"])
    phases = [Phase(weights=(1, 1), position=9)]
    plan = SamplePlan(order=Mixture(sizes=(30, 20), weights=(1, 3), phases=phases), tail="even")
    resumed = plan.resume(cursor, world_size=1, batch_size=4)
    assert (resumed.num_done, resumed.num_batches) == (3, 10)
    assert [change.weights for change in resumed.plan.order.changes] == [(2.0, 1.0)]  # type: ignore[attr-defined]
