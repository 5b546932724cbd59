"""Reports of very large and very odd plans: small, whole, and without a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.errors import EmptyEpochError
from feedline.report import render
from feedline.runs import RunConfig
from report_data import MIXTURE, chart_of, layer_of, of_config, panel_of

LARGE = 2**62


@pytest.mark.parametrize(
    "data", [{"samples": LARGE}, pytest.param({"samples": LARGE - 1}, marks=pytest.mark.slow)]
)
def test_the_largest_plans_are_drawn(data: dict[str, Any]) -> None:
    report = of_config({"batch_size": 1, "data": data}, resize=[1, 3])
    chart = chart_of(report, "coverage", "Parts of the data over time")
    values = np.array(chart["layers"][0]["values"])
    assert values.mean() == pytest.approx(1, abs=0.01)
    columns = chart_of(report, "map", "Ranks")["columns"]
    assert columns == sorted(set(columns))


@pytest.mark.parametrize("tail", ["drop", "even", "pad"])
def test_the_largest_batches_are_drawn_and_counted(tail: str) -> None:
    size = 2**31
    values = {"batch_size": size, "tail": tail, "ranks": 2, "data": {"samples": 3 * size}}
    bars = chart_of(of_config(values), "tail", "Samples")
    real = {"drop": size, "even": size // 2, "pad": size // 2}[tail]
    assert [one["values"] for one in bars["series"]] == [
        [real] * 2,
        [size // 2 if tail == "pad" else 0] * 2,
    ]


def test_the_last_step_has_all_of_its_batches() -> None:
    values = {"batch_size": 1024, "grad_acc_steps": 8, "ranks": 2, "data": {"samples": 2**16}}
    report = of_config(values)
    assert chart_of(report, "tail", "Samples")["series"][0]["values"] == [8192, 8192]
    assert set(layer_of(chart_of(report, "map", "Ranks"), "samples").ravel()) == {8192}


def test_the_last_step_of_buckets_says_how_much_of_it_is_shown() -> None:
    buckets = [{"name": "a", "samples": 2**16}, {"name": "b", "samples": 2**16}]
    values = {"batch_size": 1024, "grad_acc_steps": 64, "data": {"buckets": buckets}}
    bars = chart_of(of_config(values), "tail", "Samples")
    assert bars["title"].endswith("the last one: its first 4 batches")
    assert bars["series"][0]["values"] == [4096]


def test_many_buckets_are_named_where_they_come() -> None:
    buckets = [{"name": f"b{n}", "samples": 8 + n} for n in range(600)]
    values = {"batch_size": 8, "data": {"buckets": buckets}}
    chart = chart_of(of_config(values), "map", "Ranks")
    layer = chart["layers"][0]
    segment = RunConfig.from_dict(values).plan.segment(world_size=1, batch_size=8)
    names = [layer["categories"][value] for value in layer["values"][0]]
    assert names == [f"b{segment.batch(0, step).bucket}" for step in chart["columns"]]
    assert len(layer["categories"]) <= len(chart["columns"])


def test_parts_without_a_step_keep_their_numbers() -> None:
    # The second part has fewer batches than three, so the third one begins at once.
    report = of_config({"batch_size": 1, "data": {"samples": 11}}, resize=[1, 5, 4, 1])
    ranks = {row[0]: row[1] for row in chart_of(report, "runs", "Parts")["rows"]}
    assert ranks == {1: 1, 2: 5, 3: 4, 4: 1}
    spans = chart_of(report, "runs", "Parts of")["spans"]
    assert [(span["name"], span["note"]) for span in spans] == [
        ("part 1", "1 rank"),
        ("part 3", "4 ranks"),
        ("part 4", "1 rank"),
    ]


def test_a_resize_without_any_step_is_refused() -> None:
    with pytest.raises(EmptyEpochError, match=r"resize=\[3, 4\] gives 0 steps"):
        of_config({"batch_size": 1, "data": {"samples": 3}}, resize=[3, 4])


def test_many_resizes_give_a_small_page() -> None:
    report = of_config({**MIXTURE, "batch_size": 1}, resize=[2, 3] * 60)
    assert len(render(report)) < 300_000
    facts = {fact.label: fact.value for fact in report.facts}
    assert facts["ranks"] == "2 → 3 → 2 → 3 → 2 → 3 → … → 3"


def test_parts_of_the_data_are_compared_with_their_own_size() -> None:
    # Of 33 samples, one of the 32 parts has two.
    report = of_config({"batch_size": 1, "data": {"samples": 33}})
    chart = chart_of(report, "coverage", "Parts of the data over time")
    values = np.array(chart["layers"][0]["values"])
    assert values.mean(axis=1) == pytest.approx(np.ones(32), rel=1e-5)


def test_groups_of_steps_are_named_after_their_first() -> None:
    # 61 steps in at most 60 groups: each has two of them, but for the last.
    report = of_config({"batch_size": 1, "shuffle": False, "data": {"samples": 61}})
    assert chart_of(report, "coverage", "Parts of the data over time")["columns"] == list(
        range(0, 61, 2)
    )


@pytest.mark.parametrize(("ranks", "waiting"), [(3, "1 rank"), (4, "2 ranks")])
def test_what_naive_sharding_does_is_said_in_plain_words(ranks: int, waiting: str) -> None:
    values = {"ranks": ranks, "batch_size": 1, "tail": "pad", "data": {"samples": 10}}
    report = of_config(values)
    panel = panel_of(report, "coverage")
    assert panel["text"] == (
        "How much of the epoch has been consumed at each step, and which part of the data the "
        "samples come from."
    )
    note = chart_of(report, "coverage", "What naive sharding would lose or repeat")["note"]
    assert note == (
        "Naive sharding gives each rank a fixed share. After a resume, each rank skips as many "
        f"batches as the run has trained. The run would also hang, with {waiting} waiting."
    )
