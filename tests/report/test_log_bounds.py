"""Reports of very long, very large and very odd logs: small, whole, and without a crash."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import InvalidValueError
from feedline.report import render, report_logs
from feedline.runs import ConsumptionLog, RunConfig
from report_data import chart_of, layer_of, write_log

MOST_BYTES = 150_000


@pytest.mark.parametrize("first", [-3, 0, 10**6, 2**62, 2**63 - 4])
def test_waits_are_shown_from_the_first_step_on(first: int, tmp_path: Path) -> None:
    steps = range(first, first + 4)
    batches = [(0, step, [n]) for n, step in enumerate(steps)]
    path = write_log(tmp_path / "a.log", batches, waits=[1, 2, 3, 4], num_samples=9)
    chart = chart_of(report_logs([path]), "waits", "Wait")
    assert chart["x"] == list(steps)
    assert chart["series"][0]["values"] == [1, 2, 3, 4]


def test_steps_that_are_far_apart_are_drawn(tmp_path: Path) -> None:
    batches = [(0, 0, [0, 1]), (0, 5, [2]), (0, 2**63 - 1, [3])]
    report = report_logs([write_log(tmp_path / "a.log", batches, num_samples=4)])
    assert chart_of(report, "map", "Ranks")["columns"] == [0, 5, 2**63 - 1]
    assert chart_of(report, "coverage", "Share")["series"][0]["values"] == [0, 0.5, 0.75, 1]


def test_waits_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    batches = [(0, step, [step]) for step in range(3)]
    waits = [float("nan"), 2.0, float("inf")]
    path = write_log(tmp_path / "a.log", batches, waits=waits, num_samples=3)
    report = report_logs([path])
    assert chart_of(report, "waits", "Wait")["x"] == [1]
    assert layer_of(chart_of(report, "map", "Ranks"), "wait for data")[0, 1] == 2
    path = write_log(tmp_path / "b.log", batches, waits=waits[:1], num_samples=3)
    assert "waits" not in {panel.name for panel in report_logs([path]).panels}


def test_epochs_inside_of_one_step_are_read(tmp_path: Path) -> None:
    batches = [(epoch, 0, [0, 1]) for epoch in range(4)]
    report = report_logs([write_log(tmp_path / "a.log", batches, num_samples=2)])
    assert layer_of(chart_of(report, "map", "Ranks"), "samples").tolist() == [[8]]
    assert chart_of(report, "coverage", "Share")["x"] == [0, 1, 1, 1, 1]


@pytest.mark.slow
def test_large_batches_are_not_kept_in_memory(tmp_path: Path) -> None:
    size = 2**16
    batches = [(0, step, np.arange(size) % 100) for step in range(150)]
    path = write_log(tmp_path / "a.log", batches, num_samples=100)
    tracemalloc.start()
    try:
        report = report_logs([path])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 150 * size * 8 / 2
    assert layer_of(chart_of(report, "map", "Ranks"), "samples").tolist() == [[size] * 150]


def test_many_runs_give_a_small_page(tmp_path: Path) -> None:
    with ConsumptionLog(
        tmp_path / "a.log", rank=0, world_size=1, run="r" * 10**5, info={"num_samples": 900}
    ) as log:
        for number in range(300):
            log.event("resume", step=3 * number)
            for step in range(3 * number, 3 * number + 3):
                log.record(epoch=0, step=step, batch=0, ids=[step])
    report = report_logs([tmp_path])
    assert report.verdict.text == "900 samples came exactly once in an epoch that has not ended."
    assert len(render(report)) < MOST_BYTES
    chart = chart_of(report, "runs", "Runs")
    assert "40 of 300 are shown" in chart["note"]
    assert chart["spans"][-1]["end"] == 900
    assert chart_of(report, "map", "Ranks")["columns"][-1] == 899


def test_many_epochs_give_a_small_page(tmp_path: Path) -> None:
    batches = [(epoch, epoch, [0, 1] if epoch != 700 else [0, 0]) for epoch in range(1000)]
    report = report_logs([write_log(tmp_path / "a.log", batches, num_samples=2)])
    assert len(render(report)) < MOST_BYTES
    share = chart_of(report, "coverage", "Share")
    assert share["note"] == "Shown: 500 of 1,000 epochs."
    assert (share["x"][0], share["x"][-1]) == (0, 1000)
    table = chart_of(report, "audit", "Epochs")
    assert len(table["rows"]) == 200
    assert [row[0] for row in table["rows"] if row[-2]] == [700], "faults are among them"


def test_many_faults_give_a_small_table(tmp_path: Path) -> None:
    batches = [(epoch, epoch, [0] * 9) for epoch in range(100)]
    report = report_logs([write_log(tmp_path / "a.log", batches, num_samples=30)])
    table = chart_of(report, "audit", "Samples that did not")
    assert len(table["rows"]) == 200
    assert "200 of " in table["note"]


def test_many_events_give_a_small_page(tmp_path: Path) -> None:
    events = [("checkpoint", {"step": step, "note": "n" * 999}) for step in range(3000)]
    events += [("e" * 10**5, {f"{'k' * 999}{n}": n for n in range(1000)})]
    path = write_log(tmp_path / "a.log", [(0, 0, [0])], events=events, num_samples=1)
    report = report_logs([path])
    assert len(render(report)) < MOST_BYTES
    assert chart_of(report, "runs", "Events")["note"] == "The first 200 of 3,001."
    marks = chart_of(report, "runs", "Runs")["spans"][0]["marks"]
    assert (len(marks), marks[0]["x"], marks[-1]["x"]) == (1000, 0, 2999)


def test_many_sources_give_a_small_page(tmp_path: Path) -> None:
    batches = [(0, step, range(100 * step, 100 * step + 100)) for step in range(40)]
    path = write_log(
        tmp_path / "a.log", batches, sources={f"{'s' * 500}{n}": 2 for n in range(2000)}
    )
    report = report_logs([path])
    assert len(render(report)) < MOST_BYTES
    assert len(chart_of(report, "quality", "Compared")["names"]) <= 8 * 5
    text = next(panel.text for panel in report.panels if panel.name == "mixture")
    assert "The 1,994 least frequent sources are not shown." in text


def test_events_are_shown_whatever_they_hold(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    events = [
        ("epoch_end", {"time": 0, "epoch": 0, "step": 0, "loss": 0.0, "reason": None}),
        ("start", {"time": "yesterday", "step": deep}),
        ("checkpoint", {"time": 10**300, "step": True, "loss": 1 / 3}),
        ("checkpoint", {"time": 9, "step": 10**300}),
    ]
    path = write_log(tmp_path / "a.log", [(0, 0, [0])], events=events, num_samples=1)
    report = report_logs([path])
    rows = chart_of(report, "runs", "Events")["rows"]
    assert ["1970-01-01 00:00:00", "one", "epoch_end", 0, "epoch 0, loss 0"] in rows
    assert ["", "one", "start", "[" * 80, ""] in rows
    assert ["", "one", "checkpoint", "True", "loss 0.3333"] in rows
    assert [mark["x"] for mark in chart_of(report, "runs", "Runs")["spans"][0]["marks"]] == [
        10**300
    ]
    render(report)


@pytest.mark.parametrize("weights", [{"a": 10**400, "b": 1}, {"a": 0, "b": 0}, {"a": -1}, "a"])
def test_weights_that_cannot_be_are_passed_over(weights: object, tmp_path: Path) -> None:
    path = write_log(
        tmp_path / "a.log", [(0, 0, [0, 1])], sources={"a": 1, "b": 1}, weights=weights
    )
    assert ", target" not in str(chart_of(report_logs([path]), "mixture", "Shares")["series"])


def test_sources_of_a_mixture_are_those_of_the_config(tmp_path: Path) -> None:
    config = RunConfig.from_dict(
        {
            "batch_size": 1,
            "data": {"mixture": [{"name": "a", "samples": 6}, {"name": "b", "samples": 4}]},
        }
    )
    order = config.plan.segment(world_size=1, batch_size=1).block(0, 0, 10).indices.tolist()
    batches = [(0, step, [index]) for step, index in enumerate(order)]
    for number, info in enumerate([{"sources": {"x": 1, "y": 2, "z": 7}}, {"num_samples": 10}, {}]):
        path = write_log(tmp_path / f"{number}.log", batches, **info)
        report = report_logs([path], config=config)
        assert report.verdict.is_good
        names = chart_of(report, "mixture", "Altogether")["names"]
        assert sorted(names) == ["a", "b"]


def test_a_config_of_other_data_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", [(0, 0, [0, 1])], num_samples=2)
    config = RunConfig.from_dict({"batch_size": 1, "data": {"samples": 3}})
    with pytest.raises(InvalidValueError, match="has 3 samples but must have 2, as "):
        report_logs([path], config=config)
    fits = RunConfig.from_dict({"batch_size": 1, "data": {"samples": 2}})
    with pytest.raises(InvalidValueError, match="num_samples=2 cannot be used with a config"):
        report_logs([path], config=fits, num_samples=2)
    batches = [(0, step, [0]) for step in range(5)]
    with ConsumptionLog(tmp_path / "b.log", rank=0, world_size=1) as log:
        log.event("start", time=0)
        for epoch, step, ids in batches:
            log.record(epoch=epoch, step=step, batch=step, ids=ids)
    write_log(tmp_path / "c.log", [(0, 5, [1])], events=[("resume", {"step": 5})], run="two")
    with pytest.raises(InvalidValueError, match="the config's plan does not fit the logs"):
        report_logs([tmp_path / "b.log", tmp_path / "c.log"], config=fits)


def test_paths_may_come_one_by_one(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", [(0, 0, [0])], num_samples=1)
    text = "1 sample came exactly once in an epoch that has not ended."
    assert report_logs(iter([path])).verdict.text == text
