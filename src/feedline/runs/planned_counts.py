"""How often a plan has each sample in an epoch, with the resizes and skips of the actual runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedline.errors import InvalidValueError
from feedline.plan import PastSegment, Plan, Replay, skipped_samples
from feedline.runs.audit_runs import Run
from feedline.runs.sample_counts import Counts
from feedline.words import several

_MOST_RANKS = 2**20


def planned_counts(plan: Plan, runs: Sequence[Run], epoch: int) -> Counts:
    """Return how often each sample is planned; those that are skipped count as well.

    Args:
        plan: The plan of the training.
        runs: Its runs.
        epoch: The number of the epoch.
    """
    past = _history(plan, runs, epoch)
    counts = np.zeros(plan.num_indices, dtype=np.int32)
    if not past:
        return counts
    *before, last = past
    replay = Replay(
        plan=plan,
        epoch=epoch,
        world_size=last.world_size,
        batch_size=last.batch_size,
        history=before,
        skipped=last.skipped,
    )
    ends = [*(entry.num_batches for entry in before), None]
    for segment, end in zip(replay.segments, ends, strict=True):
        stop = segment.num_batches if end is None else end
        for rank in range(segment.world_size):
            for start in range(0, stop, 1024):
                block = segment.block(rank, start, min(start + 1024, stop))
                np.add.at(counts, block.real_indices, 1)
    for indices in skipped_samples(plan, epoch, past):
        np.add.at(counts, indices, 1)
    return counts


def _history(plan: Plan, runs: Sequence[Run], epoch: int) -> list[PastSegment]:
    """Return what all runs together had of an epoch."""
    past: list[PastSegment] = []
    for run in runs:
        count, told = run.num_batches(epoch), run.skipped_batches(epoch) if run.counts else []
        if told:
            past = list(told[0].history)
            _check_told(past, run)
        if not count:
            continue
        _check_sizes(plan, run)
        entry = run.entry_size
        own = PastSegment(run.world_size, entry, count * run.batch_size // entry)
        if told and past[-1][:2] == own[:2]:
            # It resumed on the same ranks, so that its skips are numbered with what was before.
            own = past[-1]._replace(num_batches=past[-1].num_batches + own.num_batches)
            past.pop()
        past.append(own)
    return past


def _check_told(past: Sequence[PastSegment], run: Run) -> None:
    """Raise if a log tells of very many ranks, because each of them is counted."""
    most = max(entry.world_size for entry in past)
    if most > _MOST_RANKS:
        raise InvalidValueError(
            f"{run.first_rank.path}: world_size={most} must be at most {_MOST_RANKS} in event "
            "'skipped_batches'; remove this log from the audit"
        )


def _check_sizes(plan: Plan, run: Run) -> None:
    """Raise if a header has sizes that what was logged does not bear out; a plan would count to
    them."""
    most = len(run.ranks) * 16 + 2**16
    if run.world_size > most:
        raise InvalidValueError(
            f"{run.first_rank.path}: world_size={run.world_size} must be at most {most} with "
            f"{several(len(run.ranks), 'log')}; pass the logs of all ranks"
        )
    most = 2**22 + 64 * plan.num_indices
    if plan.has_equal_batches and run.batch_size > most:
        raise InvalidValueError(
            f"{run.first_rank.path}: batch_size={run.batch_size} must be at most {most} for "
            f"{several(plan.num_indices, 'sample')}; pass the config of this training"
        )
