"""The panel that shows how the data is covered over an epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedline.report.charts import Bars, Chart, Layer, Lines, Map, Mark, Panel, Series
from feedline.report.trace import Covered, Trace, spread
from feedline.runs.naive_sharding import NaiveSharding
from feedline.runs.words import num_ranks

_MOST_BINS, _NUM_PARTS, _MOST_CHANGES = 60, 32, 60


def coverage_panel(trace: Trace, naive: NaiveSharding | None = None) -> Panel:
    """Return how much is consumed when, and which part of the data when."""
    charts: list[Chart] = [_consumed(trace)]
    if naive is not None and (naive.num_lost or naive.num_repeated or naive.hangs):
        charts.append(_beside_naive(naive))
    parts = _parts_of_data(trace)
    if parts is not None:
        charts.append(parts)
    text = "How much of an epoch is consumed before each step, and from which part of the data "
    return Panel("coverage", "Coverage", text + "the samples come.", charts)


def _consumed(trace: Trace) -> Lines:
    points = _in_order(trace.coverage)
    shares = [point.num_consumed / max(1, trace.num_positions) for point in points]
    series = [Series("positions consumed", shares)]
    if all(point.num_different is not None for point in points):
        total = max(1, trace.num_samples)
        shares = [(point.num_different or 0) / total for point in points]
        series.append(Series("different samples", shares, style="dashed"))
    num_epochs = len({point.epoch for point in points})
    notes = []
    if num_epochs < trace.num_epochs:
        notes.append(f"{num_epochs:,} of {trace.num_epochs:,} epochs are shown.")
    if any(stretch.counted_end < stretch.end for stretch in trace.stretches):
        notes.append("Steps that were thrown away are left out.")
    changes = [trace.stretches[n] for n in spread(1, len(trace.stretches), _MOST_CHANGES)]
    return Lines(
        title="Share of the epoch",
        note=" ".join(notes),
        x_label="step",
        y_label="share",
        x=[point.step for point in points],
        series=series,
        marks=[Mark(stretch.first, num_ranks(stretch.world_size)) for stretch in changes],
        format="share",
    )


def _in_order(points: Sequence[Covered]) -> list[Covered]:
    """Return points whose steps never go back.

    Of an epoch that begins inside of the last step of the one before, the beginning is left out.
    """
    found: list[Covered] = []
    for point in points:
        if not found or point.step >= found[-1].step:
            found.append(point)
    return found


def _parts_of_data(trace: Trace) -> Map | None:
    """Return how often each part of the data comes in each stretch of time, beside the mean."""
    num_samples = trace.num_samples
    num_parts = min(_NUM_PARTS, num_samples)
    groups = trace.groups(_MOST_BINS)
    if len(groups) < 2 or num_parts < 2:
        return None
    edges = [part * num_samples // num_parts for part in range(num_parts + 1)]
    means = np.diff(edges) / num_samples
    values = np.zeros((num_parts, len(groups)))
    for number, group in enumerate(groups):
        known = trace.known(np.concatenate([trace.ids_of(place) for place in group]))
        part = np.searchsorted(edges, known, side="right") - 1
        counts = np.bincount(part, minlength=num_parts)
        values[:, number] = counts / max(1, len(known)) / means
    return Map(
        title="Which part of the data when",
        note="1 is as often as in a perfect shuffle. Streaks show data that is read in order, or "
        "sources and buckets that come and go.",
        column_label="step",
        row_label="indices from",
        columns=[trace.columns[group[0]].step for group in groups],
        rows=edges[:-1],
        layers=[Layer(name="times the mean", values=values.tolist())],
    )


def _beside_naive(naive: NaiveSharding) -> Bars:
    note = "Naive sharding: every rank batches its own share, and a resume skips as many batches. "
    if naive.hangs:
        note += f"It would also hang: {num_ranks(naive.num_waiting_ranks)} would wait for ever."
    return Bars(
        title="What naive sharding would lose or repeat",
        note=note,
        names=["lost", "repeated"],
        series=[Series("samples", [naive.num_lost, naive.num_repeated])],
    )
