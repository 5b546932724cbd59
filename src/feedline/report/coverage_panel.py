"""The panels that show the coverage of the data, and the shares of its sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from feedline.plan import Mixture, Phase
from feedline.plan.apportion import shares_of
from feedline.report.charts import Bars, Chart, Layer, Lines, Map, Mark, Panel, Series
from feedline.report.trace import Covered, Trace
from feedline.runs.naive_sharding import NaiveSharding
from feedline.runs.plan_report import phases_of, spread
from feedline.runs.words import num_ranks
from feedline.words import several

_MOST_BINS, _NUM_PARTS, _MOST_CHANGES, _MOST_SOURCES = 60, 32, 60, 6

#: What share each source should have at a position of an epoch.
Target = Callable[[int, int], Sequence[float]]


def coverage_panel(trace: Trace, naive: NaiveSharding | None = None) -> Panel:
    """Return the panel of coverage over time."""
    charts: list[Chart] = [_consumed(trace)]
    if naive is not None and (naive.num_lost or naive.num_repeated or naive.hangs):
        charts.append(_beside_naive(naive))
    parts = _parts_of_data(trace)
    if parts is not None:
        charts.append(parts)
    text = "How much of the epoch has been consumed at each step, and which part of the data the "
    return Panel("coverage", "Coverage", text + "samples come from.", charts)


def _consumed(trace: Trace) -> Lines:
    points: list[Covered] = []
    for point in trace.coverage:
        # Of an epoch that begins inside of the last step of the one before, the beginning is left
        # out, so that steps never go back.
        if not points or point.step >= points[-1].step:
            points.append(point)
    shares = [point.num_consumed / max(1, trace.num_positions) for point in points]
    series = [Series("positions consumed", shares)]
    if all(point.num_different is not None for point in points):
        total = max(1, trace.num_samples)
        shares = [(point.num_different or 0) / total for point in points]
        series.append(Series("different samples", shares, style="dashed"))
    num_epochs = len({point.epoch for point in points})
    notes = []
    if num_epochs < trace.num_epochs:
        notes.append(f"Shown: {num_epochs:,} of {several(trace.num_epochs, 'epoch')}.")
    if any(stretch.counted_end < stretch.end for stretch in trace.stretches):
        notes.append("Discarded steps are not shown.")
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


def _parts_of_data(trace: Trace) -> Map | None:
    """Return how often each part of the data comes in each period, relative to the mean."""
    num_samples = trace.num_samples
    num_parts = min(_NUM_PARTS, num_samples)
    groups = trace.groups(_MOST_BINS)
    if len(groups) < 2 or num_parts < 2:
        return None
    edges = [part * num_samples // num_parts for part in range(num_parts + 1)]
    counts = trace.counts_over_time(groups, np.array(edges[:-1], dtype=np.int64))
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    values = shares.T / (np.diff(edges) / num_samples)[:, None]
    return Map(
        title="Parts of the data over time",
        note=(
            "A perfect shuffle gives 1 everywhere. Streaks mean that data is read in order, or "
            "that sources or buckets change over time."
        ),
        column_label="step",
        row_label="indices from",
        columns=[trace.columns[group[0]].step for group in groups],
        rows=edges[:-1],
        layers=[Layer(name="times the mean", values=values.tolist())],
    )


def _beside_naive(naive: NaiveSharding) -> Bars:
    note = "Naive sharding gives each rank a fixed share. After a resume, each rank skips as many "
    note += "batches as the run has trained."
    if naive.hangs:
        note += f" The run would also hang, with {num_ranks(naive.num_waiting_ranks)} waiting."
    return Bars(
        title="What naive sharding would lose or repeat",
        note=note,
        names=["lost", "repeated"],
        series=[Series("samples", [naive.num_lost, naive.num_repeated])],
    )


def target_of_mixture(mixture: Mixture) -> Target:
    """Return the target shares of the weights and phases of a mixture."""

    @cache
    def shares_in(phase: Phase) -> Sequence[float]:
        return [float(share) for share in shares_of(phase.weights, phase.temperature)]

    def target(epoch: int, position: int) -> Sequence[float]:
        phases = phases_of(mixture, epoch)
        return shares_in([phase for start, phase in phases if start <= position][-1])

    return target


def target_of_weights(weights: Sequence[float]) -> Target:
    """Return shares that never change."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return lambda epoch, position: shares


def mixture_panel(
    trace: Trace, target: Target | None, draws: Sequence[int] | None = None
) -> Panel | None:
    """Return the shares over time and for all steps, or None if there is one source only.

    Args:
        trace: The steps that are shown.
        target: The target shares.
        draws: How often each source comes in total, if known.
    """
    groups = trace.groups(_MOST_BINS)
    if len(trace.sources) < 2 or not groups:
        return None
    counts = trace.counts_over_time(groups, trace.firsts)
    if draws is None:
        draws = counts.sum(axis=0).tolist()
    listed = sorted(range(len(draws)), key=lambda number: -draws[number])[:_MOST_SOURCES]
    names = [trace.sources[number].name for number in listed]
    sizes = counts.sum(axis=1, keepdims=True)
    shares = counts[:, listed] / np.maximum(1, sizes)
    series = [Series(n, v) for n, v in zip(names, shares.T.tolist(), strict=True)]
    targets: list[float | None] = []
    if target is not None:
        wanted = np.array([_wanted(trace, group, target) for group in groups])[:, listed]
        series += [
            Series(f"{name}, target", values, style="dashed")
            for name, values in zip(names, wanted.T.tolist(), strict=True)
        ]
        # Groups of steps differ in their number of samples.
        targets = ((wanted * sizes).sum(axis=0) / max(1, int(sizes.sum()))).tolist()
    over_time = Lines(
        title="Shares over time",
        x_label="step",
        y_label="share",
        x=[trace.columns[group[0]].step for group in groups],
        series=series,
        format="share",
    )
    total = max(1, sum(draws))
    overall = Bars(
        title="Altogether",
        note="The tick is the target share." if targets else "",
        names=names,
        series=[Series("share", [draws[number] / total for number in listed])],
        targets=targets,
        format="share",
    )
    where = "" if trace.is_whole else " that are shown above"
    text = f"The share of each source in the steps and ranks{where}"
    text += ", with the target share of its weight." if target else "."
    if num_others := len(trace.sources) - len(listed):
        one, many = "least frequent source is", "least frequent sources are"
        text += f" The {several(num_others, one, many)} not shown."
    return Panel("mixture", "Mixture", text, [over_time, overall])


def _wanted(trace: Trace, group: Sequence[int], target: Target) -> Sequence[float]:
    """Return the mean target share of each source in a group of columns."""
    found = []
    for column in (trace.columns[place] for place in group):
        position = trace.position_of(column.epoch, column.step)
        found.append(target(column.epoch, min(position, max(0, trace.num_positions - 1))))
    mean: list[float] = np.mean(found, axis=0).tolist()
    return mean
