"""The report of a measurement shows all figures, the bottleneck, and what to change."""

from __future__ import annotations

import pytest

from bench_figures import figures_of
from feedline.report.bench_report import report_bench
from feedline.runs.bench.advice import advise
from report_data import chart_of, of_figures, panel_of


def test_bars_and_table_hold_every_figure_and_mark_the_bottleneck() -> None:
    found = figures_of(gathers={4: 9, 8: 10}, link=50, shuffle=8, windows=9)
    report = report_bench(found, advise(found), title="data")
    bars = chart_of(report, "advice", "Each stage")
    others, slowest = (one["values"] for one in bars["series"])
    sizes = [a if b is None else b for a, b in zip(others, slowest, strict=True)]
    expected = [f.bytes_per_second / 2**30 for f in found.figures]
    assert sizes == pytest.approx(expected)
    (marked,) = [n for n, size in zip(bars["names"], slowest, strict=True) if size is not None]
    assert marked == "gather: 8 threads"
    table = chart_of(report, "figures", "In bytes")
    assert [row[2] for row in table["rows"]] == pytest.approx(expected)
    assert [row[:2] for row in table["rows"] if "bottleneck" in row[1]] == [
        ["gather", "8 threads, the bottleneck"]
    ]
    assert report.verdict.text == "The bottleneck is gathering rows, at 10.0 GiB/s."
    assert not report.verdict.is_good


def test_each_advice_is_a_paragraph_and_each_missing_figure_is_told() -> None:
    report = of_figures(cold=1, shuffle=3, windows=9)
    text = panel_of(report, "advice")["text"]
    assert len(text.split("\n")) == 2
    assert "Not measured: direct I/O, because it was not asked for." in panel_of(report, "figures")[
        "text"
    ].split("\n")


def test_slow_data_is_drawn_in_smaller_units() -> None:
    report = of_figures(warm=0.1, cold=None, gathers={8: 0.05}, shuffle=0.01, windows=0.01)
    assert chart_of(report, "advice", "Each stage")["title"] == "Each stage, in MiB/s"


def test_threads_are_drawn_where_there_are_several() -> None:
    report = of_figures(gathers={1: 3, 2: 5, 8: 10})
    lines = chart_of(report, "threads", "Rows gathered")
    assert lines["x"] == [1, 2, 8]
    assert [one["values"] for one in lines["series"]] == [[3, 5, 10], [3, 6, 24]]
    alone = of_figures(gathers={1: 3}, num_threads=1, auto_threads=1)
    assert [panel.name for panel in alone.panels] == ["advice", "figures"]
