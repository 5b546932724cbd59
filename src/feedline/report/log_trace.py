"""The trace of a training's logs: what its ranks really got, and how long they waited for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from feedline.report.trace import (
    Cell,
    Column,
    Covered,
    Stretch,
    Trace,
    share_columns,
    spread,
    spread_ranks,
)
from feedline.runs.audit_counts import Data
from feedline.runs.audit_runs import Run
from feedline.runs.log_entries import LoggedBatch
from feedline.runs.run_config_parts import SourceInfo

__all__ = ["Waits", "trace_of_runs"]

_MOST_IDS = 400_000
_MOST_POINTS = 200
_MOST_SAMPLES = 2**27

Numbers = NDArray[np.int64]


@dataclass
class Waits:
    """Seconds that ranks waited for data in `[steps[i], steps[i + 1])`: all of them, and the
    longest."""

    steps: Numbers
    total: NDArray[np.float64]
    longest: NDArray[np.float64]
    num_batches: Numbers

    @classmethod
    def over(cls, steps: range) -> Waits:
        """Return waits of zero seconds, at most a few hundred of them."""
        width = max(1, -(-len(steps) // _MOST_POINTS))
        starts = np.arange(steps.start, steps.stop, width, dtype=np.int64)
        return cls(starts, np.zeros(len(starts)), np.zeros(len(starts)), np.zeros_like(starts))

    def add(self, batch: LoggedBatch) -> None:
        """Count a batch."""
        place = int(np.searchsorted(self.steps, batch.step, side="right")) - 1
        self.total[place] += batch.wait
        self.longest[place] = max(self.longest[place], batch.wait)
        self.num_batches[place] += 1


class _Reading:
    """Gathers what a report needs of the logs, which are read once for each epoch."""

    def __init__(
        self, runs: list[Run], num_samples: int, places: list[dict[int, int]], ranks: frozenset[int]
    ) -> None:
        self._runs = runs
        self._num_samples = num_samples
        self._places = places
        self._ranks = ranks
        ends = [
            int(run.counted(rank)[:, 1].max(initial=0)) + 1 for run in runs for rank in run.ranks
        ]
        self.waits = Waits.over(range(max(ends)))
        self.cells: dict[tuple[int, int], list[LoggedBatch]] = {}
        self.coverage: list[Covered] = []

    def read(self, epoch: int) -> Iterator[int]:
        """Read what all ranks got in an epoch, and yield the number of batches now and then."""
        num_real: dict[int, int] = {}
        size = self._num_samples if self._num_samples <= _MOST_SAMPLES else 0
        first_step = np.full(size, np.iinfo(np.int64).max)
        for run, places in zip(self._runs, self._places, strict=True):
            for rank, part in run.ranks.items():
                num_batches = 0
                for batch in part.batches(epoch, float("inf")):
                    num_batches += 1
                    if rank in self._ranks and batch.step in places:
                        self.cells.setdefault((places[batch.step], rank), []).append(batch)
                    if batch.step < run.limit:
                        ids = batch.real_ids
                        num_real[batch.step] = num_real.get(batch.step, 0) + len(ids)
                        self.waits.add(batch)
                        if size:
                            known = ids[(ids >= 0) & (ids < size)]
                            first_step[known] = np.minimum(first_step[known], batch.step)
                yield num_batches
        self.coverage += _covered(epoch, num_real, first_step)


def _covered(epoch: int, num_real: dict[int, int], first_step: Numbers) -> Iterator[Covered]:
    """Yield what was consumed before each step, and at the end."""
    if not num_real:
        return
    steps = np.array(sorted(num_real), dtype=np.int64)
    consumed = np.concatenate([[0], np.cumsum([num_real[step] for step in steps.tolist()])])
    ordered = np.sort(first_step)
    bounds = np.concatenate([steps, steps[-1:] + 1])
    different = np.searchsorted(ordered, bounds)
    for place in spread(0, len(bounds), _MOST_POINTS):
        found = int(different[place]) if len(first_step) else None
        yield Covered(epoch, int(bounds[place]), int(consumed[place]), found)


def trace_of_runs(
    runs: list[Run],
    data: Data,
    num_positions: int,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Trace, Waits]:
    """Return what the ranks of all runs got, in the order in which the runs began, and their waits.

    Args:
        runs: The runs, of which each has batches.
        data: The samples.
        num_positions: The length of an epoch.
        progress: Is told the number of batches that were read since it was told last.
    """
    steps = [_steps_of(run) for run in runs]
    shares = share_columns([len(listed) for listed in steps])
    ranks = spread_ranks(run.world_size for run in runs)
    columns: list[Column] = []
    places: list[dict[int, int]] = []
    for number, (listed, share) in enumerate(zip(steps, shares, strict=True)):
        chosen = [listed[place] for place in spread(0, len(listed), share)]
        places.append({step: place for place, (_, step) in enumerate(chosen, len(columns))})
        columns += [Column(number, epoch, step) for epoch, step in chosen]
    reading = _Reading(runs, data.num_samples, places, frozenset(ranks))
    for epoch in sorted({epoch for listed in steps for epoch, _ in listed}):
        for num_batches in reading.read(epoch):
            progress(num_batches)
    most = max(16, _MOST_IDS // max(1, len(columns) * len(ranks)))
    trace = Trace(
        sources=tuple(_sources_of(data)),
        stretches=tuple(map(_stretch_of, runs)),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells={place: _cell(batches, most) for place, batches in reading.cells.items()},
        coverage=tuple(reading.coverage),
        num_positions=num_positions,
        is_whole=len(columns) == sum(map(len, steps))
        and len(ranks) == max(run.world_size for run in runs),
    )
    return trace, reading.waits


def _sources_of(data: Data) -> Iterator[SourceInfo]:
    firsts = [0, *accumulate(data.sources.values())]
    for (name, size), first in zip(data.sources.items(), firsts, strict=False):
        yield SourceInfo(name or "data", size, first)


def _stretch_of(run: Run) -> Stretch:
    tables = [part.table[:, 1] for part in run.ranks.values() if part.numbers]
    first, end = min(int(t.min()) for t in tables), max(int(t.max()) for t in tables) + 1
    return Stretch(run.name, run.world_size, first, int(max(first, min(run.limit, end))), end)


def _steps_of(run: Run) -> list[tuple[int, int]]:
    """Return epoch and step of everything that some rank of a run did, in order."""
    tables = [part.table[:, :2] for part in run.ranks.values() if part.numbers]
    rows: list[list[int]] = np.unique(np.concatenate(tables), axis=0).tolist()
    # A step may reach over the end of an epoch. It belongs to the one that it begins in.
    by_step: dict[int, int] = {}
    for epoch, step in rows:
        by_step.setdefault(step, epoch)
    return [(epoch, step) for step, epoch in sorted(by_step.items())]


def _cell(batches: list[LoggedBatch], most: int) -> Cell:
    ids = np.concatenate([batch.real_ids for batch in batches])
    return Cell(
        ids=ids[:most],
        num_real=len(ids),
        num_padded=sum(len(batch.ids) for batch in batches) - len(ids),
        num_batches=len(batches),
        wait=sum(batch.wait for batch in batches),
    )
