"""The trace of a training's logs: what its ranks received."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.report.first_steps import FirstSteps
from feedline.report.trace import Cell, Column, Covered, Stretch, Trace, share_columns, spread_ranks
from feedline.runs.audit_runs import Run, Table
from feedline.runs.log_records import LoggedBatch
from feedline.runs.plan_report import spread
from feedline.runs.run_config_data import SourceInfo
from feedline.runs.words import shortened

_MOST_IDS = 400_000
_MOST_POINTS, _MOST_EPOCHS = 2000, 500
_MOST_SAMPLES = 2**27
_NOTHING = Cell(np.empty(0, dtype=np.int64), 0, num_batches=0, wait=0.0)

Numbers = NDArray[np.int64]


def trace_of_runs(
    runs: list[Run],
    sources: Sequence[SourceInfo],
    num_positions: int,
    progress: Callable[[int], object] = lambda _: None,
) -> Trace:
    """Return what the ranks of all runs received, in the order in which the runs began.

    The logs are read once for each epoch.

    Args:
        runs: The runs, of which each has batches, and some have any that count.
        sources: The samples.
        num_positions: The length of an epoch.
        progress: Called with the number of batches read since the last call.
    """
    steps = [_steps_of(run) for run in runs]
    shares = share_columns([len(listed) for listed in steps])
    ranks = spread_ranks(run.world_size for run in runs)
    columns: list[Column] = []
    places: list[dict[int, int]] = []
    for number, (listed, share) in enumerate(zip(steps, shares, strict=True)):
        chosen = listed[spread(0, len(listed), share)].tolist()
        places.append({step: place for place, (step, _) in enumerate(chosen, len(columns))})
        columns += [Column(number, epoch, step) for step, epoch in chosen]
    most_ids = max(16, _MOST_IDS // max(1, len(ranks) * len(columns)))
    num_samples = sum(source.num_samples for source in sources)
    counted = counted_rows(runs)
    epochs = sorted({epoch for run in runs for part in run.ranks.values() for epoch in part.spans})
    shown = {epochs[place] for place in spread(0, len(epochs), _MOST_EPOCHS)}
    num_points = max(3, min(200, _MOST_POINTS // len(shown)))
    cells: dict[tuple[int, int], Cell] = {}
    coverage: list[Covered] = []
    for epoch in epochs:
        is_traced = epoch in shown and num_samples <= _MOST_SAMPLES
        rows = counted[counted["epoch"] == epoch]
        first_step = FirstSteps(num_samples, int(rows["num_real"].sum())) if is_traced else None
        for run, own in zip(runs, places, strict=True):
            for rank, part in run.ranks.items():
                for batch in part.batches(epoch):
                    if batch.step in own and rank in ranks:
                        key = own[batch.step], rank
                        cells[key] = _with_batch(cells.get(key, _NOTHING), batch, most_ids)
                    if first_step is not None and batch.step < run.limit:
                        ids = batch.real_ids
                        first_step.add(ids[(ids >= 0) & (ids < num_samples)], batch.step)
                progress(int((part.table["epoch"] == epoch).sum()))
        if epoch in shown:
            coverage += _covered(epoch, rows, first_step, num_points)
    return Trace(
        sources=tuple(sources),
        stretches=tuple(map(_stretch_of, runs)),
        columns=tuple(columns),
        ranks=tuple(ranks),
        cells=cells,
        coverage=tuple(coverage),
        num_positions=num_positions,
        is_whole=len(columns) == sum(map(len, steps))
        and len(ranks) == max(run.world_size for run in runs)
        and all(len(run.ranks) == run.world_size for run in runs),
        num_epochs=len(epochs),
    )


def counted_rows(runs: Sequence[Run]) -> Table:
    """Return the rows of all batches that count."""
    return np.concatenate([run.counted(rank) for run in runs for rank in run.ranks])


def _with_batch(cell: Cell, batch: LoggedBatch, most_ids: int) -> Cell:
    """Return a cell with one batch more, of which at most `most_ids` samples are kept."""
    real, wait = batch.real_ids, None
    if cell.wait is not None and math.isfinite(batch.wait):
        wait = cell.wait + batch.wait
    ids = cell.ids
    if len(ids) < most_ids:
        # This copies, for a view would keep the whole record in memory.
        ids = np.concatenate([ids, real[: most_ids - len(ids)]])
    return Cell(
        ids=ids,
        num_real=(cell.num_real or 0) + len(real),
        num_padded=cell.num_padded + len(batch.ids) - len(real),
        num_batches=cell.num_batches + 1,
        wait=wait,
    )


def _covered(
    epoch: int, rows: Table, first_step: FirstSteps | None, num_points: int
) -> Iterator[Covered]:
    """Yield what was consumed before some of the steps, and at the end."""
    if not len(rows):
        return
    steps, places = np.unique(rows["step"], return_inverse=True)
    num_real = np.zeros(len(steps), dtype=np.int64)
    np.add.at(num_real, places, rows["num_real"])
    consumed = [0, *np.cumsum(num_real).tolist()]
    different: list[int | None] = [None] * len(consumed)
    if first_step is not None:
        seen = first_step.sorted()
        different = [*np.searchsorted(seen, steps).tolist(), len(seen)]
    bounds = [*steps.tolist(), int(steps[-1]) + 1]
    for place in spread(0, len(bounds), num_points):
        yield Covered(epoch, bounds[place], consumed[place], different[place])


def _stretch_of(run: Run) -> Stretch:
    tables = [part.table["step"] for part in run.ranks.values() if part.rows]
    first, end = min(int(t.min()) for t in tables), max(int(t.max()) for t in tables) + 1
    counted_end = int(max(first, min(run.limit, end)))
    return Stretch(shortened(run.name), run.world_size, first, counted_end, end)


def _steps_of(run: Run) -> Numbers:
    """Return step and epoch of everything that some rank of a run did, in the order of the steps.

    A step may cross the end of an epoch. It belongs to the epoch in which it begins.
    """
    found = np.empty((0, 2), dtype=np.int64)
    for part in run.ranks.values():
        own = np.stack([part.table["step"], part.table["epoch"]], axis=1)
        # All ranks do the same, unless something went wrong.
        if len(own) and not np.array_equal(own, found):
            ordered = np.concatenate([found, own])
            ordered = ordered[np.lexsort((ordered[:, 1], ordered[:, 0]))]
            found = ordered[np.unique(ordered[:, 0], return_index=True)[1]]
    return found
