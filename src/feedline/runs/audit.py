"""An audit of a training: whether every sample was received exactly once in every epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    CursorError,
    EmptyEpochError,
    InvalidValueError,
    MissingDataError,
    TailError,
)
from feedline.plan import Plan
from feedline.runs.audit_counts import (
    Counts,
    count_epoch,
    data_of,
    num_dropped,
    planned_counts,
)
from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit, SourceAudit
from feedline.runs.audit_runs import Run, runs_of
from feedline.runs.consumption_log import read_log_header
from feedline.runs.log_frames import is_log
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo

_MOST_LISTED = 20


def audit_logs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    num_samples: int | None = None,
    plan: Plan | None = None,
) -> AuditResult:
    """Compare what all ranks of all runs of one training logged with what they should have got.

    A run counts up to the checkpoint that the next one loaded. Memory does not grow with the logs,
    beside a few numbers for each batch: 8 bytes for each sample of the data.

    Args:
        paths: The logs, or folders of logs.
        num_samples: The number of samples, if the logs do not say it.
        plan: The plan of the run, where samples may come more than once in an epoch, as in a
            mixture. Without it, each should come once, less what the tail policy drops.

    Examples:
        >>> import tempfile
        >>> from feedline.runs import ConsumptionLog
        >>> folder = tempfile.TemporaryDirectory()
        >>> for rank, ids in enumerate([[3, 0], [1, 1]]):
        ...     path = f"{folder.name}/rank{rank}.log"
        ...     with ConsumptionLog(path, rank=rank, world_size=2) as log:
        ...         log.record(epoch=0, step=0, batch=0, ids=ids)
        ...         log.event("epoch_end", epoch=0, step=0)
        >>> epoch = audit_logs([folder.name], num_samples=4).epochs[0]
        >>> epoch.lost, epoch.repeated
        ((2,), (1,))
        >>> folder.cleanup()
    """
    found = find_logs(paths)
    runs = runs_of(found)
    if plan is not None and num_samples is None:
        num_samples = plan.num_indices
    sources = data_of(runs, num_samples)
    tables = [run.counted(rank)[:, 0] for run in runs for rank in run.ranks]
    epochs = np.unique(np.concatenate(tables)).tolist()
    if not epochs:
        raise InvalidValueError(
            f"{len(found)} logs hold 0 batches that count but must hold at least 1; give the logs "
            "of all runs"
        )
    return AuditResult(
        num_logs=len(found),
        runs=tuple(_audit_run(run) for run in runs),
        epochs=tuple(
            _audit_epoch(runs, epoch, sources, plan, is_followed=epoch != epochs[-1])
            for epoch in epochs
        ),
    )


def audit_config(paths: Iterable[str | os.PathLike[str]], config: RunConfig) -> AuditResult:
    """Audit logs against the plan of a config, or raise if it is the config of another training."""
    found = find_logs(paths)
    mine = [source.num_samples for source in config.sources]
    for path in found:
        info = read_log_header(path).info
        told = info.get("sources")
        others = list(told.values()) if isinstance(told, Mapping) else [info.get("num_samples")]
        is_same = others == mine
        if len(others) != len(mine):
            is_same = sum(mine) == sum(size for size in others if isinstance(size, int))
        if others != [None] and not is_same:
            raise InvalidValueError(
                f"the config's data has {_added(mine)} samples but must have {_added(others)}, as "
                f"{path} says; give the config of this training"
            )
        if not config.plan.has_equal_batches and "batch_size" not in info:
            raise InvalidValueError(
                f"{path}: its info has no batch_size, and batches of several sizes do not say it; "
                "write it into the info of each log"
            )
    try:
        return audit_logs(found, plan=config.plan)
    except (CursorError, EmptyEpochError, TailError) as error:
        raise InvalidValueError(
            f"the config's plan does not fit the logs ({error}); give the config of this training"
        ) from None


def _added(sizes: Sequence[object]) -> str:
    return " + ".join(map(str, sizes[:20])) + (" + …" if len(sizes) > 20 else "")


def find_logs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the logs among files and in folders; in folders, other files are passed over."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.is_file() and is_log(file)]
        if not inside:
            raise MissingDataError(f"{path}: holds no log; give the folder that runs log to")
        found += inside
    if not found:
        raise InvalidValueError("paths=[] must name at least one log")
    return list(dict.fromkeys(path.resolve() for path in found))


def _audit_run(run: Run) -> RunAudit:
    kept = {rank: run.counted(rank) for rank in sorted(run.ranks)}
    tables = [part.table for part in run.ranks.values()]
    num_samples = sum(int(table[:, 2].sum()) for table in kept.values())
    num_batches = tuple(len(table) for table in kept.values())
    ends = [int(table[:, 1].max()) + 1 for table in kept.values() if len(table)]
    return RunAudit(
        name=run.name,
        world_size=run.world_size,
        first_step=int(run.first_step) if np.isfinite(run.first_step) else None,
        end_step=max(ends, default=None),
        num_batches=num_batches,
        num_samples=num_samples,
        num_discarded_batches=sum(map(len, tables)) - sum(num_batches),
        num_discarded_samples=sum(int(table[:, 2].sum()) for table in tables) - num_samples,
        missing_ranks=tuple(run.missing_ranks),
        parted_step=run.parted_step,
    )


def _audit_epoch(
    runs: Sequence[Run],
    epoch: int,
    sources: Sequence[SourceInfo],
    plan: Plan | None,
    *,
    is_followed: bool,
) -> EpochAudit:
    num_samples = sum(source.num_samples for source in sources)
    counts = count_epoch(runs, epoch, num_samples)
    expected: Counts | int = 1 if plan is None else planned_counts(plan, runs, epoch)
    is_finished = is_followed or any(_has_end(run, epoch) for run in runs)
    num_expected = _total(expected, num_samples)
    # In place, because there may be very many samples: too few are below zero, too many above.
    balance = counts.seen
    balance -= expected
    num_missing = _num_missing(balance)
    dropped = 0
    if is_finished and plan is None:
        allowed = num_dropped(runs, epoch, num_expected)
        # More than the policy leaves out cannot be told apart: then all of them are listed.
        dropped = num_missing if num_missing <= allowed else 0
    is_lost = is_finished and num_missing > dropped
    return EpochAudit(
        epoch=epoch,
        is_finished=is_finished,
        num_expected=num_expected,
        num_once=_num_once(balance, expected),
        num_to_come=0 if is_finished else num_missing,
        num_dropped=dropped,
        num_padded=counts.num_padded,
        num_lost=num_missing if is_lost else 0,
        lost=_first(balance < 0) if is_lost else (),
        num_repeated=int(np.count_nonzero(balance > 0)),
        repeated=_first(balance > 0),
        num_unknown=counts.num_unknown,
        unknown=counts.unknown,
        sources=tuple(_audit_source(source, balance, expected) for source in sources),
    )


def _audit_source(source: SourceInfo, balance: Counts, expected: Counts | int) -> SourceAudit:
    name, num_samples, first = source
    part = balance[first : first + num_samples]
    wanted = expected if isinstance(expected, int) else expected[first : first + num_samples]
    return SourceAudit(
        name=name,
        first=first,
        num_expected=_total(wanted, num_samples),
        num_once=_num_once(part, wanted),
        num_missing=_num_missing(part),
        num_repeated=int(np.count_nonzero(part > 0)),
    )


def _total(expected: Counts | int, num_samples: int) -> int:
    if isinstance(expected, int):
        return expected * num_samples
    return int(expected.sum(dtype=np.int64))


def _num_once(balance: Counts, expected: Counts | int) -> int:
    """Return how many samples came as often as they should."""
    return int(np.count_nonzero((balance == 0) & (np.asarray(expected) > 0)))


def _num_missing(balance: Counts) -> int:
    return -int(balance[balance < 0].sum(dtype=np.int64))


def _has_end(run: Run, epoch: int) -> bool:
    ends = (part.ends.get(epoch) for part in run.ranks.values())
    return any(step is not None and step < run.limit for step in ends)


def _first(marks: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(marks)[:_MOST_LISTED].tolist())
