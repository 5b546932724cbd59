"""The panel that shows in which proportions sources come, beside what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Mixture, Phase
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
    found = [_sources_in(trace, group) for group in groups]
    if draws is None:
        draws = np.bincount(np.concatenate(found), minlength=len(trace.sources)).tolist()
    listed = sorted(range(len(draws)), key=lambda number: -draws[number])[:_MOST_SOURCES]
    shown = _Shares(
        names=[trace.sources[number].name for number in listed],
        counts=np.array([[int((own == number).sum()) for number in listed] for own in found]),
        sizes=np.array([len(own) for own in found]),
        wanted=None
        if target is None
        else np.array([_wanted(trace, group, target, listed) for group in groups]),
    )
    where = "" if trace.is_whole else " that are shown above"
    return Panel(
        name="mixture",
        title="Mixture",
        text=f"The share of each source in the steps and ranks{where}"
        + (", beside the share that its weight asks for." if target else ".")
        + _left_out(len(trace.sources) - len(listed)),
        charts=[
            shown.over_time([trace.columns[group[0]].step for group in groups]),
            shown.altogether([draws[number] for number in listed], max(1, sum(draws))),
        ],
    )


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """How often sources come in groups of steps (rows), out of how many samples, and what share of
    these was wanted."""

    names: list[str]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    wanted: NDArray[np.float64] | None

    def over_time(self, steps: list[int]) -> Lines:
        """Return the share of each source in each group."""
        shares = self.counts / np.maximum(1, self.sizes)[:, None]
        series = [
            Series(name=name, values=shares[:, number].tolist())
            for number, name in enumerate(self.names)
        ]
        if self.wanted is not None:
            series += [
                Series(
                    name=f"{name}, wanted", values=self.wanted[:, number].tolist(), style="dashed"
                )
                for number, name in enumerate(self.names)
            ]
        return Lines(
            title="Shares over time",
            x_label="step",
            y_label="share",
            x=steps,
            series=series,
            format="share",
        )

    def altogether(self, draws: Sequence[int], num_drawn: int) -> Bars:
        """Return how often each source comes out of all that is drawn."""
        total = max(1, int(self.sizes.sum()))
        targets: list[float | None] = []
        if self.wanted is not None:
            # Groups of steps differ in their number of samples.
            targets = ((self.wanted * self.sizes[:, None]).sum(axis=0) / total).tolist()
        return Bars(
            title="Altogether",
            note="The tick is the share that was wanted." if targets else "",
            names=self.names,
            series=[Series(name="share", values=[count / num_drawn for count in draws])],
            targets=targets,
            format="share",
        )


def _left_out(num: int) -> str:
    sources = "source that comes" if num == 1 else f"{num:,} sources that come"
    return f" The {sources} least often {'is' if num == 1 else 'are'} left out." if num else ""


def _sources_in(trace: Trace, group: Sequence[int]) -> NDArray[np.int64]:
    """Return the source of each sample in a group of columns."""
    ids = np.concatenate([trace.ids_of(place) for place in group])
    return trace.sources_of(trace.known(ids))


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
