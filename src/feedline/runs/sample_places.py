"""The samples of a step, and the steps of a sample, computed without a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import Cursor, PastSegment, Replay
from feedline.runs.run_config import RunConfig
from feedline.words import one_line, several

_MOST_EPOCHS = 100


@dataclass(frozen=True, kw_only=True)
class PlacedSample:
    """One sample of a step: its index, its origin, and its place in the step."""

    batch: int
    slot: int
    index: int
    is_real: bool
    source: str
    source_index: int
    bucket: str | None = None
    chunk: int | None = None
    row: int | None = None
    file: str | None = None


@one_line
@dataclass(frozen=True, kw_only=True)
class StepOfRank:
    """What one rank consumes in one step; `step` and batches count from the epoch's start."""

    epoch: int
    step: int
    rank: int
    ranks: int
    num_steps: int
    samples: tuple[PlacedSample, ...]


@one_line
@dataclass(frozen=True, kw_only=True)
class TimeOfSample:
    """One time that a sample is consumed; `step` and `batch` count from the epoch's start."""

    epoch: int
    step: int
    batch: int
    rank: int
    ranks: int
    slot: int
    is_real: bool


def samples_of_step(
    config: RunConfig,
    *,
    step: int,
    rank: int,
    epoch: int | None = None,
    cursor: Cursor | None = None,
) -> StepOfRank:
    """Return what `rank` consumes in a step, which is `grad_acc_steps` batches.

    With `epoch` or `cursor`, steps count from the start of the epoch, otherwise from the start of
    the run. A cursor includes the resizes of its epoch.

    Args:
        config: What the run consumes, and on how many ranks.
        step: The number of the step.
        rank: The rank.
        epoch: The epoch that steps count from, if not from the start of the run.
        cursor: A cursor of the run, if it was resized.

    Examples:
        >>> config = RunConfig.from_dict({"batch_size": 2, "data": {"samples": 100}, "epochs": 2})
        >>> here = samples_of_step(config, step=60, rank=0)
        >>> here.epoch, here.step, len(here.samples)
        (1, 10, 2)
    """
    if cursor is not None:
        epoch = cursor.epoch
    if epoch is None:
        epoch, step = config.find_step(step)
    replay = _replay(config, epoch, cursor)
    num_steps = -(-replay.num_batches // config.grad_acc_steps)
    step = check_integer(
        "step", step, 0, num_steps - 1, remedy=f"epoch {epoch} has {several(num_steps, 'step')}"
    )
    first = step * config.grad_acc_steps
    numbers = range(first, min(first + config.grad_acc_steps, replay.num_batches))
    ranks = replay.world_size_at(first)
    remedy = f"step {step} has {several(ranks, 'rank')}"
    rank = check_integer("rank", rank, 0, ranks - 1, remedy=remedy)
    samples = []
    for number in numbers:
        batch = replay.batch(rank=rank, number=number)
        bucket = None if batch.bucket is None else str(config.plan.buckets[batch.bucket].key)
        entries = zip(batch.indices.tolist(), batch.is_real.tolist(), strict=True)
        for slot, (index, is_real) in enumerate(entries):
            known = {"batch": number, "slot": slot, "index": index, "is_real": is_real}
            samples.append(PlacedSample(**known, bucket=bucket, **place_of(config, index)))
    return StepOfRank(
        epoch=epoch,
        step=step,
        rank=rank,
        ranks=ranks,
        num_steps=num_steps,
        samples=tuple(samples),
    )


def times_of_sample(
    config: RunConfig, *, index: int, epoch: int | None = None, cursor: Cursor | None = None
) -> list[TimeOfSample]:
    """Return every time that a sample is consumed, in one epoch or in all of the run.

    Args:
        config: What the run consumes, and on how many ranks.
        index: The sample.
        epoch: The number of the epoch; by default all of them.
        cursor: A cursor of the run, if it was resized.

    Examples:
        >>> config = RunConfig.from_dict({"batch_size": 2, "data": {"samples": 100}, "epochs": 2})
        >>> [time.epoch for time in times_of_sample(config, index=7)]
        [0, 1]
    """
    if cursor is not None:
        epoch = cursor.epoch
    if epoch is None and config.epochs > _MOST_EPOCHS:
        raise InvalidValueError(
            f"epochs={config.epochs} must be at most {_MOST_EPOCHS} to search all of them; pass "
            "one epoch"
        )
    found = []
    for number in range(config.epochs) if epoch is None else [epoch]:
        replay = _replay(config, number, cursor)
        for _, batch, rank, slot, is_real in replay.find(index):
            time = TimeOfSample(
                epoch=number,
                step=batch // config.grad_acc_steps,
                batch=batch,
                rank=rank,
                ranks=replay.world_size_at(batch),
                slot=slot,
                is_real=is_real,
            )
            found.append(time)
    return found


def _replay(config: RunConfig, epoch: int, cursor: Cursor | None) -> Replay:
    ranks, batch_size = config.ranks, config.batch_size
    if cursor is not None:
        counted = replace(cursor, history=_in_batches(config, cursor.history))
        plan = config.plan_for(counted)
        return Replay.of(plan, counted, world_size=ranks, batch_size=batch_size)
    # A fresh epoch without any batch is an error that says what to do.
    config.plan.segment(epoch=epoch, world_size=ranks, batch_size=batch_size)
    return Replay(plan=config.plan, epoch=epoch, world_size=ranks, batch_size=batch_size)


def _in_batches(config: RunConfig, history: tuple[PastSegment, ...]) -> tuple[PastSegment, ...]:
    """Return a history of single samples, as torch samplers count them, in the run's batches.

    If a rank's samples do not depend on the batch size, both histories mean the same.
    """
    size = config.batch_size
    if not config.plan.ignores_batch_size:
        return history
    return tuple(_in_batches_of(past, size) if past.batch_size == 1 else past for past in history)


def _in_batches_of(past: PastSegment, size: int) -> PastSegment:
    """Return an entry of single samples in batches, or as it is if they do not make any."""
    edges = [past.num_batches, *(edge for span in past.skipped for edge in span)]
    if any(edge % size for edge in edges):
        return past
    skipped = tuple((start // size, stop // size) for start, stop in past.skipped)
    return PastSegment(past.world_size, size, past.num_batches // size, skipped)


def place_of(config: RunConfig, index: int) -> dict[str, Any]:
    """Return the origin of a sample: its source and index, its chunk and row, and its file; None
    where there is none."""
    source, source_index = config.source_of(index)
    chunk = row = file = None
    if config.chunks is not None:
        chunk, row = (int(found[0]) for found in config.chunks.rows_of(np.array([index])))
        if config.store is not None:
            file, _, _ = config.store.describe_row(chunk, row).rpartition(", row ")
    place = {"source": source.name, "source_index": source_index}
    return {**place, "chunk": chunk, "row": row, "file": file}
