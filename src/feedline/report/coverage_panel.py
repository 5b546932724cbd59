"""The panel that shows how the data is covered over an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.report.charts import Bars, Chart, Layer, Lines, Map, Mark, Panel, Series
from feedline.report.trace import Trace, num_ranks
from feedline.runs.plan_report import Naive

__all__ = ["coverage_panel"]

_MOST_BINS, _NUM_PARTS = 60, 32


def coverage_panel(trace: Trace, naive: Naive | None = None) -> Panel:
    """Return how much is consumed when, and which part of the data when."""
    charts: list[Chart] = [_consumed(trace)]
    if naive is not None:
        charts.append(_beside_naive(naive))
    parts = _parts_of_data(trace)
    if parts is not None:
        charts.append(parts)
    return Panel(
        name="coverage",
        title="Coverage",
        text="How much of an epoch is consumed before each step, and from which part of the data "
        "the samples come.",
        charts=charts,
    )


def _consumed(trace: Trace) -> Lines:
    points = trace.coverage
    series = [
        Series(
            name="positions consumed",
            values=[point.num_consumed / max(1, trace.num_positions) for point in points],
        )
    ]
    if all(point.num_different is not None for point in points):
        total = max(1, trace.num_samples)
        shares = [(point.num_different or 0) / total for point in points]
        series.append(Series(name="different samples", values=shares, style="dashed"))
    return Lines(
        title="Share of the epoch",
        note="Steps that were thrown away are left out." if _has_faded(trace) else "",
        x_label="step",
        y_label="share",
        x=[point.step for point in points],
        series=series,
        marks=list(_changes(trace)),
        format="share",
    )


def _has_faded(trace: Trace) -> bool:
    return any(stretch.counted_end < stretch.end for stretch in trace.stretches)


def _changes(trace: Trace) -> Iterator[Mark]:
    for stretch in trace.stretches[1:]:
        yield Mark(x=stretch.first, label=num_ranks(stretch.world_size))


def _parts_of_data(trace: Trace) -> Map | None:
    """Return how often each part of the data comes in each stretch of time, beside the mean."""
    counted = [n for n, column in enumerate(trace.columns) if trace.is_counted(column)]
    num_samples = trace.num_samples
    num_parts = min(_NUM_PARTS, num_samples)
    num_bins = min(_MOST_BINS, len(counted))
    if num_bins < 2 or num_parts < 2:
        return None
    edges = [counted[number * len(counted) // num_bins] for number in range(num_bins)]
    values = np.zeros((num_parts, num_bins))
    for number, group in enumerate(np.array_split(np.array(counted), num_bins)):
        ids = np.concatenate([trace.ids_of(int(place)) for place in group])
        known = ids[(ids >= 0) & (ids < num_samples)]
        part = np.minimum(known * num_parts // num_samples, num_parts - 1)
        counts = np.bincount(part, minlength=num_parts)
        values[:, number] = counts / max(1, len(known)) * num_parts
    starts = [part * num_samples // num_parts for part in range(num_parts)]
    return Map(
        title="Which part of the data when",
        note="1 is as often as in a perfect shuffle. Streaks show data that is read in order, or "
        "sources and buckets that come and go.",
        column_label="step",
        row_label="indices from",
        columns=[trace.columns[place].step for place in edges],
        rows=starts,
        layers=[Layer(name="times the mean", values=values.tolist())],
    )


def _beside_naive(naive: Naive) -> Bars:
    note = "Naive sharding: every rank batches its own share, and a resume skips as many batches. "
    if naive.hangs:
        note += (
            f"It would also hang: {naive.num_waiting_ranks:,} ranks have a batch more than the "
            "others."
        )
    return Bars(
        title="What naive sharding would lose or repeat",
        note=note,
        names=["lost", "repeated"],
        series=[Series(name="samples", values=[naive.num_lost, naive.num_repeated])],
    )
