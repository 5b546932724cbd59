"""`feedline audit --config`: logs beside the plan of a run config, which must fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.cli.audit_table import Planned
from feedline.cli.configs import load_config
from feedline.errors import CursorError, EmptyEpochError, InvalidValueError, TailError
from feedline.plan import BucketPlan, FixedBatch
from feedline.runs.audit import audit_logs, find_logs
from feedline.runs.audit_result import AuditResult
from feedline.runs.consumption_log import LogHeader, iter_log, read_log_header
from feedline.runs.log_entries import LoggedBatch
from feedline.runs.run_config import RunConfig

__all__ = ["audit_planned"]


def audit_planned(logs: Sequence[Path], config: Path) -> tuple[AuditResult, Planned]:
    """Return the audit of logs against the plan of a config, and what is known of the plan."""
    run = load_config(config)
    headers = {path: read_log_header(path) for path in find_logs(logs)}
    for path, header in headers.items():
        _check_fits(run, config, path, header)
    try:
        result = audit_logs(logs, plan=run.plan)
    except (CursorError, EmptyEpochError, TailError) as error:
        raise InvalidValueError(
            f"{config}: its plan does not fit the logs ({error}); give the config of this training"
        ) from None
    return result, Planned(
        config=str(config),
        sources=tuple((source.name, source.first_index) for source in run.sources),
        begins_alike=_begins_alike(run, headers, result),
    )


def _check_fits(run: RunConfig, config: Path, path: Path, header: LogHeader) -> None:
    """Raise if a log tells of other data than the config has, or too little to replay it."""
    mine = [source.num_samples for source in run.sources]
    told = header.info.get("sources")
    others = list(told.values()) if isinstance(told, Mapping) else [header.info.get("num_samples")]
    is_same = others == mine
    if len(others) != len(mine):
        is_same = sum(mine) == sum(size for size in others if isinstance(size, int))
    if others != [None] and not is_same:
        raise InvalidValueError(
            f"{config}: its data has {_listed(mine)} samples but must have {_listed(others)}, as "
            f"{path} says; give the config of this training"
        )
    is_plain = not isinstance(run.plan, BucketPlan) or isinstance(run.plan.rule, FixedBatch)
    if not is_plain and "batch_size" not in header.info:
        raise InvalidValueError(
            f"{path}: its info has no batch_size, and batches of several sizes do not say it; "
            "write it into the info of each log"
        )


def _begins_alike(
    run: RunConfig, headers: Mapping[Path, LogHeader], result: AuditResult
) -> bool | None:
    """Whether any rank received first what the plan has first; None if that was not logged."""
    first = result.runs[0]
    is_alike = None
    for path, header in headers.items():
        if (header.run or str(path.parent)) != first.name or first.first_step != 0:
            continue
        batches = (entry for _, entry in iter_log(path) if isinstance(entry, LoggedBatch))
        batch = next(batches, None)
        if batch is None or not len(batch.ids):
            continue
        size = header.info.get("batch_size") or len(batch.ids)
        segment = run.plan.segment(world_size=header.world_size, batch_size=size, epoch=batch.epoch)
        if batch.ids.tolist() == segment.batch(header.rank, 0).indices.tolist():
            return True
        is_alike = False
    return is_alike


def _listed(sizes: Sequence[Any]) -> str:
    return " + ".join(map(str, sizes[:20])) + (" + …" if len(sizes) > 20 else "")
