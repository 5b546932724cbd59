"""An audit of a training: whether every sample was received exactly once in every epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from feedline.errors import (
    CursorError,
    EmptyEpochError,
    InvalidValueError,
    MissingDataError,
    TailError,
    check_integer,
)
from feedline.plan import Plan
from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit, SourceAudit
from feedline.runs.audit_runs import Run, SkippedBatches, runs_of
from feedline.runs.consumption_log import read_log_header
from feedline.runs.log_records import Ids, LoggedBatch, is_log
from feedline.runs.planned_counts import planned_counts
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo, sources_from
from feedline.runs.sample_counts import Balance, balance_of
from feedline.words import several

_MOST_LISTED = 20
_MOST_SAMPLES = 2**48


def audit_logs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    num_samples: int | None = None,
    plan: Plan | None = None,
) -> AuditResult:
    """Compare the logs of all ranks of all runs of one training with their plan.

    A run counts up to the checkpoint that the next one loaded. Memory: 8 bytes for each sample that
    was logged, and a few numbers for each batch; with a plan, 8 bytes for each sample of the data.

    Args:
        paths: The logs, or folders of logs.
        num_samples: The number of samples, if the logs do not contain it.
        plan: The plan of the run, if samples may come more than once in an epoch, as in a mixture.
            Without it, each sample must come once, except those that the tail policy drops.

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
    tables = [run.counted(rank)["epoch"] for run in runs for rank in run.ranks]
    skipped = [epoch for run in runs if run.counts for epoch in run.epochs_with_skips]
    epochs = np.unique(np.concatenate([*tables, np.array(skipped, np.int64)])).tolist()
    if not epochs:
        raise InvalidValueError(
            f"found 0 batches that count in {several(len(found), 'log')} but need at least 1; pass "
            "the logs of all runs"
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
    """Audit logs against the plan of a config, or raise if the config is for another training."""
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
                f"the config's data has {_added(mine)} samples but must have "
                f"{_added(others)}, as in {path}; pass the config of this training"
            )
        if not config.plan.has_equal_batches and "batch_size" not in info:
            raise InvalidValueError(
                f"{path}: its info has no batch_size, and its batches have several sizes; add "
                "batch_size to the info of each log"
            )
    try:
        return audit_logs(found, plan=config.plan)
    except (CursorError, EmptyEpochError, TailError) as error:
        raise InvalidValueError(
            f"the config's plan does not fit the logs ({error}); pass the config of this training"
        ) from None


def _added(sizes: Sequence[object]) -> str:
    return " + ".join(map(str, sizes[:20])) + (" + …" if len(sizes) > 20 else "")


def find_logs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the logs among files and in folders; in folders, other files are ignored."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.is_file() and is_log(file)]
        if not inside:
            raise MissingDataError(f"{path}: contains no log; pass the folder of log=")
        found += inside
    if not found:
        raise InvalidValueError("paths=[] must name at least one log")
    return list(dict.fromkeys(path.resolve() for path in found))


def data_of(runs: Sequence[Run], num_samples: int | None) -> tuple[SourceInfo, ...]:
    """Return the sources of the data from the logs, or raise if the logs disagree.

    A given number of samples overrides the logs.
    """
    known: dict[Path, list[tuple[str, int]]] = {}
    for part in (part for run in runs for part in run.ranks.values()):
        total, told = (part.header.info.get(name) for name in ("num_samples", "sources"))
        if isinstance(told, Mapping):
            known[part.path] = [
                (name, check_integer(f"sources[{name!r}]", size, 0, _MOST_SAMPLES))
                for name, size in told.items()
            ]
        elif total is not None:
            known[part.path] = [("", check_integer("num_samples", total, 1, _MOST_SAMPLES))]
    first = next(iter(known.values()), None)
    # In the same order too, because indices are counted through all sources.
    odd = [path for path, sizes in known.items() if sizes != first]
    if num_samples is not None:
        num_samples = check_integer("num_samples", num_samples, 1, _MOST_SAMPLES)
        if first is None or odd or sum(size for _, size in first) != num_samples:
            return sources_from([("", num_samples)])
    if first is None:
        raise InvalidValueError(
            "num_samples is required, because the logs do not contain it; pass it, or add it to "
            "the info of each log"
        )
    if odd:
        raise InvalidValueError(
            f"{odd[0]}: its data is {dict(known[odd[0]])} but must be {dict(first)}, as in the "
            "other logs; audit each training separately"
        )
    check_integer("num_samples", sum(size for _, size in first), 0, _MOST_SAMPLES)
    return sources_from(first)


def _audit_run(run: Run) -> RunAudit:
    kept = {rank: run.counted(rank) for rank in sorted(run.ranks)}
    tables = [part.table for part in run.ranks.values()]
    num_samples = sum(int(table["num_ids"].sum()) for table in kept.values())
    num_batches = tuple(len(table) for table in kept.values())
    ends = [int(table["step"].max()) + 1 for table in kept.values() if len(table)]
    return RunAudit(
        name=run.name,
        world_size=run.world_size,
        first_step=int(run.first_step) if np.isfinite(run.first_step) else None,
        end_step=max(ends, default=None),
        num_batches=num_batches,
        num_samples=num_samples,
        num_discarded_batches=sum(map(len, tables)) - sum(num_batches),
        num_discarded_samples=sum(int(table["num_ids"].sum()) for table in tables) - num_samples,
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
    outside = _Outside(num_samples)
    failed = outside.known(_skipped(runs, epoch))
    left_out = outside.known(_in_skipped_batches(runs, epoch))
    skipped = np.concatenate([failed, left_out])
    balance = balance_of(
        # A sample that was skipped was due there, as one that was delivered.
        chain((outside.real(batch) for batch in _batches(runs, epoch)), [skipped]),
        num_samples,
        sum(run.num_logged(epoch) for run in runs) + len(skipped),
        None if plan is None else planned_counts(plan, runs, epoch),
    )
    whole = _of_source(balance, SourceInfo("", num_samples, 0), skipped)
    is_finished = is_followed or any(run.ends_of(epoch) for run in runs)
    dropped = 0
    if is_finished and plan is None:
        allowed = _num_dropped(runs, epoch, whole.num_expected)
        # If more are missing than the policy drops, they cannot be told apart: then all are listed.
        dropped = whole.num_missing if whole.num_missing <= allowed else 0
    is_lost = is_finished and whole.num_missing > dropped
    return EpochAudit(
        epoch=epoch,
        is_finished=is_finished,
        num_expected=whole.num_expected,
        num_once=whole.num_once,
        num_to_come=0 if is_finished else whole.num_missing,
        num_dropped=dropped,
        num_padded=max(0, outside.num_padded - len(failed)),
        num_lost=whole.num_missing if is_lost else 0,
        lost=balance.missing(_MOST_LISTED) if is_lost else (),
        num_repeated=whole.num_repeated,
        repeated=balance.repeated(_MOST_LISTED),
        num_unknown=outside.num_unknown,
        unknown=tuple(outside.unknown),
        sources=tuple(_of_source(balance, source, skipped) for source in sources),
        num_skipped=len(failed),
        skipped=tuple(np.sort(failed)[:_MOST_LISTED].tolist()),
        num_in_skipped_batches=len(left_out),
        in_skipped_batches=tuple(np.sort(left_out)[:_MOST_LISTED].tolist()),
    )


def _batches(runs: Sequence[Run], epoch: int) -> Iterator[LoggedBatch]:
    for run in runs:
        for part in run.ranks.values():
            yield from part.batches(epoch, run.limit)


def _of_source(balance: Balance, source: SourceInfo, skipped: Ids) -> SourceAudit:
    """Return what became of the samples of a source; one that was skipped did not come."""
    found = balance.of_source(source)
    own = skipped[
        (skipped >= source.first_index) & (skipped < source.first_index + source.num_samples)
    ]
    return replace(found, num_once=found.num_once - balance.num_right(np.unique(own)))


def _skipped(runs: Sequence[Run], epoch: int) -> Ids:
    parts = ((part, run.limit) for run in runs for part in run.ranks.values())
    found = [ids for part, limit in parts for ids in part.skipped(epoch, limit)]
    return np.concatenate([np.empty(0, np.int64), *found])


def _in_skipped_batches(runs: Sequence[Run], epoch: int) -> Ids:
    """Return the samples of batches that were skipped, as the latest run in the epoch was told.

    What it resumed from contains the skips before it; those that it does not contain were undone.
    """
    told: list[SkippedBatches] = []
    for run in runs:
        here = run.skipped_batches(epoch) if run.counts else []
        if here or run.num_batches(epoch):
            told = here
    return np.concatenate([np.empty(0, np.int64), *(batches.ids for batches in told)])


class _Outside:
    """Counts what batches have beside samples of the data: padding, and ids of no sample."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self.num_padded = self.num_unknown = 0
        self.unknown: list[int] = []

    def real(self, batch: LoggedBatch) -> Ids:
        """Return the real samples of a batch that are in the data."""
        ids = batch.real_ids
        self.num_padded += len(batch.ids) - len(ids)
        return self.known(ids)

    def known(self, ids: Ids) -> Ids:
        """Return those of some samples that are in the data."""
        is_known = (ids >= 0) & (ids < self._num_samples)
        if not is_known.all():
            outside, ids = ids[~is_known], ids[is_known]
            self.num_unknown += len(outside)
            self.unknown += outside[: _MOST_LISTED - len(self.unknown)].tolist()
        return ids


def _num_dropped(runs: Sequence[Run], epoch: int, num_positions: int) -> int:
    """Return the number of samples that the tail policy drops at the end of an epoch.

    The first runs consumed whole batches. What they left is dealt to the ranks of the last run.
    """
    ended = [part for run in runs for part in run.ends_of(epoch)]
    told = [part.dropped[epoch] for part in ended if epoch in part.dropped]
    if told:
        return told[-1]
    parts = [(run, count) for run in runs if (count := run.num_batches(epoch))]
    if not parts:
        return 0
    last = parts[-1][0]
    if not str(last.info.get("tail", "")).endswith("drop"):
        return 0
    num_left = num_positions
    for run, count in parts[:-1]:
        num_left -= count * run.world_size * run.batch_size
    return max(num_left, 0) % (last.world_size * last.entry_size)
