"""The panel that shows in which proportions sources come, beside what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from feedline.plan import Mixture
from feedline.plan.apportion import shares_of
from feedline.report.charts import Bars, Lines, Panel, Series
from feedline.report.trace import Trace
from feedline.runs.mixture_counts import phases_of

__all__ = ["Target", "mixture_panel", "target_of_mixture", "target_of_weights"]

_MOST_BINS, _MOST_SOURCES = 60, 6

#: What share each source should have at a position of an epoch.
Target = Callable[[int, int], Sequence[float]]


def target_of_mixture(mixture: Mixture) -> Target:
    """Return the shares that the weights and phases of a mixture ask for."""

    def target(epoch: int, position: int) -> Sequence[float]:
        phases = phases_of(mixture, epoch)
        phase = [phase for start, phase in phases if start <= position][-1]
        return [float(share) for share in shares_of(phase.weights, phase.temperature)]

    return target


def target_of_weights(weights: Sequence[float]) -> Target:
    """Return shares that never change."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return lambda epoch, position: shares


def mixture_panel(trace: Trace, target: Target | None) -> Panel | None:
    """Return the shares over time and for all steps, or None if there is one source only."""
    counted = [n for n, column in enumerate(trace.columns) if trace.is_counted(column)]
    if len(trace.sources) < 2 or not counted:
        return None
    groups = np.array_split(np.array(counted), min(_MOST_BINS, len(counted)))
    counts = np.array([_counts(trace, group.tolist()) for group in groups])
    wanted = None if target is None else np.array([_wanted(trace, g, target) for g in groups])
    listed = np.argsort(-counts.sum(axis=0), kind="stable")[:_MOST_SOURCES].tolist()
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    names = [trace.sources[number].name for number in listed]
    series = [
        Series(name=name, values=shares[:, number].tolist())
        for name, number in zip(names, listed, strict=True)
    ]
    if wanted is not None:
        series += [
            Series(name=f"{name}, wanted", values=wanted[:, number].tolist(), style="dashed")
            for name, number in zip(names, listed, strict=True)
        ]
    over_time = Lines(
        title="Shares over time",
        x_label="step",
        y_label="share",
        x=[trace.columns[int(group[0])].step for group in groups],
        series=series,
        format="share",
    )
    return Panel(
        name="mixture",
        title="Mixture",
        text="The share of each source in the steps, over all ranks"
        + (", beside the share that its weight asks for." if target else ".")
        + _left_out(len(trace.sources) - len(listed)),
        charts=[over_time, _altogether(names, listed, counts, wanted)],
    )


def _left_out(num: int) -> str:
    return f" The {num} sources that come least often are left out." if num else ""


def _altogether(
    names: list[str], listed: list[int], counts: np.ndarray, wanted: np.ndarray | None
) -> Bars:
    total = counts.sum(axis=0) / max(1, int(counts.sum()))
    targets: list[float | None] = []
    if wanted is not None:
        # Groups of steps differ in their number of samples.
        sizes = counts.sum(axis=1)
        mean = (wanted * sizes[:, None]).sum(axis=0) / max(1, int(sizes.sum()))
        targets = [float(mean[number]) for number in listed]
    return Bars(
        title="Altogether",
        note="The tick is the share that was wanted." if targets else "",
        names=names,
        series=[Series(name="share", values=[float(total[number]) for number in listed])],
        targets=targets,
        format="share",
    )


def _counts(trace: Trace, places: list[int]) -> list[int]:
    ids = np.concatenate([trace.ids_of(place) for place in places])
    known = ids[(ids >= 0) & (ids < trace.num_samples)]
    counts: list[int] = np.bincount(trace.sources_of(known), minlength=len(trace.sources)).tolist()
    return counts


def _wanted(trace: Trace, group: np.ndarray, target: Target) -> Sequence[float]:
    """Return the mean share that was wanted in a group of columns."""
    found = []
    for place in group.tolist():
        column = trace.columns[place]
        found.append(target(column.epoch, _position(trace, column.epoch, column.step)))
    mean: list[float] = np.mean(found, axis=0).tolist()
    return mean


def _position(trace: Trace, epoch: int, step: int) -> int:
    own = [point for point in trace.coverage if point.epoch == epoch]
    steps = [point.step for point in own]
    place = int(np.interp(step, steps, [point.num_consumed for point in own]))
    return min(place, max(0, trace.num_positions - 1))
