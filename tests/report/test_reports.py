"""What a report shows is what the plan says, or what the logs hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import CONFIGS
from examples import few_examples
from feedline.errors import InvalidValueError, StoreError
from feedline.feed import Wait
from feedline.report import render, report_config, report_logs, write_report
from feedline.runs import RunConfig, audit_logs, dry_run, read_log, report_plan
from feedline.runs.audit import find_logs
from feedline.runs.log_records import LoggedBatch
from report_data import (
    BUCKETS,
    HUGE,
    MIXTURE,
    TINY,
    WINDOWS,
    chart_of,
    layer_of,
    of_config,
    panel_of,
    write_log,
    write_logs,
    write_padded_logs,
)


@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    tail=st.sampled_from(["drop", "pad", "even"]),
    sizes=st.none() | st.lists(st.integers(1, 9), min_size=2, max_size=4),
    epoch=st.integers(0, 2),
)
@few_examples(1 / 2)
def test_the_map_of_a_small_plan_holds_everything_that_is_consumed(
    kind: str, tail: str, sizes: list[int] | None, epoch: int
) -> None:
    config = RunConfig.from_dict({**CONFIGS[kind], "tail": tail})
    report = report_config(config, epoch=epoch, resize=sizes)
    chart = chart_of(report, "map", "Ranks")
    consumed = np.nansum(layer_of(chart, "samples"))
    if sizes is None:
        counts = report_plan(config, epoch)
        expected = counts.num_positions - counts.num_dropped
    else:
        expected = dry_run(config, sizes, epoch).coverage.num_consumed
    if "All steps of all ranks" in panel_of(report, "map")["text"]:
        assert consumed == expected
    else:
        assert 0 < consumed < expected
    shares = chart_of(report, "coverage", "Share")["series"][0]["values"]
    assert shares == sorted(shares)
    total = config.plan.begin(epoch).num_left
    assert shares[-1] == pytest.approx(expected / total, rel=1e-5)
    # What was made can be written, and is the same each time.
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert text == json.dumps(report_config(config, epoch=epoch, resize=sizes).to_dict())


def test_cells_are_what_ranks_get() -> None:
    config = RunConfig.from_dict(MIXTURE)
    chart = chart_of(report_config(config), "map", "Ranks")
    segment = config.plan.segment(world_size=4, batch_size=8)
    first = layer_of(chart, "index of the first sample")
    for row, rank in enumerate(chart["rows"]):
        for column, step in list(enumerate(chart["columns"]))[::17]:
            assert first[row, column] == segment.batch(rank, 2 * step).indices[0]


def test_a_map_of_a_resized_plan_has_the_ranks_of_each_part() -> None:
    report = of_config(MIXTURE, resize=[4, 3, 7])
    chart = chart_of(report, "map", "Ranks")
    starts = [group["x"] for group in chart["groups"]]
    assert [group["label"] for group in chart["groups"]] == [
        "part 1: 4 ranks",
        "part 2: 3 ranks",
        "part 3: 7 ranks",
    ]
    samples = layer_of(chart, "samples")
    alive = [int((~np.isnan(samples[:, start])).sum()) for start in starts]
    assert alive == [4, 3, 7]


def test_the_tail_shows_who_gets_padding() -> None:
    report = of_config(BUCKETS)
    counts = report_plan(RunConfig.from_dict(BUCKETS))
    assert counts.num_padded
    assert f"{counts.num_padded:,} padded" in panel_of(report, "tail")["text"]
    padded = layer_of(chart_of(report, "map", "Ranks"), "padded")
    assert np.nansum(padded) == counts.num_padded


def test_buckets_are_colours_and_rows() -> None:
    report = of_config(BUCKETS)
    layer = chart_of(report, "map", "Ranks")["layers"][0]
    assert layer["categories"] == ["512x512", "1024x1024"]
    assert {value for row in layer["values"] for value in row} == {0, 1}
    # All ranks are in the same bucket at the same step.
    assert all(len(set(column)) == 1 for column in zip(*layer["values"], strict=True))
    assert len(chart_of(report, "batches", "Buckets")["rows"]) == 2
    sizes = chart_of(report, "batches", "Samples")["series"][0]["values"]
    assert set(sizes) == {4, 16}


def test_shares_of_a_mixture_are_those_of_its_phases() -> None:
    chart = chart_of(of_config(MIXTURE), "mixture", "Shares")
    series = {one["name"]: one["values"] for one in chart["series"]}
    assert series["web, target"][0] == pytest.approx(0.6)
    assert series["web, target"][-1] == pytest.approx(0.25)
    got, wanted = np.array(series["code"]), np.array(series["code, target"])
    assert abs(got.mean() - wanted.mean()) < 0.02
    assert abs(got[:20].mean() - 0.2) < 0.05
    assert abs(got[-20:].mean() - 0.5) < 0.05


def test_windows_show_few_chunks_and_a_shuffle_that_is_not_perfect() -> None:
    report = of_config(WINDOWS)
    chunks = layer_of(chart_of(report, "map", "Ranks"), "chunks in a step")
    assert 1 <= np.nanmin(chunks) <= np.nanmax(chunks) <= 9
    assert "by design" in panel_of(report, "quality")["text"]
    assert "within the tolerance" in panel_of(of_config(MIXTURE), "quality")["text"]


def test_naive_sharding_is_beside_it() -> None:
    run = dry_run(RunConfig.from_dict(MIXTURE), [4, 3, 7])
    chart = chart_of(of_config(MIXTURE, resize=[4, 3, 7]), "coverage", "What naive")
    assert run.naive is not None
    assert chart["series"][0]["values"] == [run.naive.num_lost, run.naive.num_repeated]


def test_a_trillion_samples_give_a_report_of_the_same_size() -> None:
    report = of_config(HUGE, resize=[16384, 16000, 7])
    chart = chart_of(report, "map", "Ranks")
    assert len(chart["rows"]) <= 60
    assert len(chart["columns"]) <= 200
    assert chart["columns"][-1] > 10**9
    assert len(render(report)) < 2**20
    assert report.verdict.is_good


def test_one_sample_gives_a_report() -> None:
    assert of_config(TINY).verdict.text == "1 batch on each of 1 rank."


def test_the_report_of_logs_shows_what_was_thrown_away(tmp_path: Path) -> None:
    report = report_logs([write_logs(tmp_path)])
    assert report.verdict.is_good
    chart = chart_of(report, "map", "Ranks")
    steps = list(zip(chart["columns"], chart["is_faded"], strict=True))
    assert [step for step, is_faded in steps if is_faded] == list(range(60, 65))
    spans = chart_of(report, "runs", "Runs")["spans"]
    assert [(span["start"], span["counted_end"], span["end"]) for span in spans] == [
        (0, 40, 40),
        (40, 60, 65),
        (60, 160, 160),
    ]
    assert "killed or crashed" in spans[1]["note"]
    events = chart_of(report, "runs", "Events")["rows"]
    assert [row[2] for row in events if row[1] == "run 1"] == ["start", *["checkpoint"] * 4, "stop"]


def test_coverage_of_logs_is_that_of_the_samples_in_them(tmp_path: Path) -> None:
    report = report_logs([write_logs(tmp_path)])
    chart = chart_of(report, "coverage", "Share")
    consumed, different = (one["values"] for one in chart["series"])
    at = dict(zip(chart["x"], consumed, strict=True))
    assert at[40] == pytest.approx(40 * 2 * 4 / 960, rel=1e-5)
    assert at[160] == 1
    assert consumed == different


def test_padding_covers_nothing(tmp_path: Path) -> None:
    report = report_logs([write_padded_logs(tmp_path)])
    chart = chart_of(report, "coverage", "Share")
    assert max(chart["series"][0]["values"]) == 1
    assert chart["series"][0]["values"].count(0) == 2, "each epoch begins with nothing"
    last = chart_of(report, "tail", "Samples of each rank in step 3")
    assert [one["values"] for one in last["series"]] == [[7, 7], [1, 1]]


def test_waits_are_those_in_the_logs(tmp_path: Path) -> None:
    logs = write_logs(tmp_path)
    total = 0.0
    for path in find_logs([logs]):
        for entry in read_log(path).entries:
            # Steps from 60 on of the second run are thrown away.
            if isinstance(entry, LoggedBatch) and not ("run 2" in str(path) and entry.step >= 60):
                total += entry.wait
    report = report_logs([logs])
    assert f" {total:.3g} s in total" in panel_of(report, "waits")["text"]
    chart = chart_of(report, "waits", "Wait")
    longest = dict(zip(chart["x"], chart["series"][0]["values"], strict=True))
    assert longest[0] == longest[40] == longest[60] == 0.2
    assert longest[41] == 0.003


def test_each_run_shows_what_it_waited_for(tmp_path: Path) -> None:
    report = report_logs([write_logs(tmp_path)])
    chart = chart_of(report, "waits", "What each run")
    assert chart["names"] == ["run 1", "run 2", "run 3"]
    names = [one["name"].split()[0] for one in chart["series"]]
    assert names == ["reading", "copying", "handing", "unknown,"]
    reading, copying, handing_over, unknown = (one["values"] for one in chart["series"])
    # The first run is of a release that did not know the parts.
    assert (reading[0], copying[0], handing_over[0]) == (0, 0, 0)
    assert unknown[0] > 0 == unknown[1] == unknown[2]
    whole = 0.2 + 99 * 0.001
    assert reading[2] == pytest.approx(0.6 * whole, rel=1e-5)
    assert reading[2] + copying[2] + handing_over[2] == pytest.approx(whole, rel=1e-5)


def test_logs_of_older_releases_show_how_long_ranks_waited_and_no_parts(tmp_path: Path) -> None:
    report = report_logs([write_padded_logs(tmp_path)])
    panel = panel_of(report, "waits")
    assert [chart["title"] for chart in panel["charts"]] == ["Wait for a batch"]
    assert panel["text"].endswith("10 ms for each of 8 batches on average.")


@pytest.mark.parametrize(
    "wait",
    [
        Wait(1.0, reading=float("nan")),
        Wait(1.0, reading=1e308, copying=1e308),
        Wait(1.0, reading=-5.0, copying=6.0),
        Wait(1.0, copying=2.0),
    ],
)
def test_parts_that_do_not_make_the_whole_are_unknown(tmp_path: Path, wait: Wait) -> None:
    batches = [(0, step, [step]) for step in range(4)]
    waits = [wait, Wait(1.0, reading=0.5)]
    report = report_logs([write_log(tmp_path / "a.log", batches, waits=waits, num_samples=4)])
    assert panel_of(report, "waits")["text"].endswith(
        ": 25% reading, 0% copying, 25% handing over, 50% unknown."
    )


def test_a_loss_is_told(tmp_path: Path) -> None:
    logs = write_logs(tmp_path, drop=1)
    report = report_logs([logs])
    lost = audit_logs([logs]).epochs[0].lost
    assert report.verdict.text == "The audit fails: 1 lost."
    assert chart_of(report, "audit", "Samples")["rows"] == [[0, "lost", lost[0]]]
    different = chart_of(report, "coverage", "Share")["series"][1]["values"]
    assert different[-1] == pytest.approx(959 / 960, rel=1e-5)


def test_logs_beside_a_config_show_what_was_planned(tmp_path: Path) -> None:
    config = RunConfig.from_dict(
        {"seed": 3, "batch_size": 4, "data": {"samples": 960}},
    )
    report = report_logs([write_logs(tmp_path)], config=config)
    assert report.verdict.text == "960 samples came as often as planned in an epoch."


def test_progress_ends_with_everything(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report_logs([write_logs(tmp_path)], progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (40 * 2 + 25 * 3 + 100,) * 2


def test_an_older_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = write_report(of_config(TINY), tmp_path / "deep" / "report.html")
    write_report(of_config(MIXTURE), path)
    assert "books" in path.read_text()
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(InvalidValueError, match=r"notes\.html must be new, or a report"):
        write_report(of_config(TINY), other)
    assert other.read_text() == "<p>mine</p>"
    with pytest.raises(InvalidValueError, match="is a folder"):
        write_report(of_config(TINY), tmp_path)
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(of_config(TINY), other / "report.html")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "deep",
        "notes.html",
        "report.html",
    ]


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    logs = write_logs(tmp_path)
    assert render(report_logs([logs])) == render(report_logs([logs]))


def test_shares_altogether_are_those_of_the_whole_epoch() -> None:
    data = {
        "mixture": [
            {"name": "web", "samples": 80_000, "weight": 6},
            {"name": "books", "samples": 15_000, "weight": 3},
        ],
        "stop": True,
    }
    values = {"batch_size": 4, "data": data}
    lines = report_plan(RunConfig.from_dict(values)).sources
    chart = chart_of(of_config(values), "mixture", "Altogether")
    assert chart["names"] == ["web", "books"]
    assert chart["series"][0]["values"] == pytest.approx([line.share for line in lines], rel=1e-5)


def test_data_in_order_is_said_to_be_in_order() -> None:
    report = of_config({"batch_size": 4, "shuffle": False, "data": {"samples": 1000}})
    assert "it is not shuffled" in panel_of(report, "quality")["text"]
    assert "Windows" not in panel_of(report, "quality")["text"]


@pytest.mark.slow
def test_a_mixture_on_many_ranks_is_looked_at_in_fewer_places() -> None:
    sources = [{"name": str(n), "samples": 10**7, "weight": 1 + n % 7} for n in range(20)]
    report = of_config({"ranks": 512, "batch_size": 32, "data": {"mixture": sources}})
    chart = chart_of(report, "map", "Ranks")
    assert len(chart["rows"]) * len(chart["columns"]) <= 1000
    assert {0, 511} <= set(chart["rows"])
