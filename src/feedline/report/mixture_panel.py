"""The panel that shows in which proportions sources come, beside what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from feedline.plan import Mixture, Phase
from feedline.plan.apportion import shares_of
from feedline.report.charts import Bars, Lines, Panel, Series
from feedline.report.trace import Trace
from feedline.runs.mixture_counts import phases_of

_MOST_BINS, _MOST_SOURCES = 60, 6

#: What share each source should have at a position of an epoch.
Target = Callable[[int, int], Sequence[float]]


def target_of_mixture(mixture: Mixture) -> Target:
    """Return the shares that the weights and phases of a mixture ask for."""

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
        target: What was wanted.
        draws: How often each source comes altogether, where that is known.
    """
    groups = trace.groups(_MOST_BINS)
    if len(trace.sources) < 2 or not groups:
        return None
    ids = [np.concatenate([trace.ids_of(place) for place in group]) for group in groups]
    found = [trace.sources_of(trace.known(own)) for own in ids]
    if draws is None:
        draws = np.bincount(np.concatenate(found), minlength=len(trace.sources)).tolist()
    listed = sorted(range(len(draws)), key=lambda number: -draws[number])[:_MOST_SOURCES]
    names = [trace.sources[number].name for number in listed]
    sizes = np.array([len(own) for own in found])
    counts = np.array([[int((own == number).sum()) for number in listed] for own in found])
    shares = counts / np.maximum(1, sizes)[:, None]
    series = [Series(n, v) for n, v in zip(names, shares.T.tolist(), strict=True)]
    targets: list[float | None] = []
    if target is not None:
        wanted = np.array([_wanted(trace, group, target, listed) for group in groups])
        series += [
            Series(f"{name}, wanted", values, style="dashed")
            for name, values in zip(names, wanted.T.tolist(), strict=True)
        ]
        # Groups of steps differ in their number of samples.
        targets = ((wanted * sizes[:, None]).sum(axis=0) / max(1, int(sizes.sum()))).tolist()
    over_time = Lines(
        title="Shares over time",
        x_label="step",
        y_label="share",
        x=[trace.columns[group[0]].step for group in groups],
        series=series,
        format="share",
    )
    total = max(1, sum(draws))
    altogether = Bars(
        title="Altogether",
        note="The tick is the share that was wanted." if targets else "",
        names=names,
        series=[Series("share", [draws[number] / total for number in listed])],
        targets=targets,
        format="share",
    )
    where = "" if trace.is_whole else " that are shown above"
    text = f"The share of each source in the steps and ranks{where}"
    text += ", beside the share that its weight asks for." if target else "."
    if num_others := len(trace.sources) - len(listed):
        others = f"{num_others:,} sources that come least often are"
        text += (
            f" The {'source that comes least often is' if num_others == 1 else others} left out."
        )
    return Panel("mixture", "Mixture", text, [over_time, altogether])


def _wanted(
    trace: Trace, group: Sequence[int], target: Target, listed: Sequence[int]
) -> Sequence[float]:
    """Return the mean share that was wanted of some sources in a group of columns."""
    found = []
    for place in group:
        column = trace.columns[place]
        shares = target(column.epoch, _position(trace, column.epoch, column.step))
        found.append([shares[number] for number in listed])
    mean: list[float] = np.mean(found, axis=0).tolist()
    return mean


def _position(trace: Trace, epoch: int, step: int) -> int:
    own = [point for point in trace.coverage if point.epoch == epoch]
    if not own:
        return 0
    steps = [point.step for point in own]
    place = int(np.interp(step, steps, [point.num_consumed for point in own]))
    return min(place, max(0, trace.num_positions - 1))
