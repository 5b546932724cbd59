"""The trace of a training's logs: what its ranks really got, and how long they waited for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

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
from feedline.runs.audit_runs import Run
from feedline.runs.log_entries import LoggedBatch
from feedline.runs.run_config_data import SourceInfo
from feedline.runs.words import shortened

_MOST_IDS = 400_000
_MOST_POINTS, _MOST_EPOCHS, _MOST_WAITS = 2000, 500, 200
_MOST_SAMPLES = 2**27
_NEVER = np.iinfo(np.int64).max

Numbers = NDArray[np.int64]


@dataclass
class _CellParts:
    """The batches of one rank in one step, of which at most `most_ids` samples are kept."""

    most_ids: int
    num_real: int = 0
    num_padded: int = 0
    num_batches: int = 0
    wait: float = 0.0
    _ids: list[Numbers] = field(default_factory=list)
    _num_kept: int = 0

    def add(self, batch: LoggedBatch) -> None:
        """Take note of a batch."""
        real = batch.real_ids
        # A copy, for a view would keep the whole record in memory.
        kept = real[: self.most_ids - self._num_kept].copy()
        if len(kept):
            self._ids.append(kept)
            self._num_kept += len(kept)
        self.num_real += len(real)
        self.num_padded += len(batch.ids) - len(real)
        self.num_batches += 1
        self.wait += batch.wait

    @property
    def cell(self) -> Cell:
        """All of it."""
        return Cell(
            ids=np.concatenate([np.empty(0, dtype=np.int64), *self._ids]),
            num_real=self.num_real,
            num_padded=self.num_padded,
            num_batches=self.num_batches,
            wait=self.wait if math.isfinite(self.wait) else None,
        )


@dataclass
class Waits:
    """Seconds that ranks waited for data in `[steps[i], steps[i + 1])`: all of them, and the
    longest. Batches whose wait is not a number are left out."""

    steps: Numbers
    total: NDArray[np.float64]
    longest: NDArray[np.float64]
    num_batches: Numbers

    @classmethod
    def over(cls, first: int, end: int) -> Waits:
        """Return waits of zero seconds in steps `[first, end)`, at most a few hundred of them."""
        width = max(1, -(-(end - first) // _MOST_WAITS))
        starts = np.array(range(first, end, width), dtype=np.int64)
        return cls(starts, np.zeros(len(starts)), np.zeros(len(starts)), np.zeros_like(starts))

    def add(self, batch: LoggedBatch) -> None:
        """Count a batch."""
        if not math.isfinite(batch.wait):
            return
        place = int(np.searchsorted(self.steps, batch.step, side="right")) - 1
        self.total[place] += batch.wait
        self.longest[place] = max(self.longest[place], batch.wait)
        self.num_batches[place] += 1


@dataclass(frozen=True)
class Received:
    """What the logs hold: the trace, the waits, and how many samples count or were thrown away.

    Padding is not among these samples.
    """

    trace: Trace
    waits: Waits
    num_counted: int
    num_discarded: int


class _Reading:
    """Gathers what a report needs of the logs, which are read once for each epoch."""

    def __init__(
        self, runs: list[Run], num_samples: int, places: list[dict[int, int]], ranks: frozenset[int]
    ) -> None:
        self._runs = runs
        self._num_samples = num_samples
        self._places = places
        self._ranks = ranks
        num_cells = len(ranks) * sum(map(len, places))
        self._most_ids = max(16, _MOST_IDS // max(1, num_cells))
        self._parts: dict[tuple[int, int], _CellParts] = {}
        steps = [run.counted(rank)[:, 1] for run in runs for rank in run.ranks]
        counted = [own for own in steps if len(own)]
        self.waits = Waits.over(
            min(int(own.min()) for own in counted), max(int(own.max()) for own in counted) + 1
        )
        self.coverage: list[Covered] = []
        self.num_counted = self.num_discarded = 0

    def read(self, epoch: int, num_points: int) -> Iterator[int]:
        """Read what all ranks got in an epoch, and yield the number of batches now and then.

        What was consumed before its steps is added to `coverage`, as so many points.
        """
        num_real: dict[int, int] = {}
        is_small = self._num_samples <= _MOST_SAMPLES
        first_step = np.full(self._num_samples if is_small and num_points else 0, _NEVER)
        for run, places in zip(self._runs, self._places, strict=True):
            for rank, part in run.ranks.items():
                num_batches = 0
                for batch in part.batches(epoch, float("inf")):
                    num_batches += 1
                    if rank in self._ranks and batch.step in places:
                        fresh = _CellParts(self._most_ids)
                        self._parts.setdefault((places[batch.step], rank), fresh).add(batch)
                    ids = batch.real_ids
                    if batch.step >= run.limit:
                        self.num_discarded += len(ids)
                        continue
                    self.num_counted += len(ids)
                    self.waits.add(batch)
                    num_real[batch.step] = num_real.get(batch.step, 0) + len(ids)
                    if len(first_step):
                        known = ids[(ids >= 0) & (ids < len(first_step))]
                        first_step[known] = np.minimum(first_step[known], batch.step)
                yield num_batches
        if num_real and num_points:
            found = first_step if is_small else None
            self.coverage += _covered(epoch, num_real, found, num_points)

    @property
    def cells(self) -> dict[tuple[int, int], Cell]:
        """What was gathered of each column and rank."""
        return {place: parts.cell for place, parts in self._parts.items()}


def _covered(
    epoch: int, num_real: dict[int, int], first_step: Numbers | None, num_points: int
) -> Iterator[Covered]:
    """Yield what was consumed before some of the steps, and at the end."""
    steps = sorted(num_real)
    consumed = np.concatenate([[0], np.cumsum([num_real[step] for step in steps])]).tolist()
    different: list[int | None] = [None] * len(consumed)
    if first_step is not None:
        seen = np.sort(first_step[first_step < _NEVER])
        different = [*np.searchsorted(seen, np.array(steps, dtype=np.int64)).tolist(), len(seen)]
    bounds = [*steps, steps[-1] + 1]
    for place in spread(0, len(bounds), num_points):
        yield Covered(epoch, bounds[place], consumed[place], different[place])


def trace_of_runs(
    runs: list[Run],
    sources: Sequence[SourceInfo],
    num_positions: int,
    progress: Callable[[int], object] = lambda _: None,
) -> Received:
    """Return what the ranks of all runs got, in the order in which the runs began.

    Args:
        runs: The runs, of which each has batches, and some have any that count.
        sources: The samples.
        num_positions: The length of an epoch.
        progress: Is told the number of batches that were read since it was told last.
    """
    steps = [_steps_of(run) for run in runs]
    shares = share_columns([len(listed) for listed in steps])
    ranks = spread_ranks(run.world_size for run in runs)
    columns: list[Column] = []
    places: list[dict[int, int]] = []
    for number, (listed, share) in enumerate(zip(steps, shares, strict=True)):
        chosen = listed[spread(0, len(listed), share)].tolist()
        places.append({step: place for place, (_, step) in enumerate(chosen, len(columns))})
        columns += [Column(number, epoch, step) for epoch, step in chosen]
    num_samples = sum(source.num_samples for source in sources)
    reading = _Reading(runs, num_samples, places, frozenset(ranks))
    epochs = sorted({epoch for run in runs for part in run.ranks.values() for epoch in part.spans})
    shown = {epochs[place] for place in spread(0, len(epochs), _MOST_EPOCHS)}
    num_points = max(3, min(200, _MOST_POINTS // len(shown)))
    for epoch in epochs:
        for num_batches in reading.read(epoch, num_points if epoch in shown else 0):
            progress(num_batches)
    trace = Trace(
        sources=tuple(sources),
        stretches=tuple(map(_stretch_of, runs)),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells=reading.cells,
        coverage=tuple(reading.coverage),
        num_positions=num_positions,
        is_whole=len(columns) == sum(map(len, steps))
        and len(ranks) == max(run.world_size for run in runs)
        and all(len(run.ranks) == run.world_size for run in runs),
        num_epochs=len(epochs),
    )
    return Received(trace, reading.waits, reading.num_counted, reading.num_discarded)


def _stretch_of(run: Run) -> Stretch:
    tables = [part.table[:, 1] for part in run.ranks.values() if part.numbers]
    first, end = min(int(t.min()) for t in tables), max(int(t.max()) for t in tables) + 1
    counted_end = int(max(first, min(run.limit, end)))
    return Stretch(shortened(run.name), run.world_size, first, counted_end, end)


def _steps_of(run: Run) -> Numbers:
    """Return epoch and step of everything that some rank of a run did, in the order of the steps.

    A step may reach over the end of an epoch. It belongs to the one that it begins in.
    """
    found = np.empty((0, 2), dtype=np.int64)
    for part in run.ranks.values():
        own = _by_step(part.table[:, :2])
        # All ranks do the same, unless something went wrong.
        if len(own) and not np.array_equal(own, found):
            found = _by_step(np.concatenate([found, own]))
    return found


def _by_step(rows: Numbers) -> Numbers:
    """Return the lowest epoch of each step, in the order of the steps."""
    ordered = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:, 1] != ordered[:-1, 1]
    return ordered[is_first]
