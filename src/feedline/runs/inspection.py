"""What a path holds: a checkpoint, a log, chunks or a matrix; and whether a cursor fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, MissingDataError, PlanMismatchError
from feedline.plan import Cursor
from feedline.runs.audit import find_logs
from feedline.runs.checkpoint_reading import Checkpoint, read_checkpoint
from feedline.runs.consumption_log import iter_log, read_log_header
from feedline.runs.log_entries import LoggedEvent
from feedline.runs.log_frames import is_log
from feedline.runs.run_config import RunConfig
from feedline.store import FolderStore, open_anndata
from feedline.store.manifest import MANIFEST_NAME

_ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a cursor fits a plan, and if not, the fields that differ: saved and current."""

    is_fit: bool
    reason: str = ""
    differences: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    num_batches_left: int | None = None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a path holds, in values that can be printed."""

    kind: str
    facts: Mapping[str, Any]
    cursor: Cursor | None = None


def inspect_path(path: Path) -> Inspection:
    """Return what a file or folder holds."""
    if not path.is_dir():
        if path.is_file() and is_log(path):
            return Inspection(kind="log of one rank", facts=_facts_of_log(path))
        return _of_checkpoint(read_checkpoint(path))
    if (path / MANIFEST_NAME).exists():
        return Inspection(kind="folder of chunks", facts=_facts_of_folder(path))
    if any((path / name).exists() for name in _ZARR_MARKS):
        return Inspection(kind="zarr matrix", facts=_facts_of_matrix(path))
    splits = sorted(inner.parent for inner in path.glob(f"*/{MANIFEST_NAME}"))
    if splits:
        facts = {split.name: _facts_of_folder(split) for split in splits}
        return Inspection(kind="splits, each a folder of chunks", facts=facts)
    try:
        logs = find_logs([path])
    except MissingDataError:
        raise InvalidValueError(
            f"{path}: is neither a folder of chunks nor a zarr matrix nor a folder of logs; give "
            "one, or a checkpoint"
        ) from None
    return Inspection(kind="folder of logs", facts=_facts_of_logs(logs))


def compare(cursor: Cursor, config: RunConfig) -> Fit:
    """Return whether a run with this config could resume from a cursor."""
    plan = config.plan_for(cursor)
    try:
        # The plan's own fields say more than that the data is other data.
        cursor.check_fields(plan.fields)
        segment = plan.resume(cursor, world_size=config.ranks, batch_size=config.batch_size)
    except PlanMismatchError as error:
        return Fit(is_fit=False, reason=str(error), differences=error.differences)
    except ValueError as error:
        return Fit(is_fit=False, reason=str(error))
    return Fit(is_fit=True, num_batches_left=segment.num_batches - segment.num_done)


def _of_checkpoint(checkpoint: Checkpoint) -> Inspection:
    facts: dict[str, Any] = {}
    if checkpoint.clock is not None:
        clock = checkpoint.clock
        names = ("step", "epoch", "num_batches", "dp_size", "local_batch_size")
        facts["clock"] = {name: getattr(clock, name) for name in names}
    cursor = checkpoint.cursor
    if cursor is not None:
        facts["cursor"] = {
            **({"found_at": checkpoint.found_at} if checkpoint.found_at else {}),
            "epoch": cursor.epoch,
            "history": [past._asdict() for past in cursor.history],
            "num_changes": len(cursor.changes),
            "fingerprint": cursor.fingerprint,
            "fields": dict(cursor.fields),
        }
    return Inspection(kind=checkpoint.kind, facts=facts, cursor=cursor)


def _facts_of_folder(path: Path) -> dict[str, Any]:
    store = FolderStore(path)
    sizes = store.chunk_sizes
    columns = list(store.columns.values())
    return {
        "num_samples": store.num_samples,
        "num_files": len(store.manifest),
        "num_chunks": len(sizes),
        "chunk_samples": {"fewest": int(sizes.min()), "most": int(sizes.max())},
        "bytes_per_sample": sum(column.row_bytes for column in columns),
        "columns": [column.describe() for column in columns],
    }


def _facts_of_matrix(path: Path) -> dict[str, Any]:
    store = open_anndata(path)
    return {
        "num_rows": store.shape[0],
        "shape": list(store.shape),
        "layout": "sparse" if type(store).__name__ == "CsrStore" else "dense",
        "fingerprint": store.fingerprint,
    }


def _facts_of_log(path: Path) -> dict[str, Any]:
    """Return whose log it is, what was received and when, and how long it was waited for.

    Memory grows with the epochs and events, and not with the batches.
    """
    header = read_log_header(path)
    # Before the records are read: a run that has not ended adds to them.
    num_bytes = path.stat().st_size
    with open(path, "rb") as file:
        end = len(file.readline())
    epochs: dict[int, dict[str, int]] = {}
    events: list[dict[str, Any]] = []
    total = longest = 0.0
    for end, entry in iter_log(path):  # noqa: B007
        if isinstance(entry, LoggedEvent):
            events.append({"event": "", **entry.fields} | {"event": entry.name})
            continue
        counts = {"epoch": entry.epoch, "first_step": entry.step, "last_step": entry.step}
        zeros = dict.fromkeys(("num_batches", "num_samples", "num_padded"), 0)
        counts = epochs.setdefault(entry.epoch, {**counts, **zeros})
        counts["first_step"] = min(counts["first_step"], entry.step)
        counts["last_step"] = max(counts["last_step"], entry.step)
        counts["num_batches"] += 1
        counts["num_samples"] += len(entry.ids)
        counts["num_padded"] += len(entry.ids) - len(entry.real_ids)
        total, longest = total + entry.wait, max(longest, entry.wait)
    listed = list(epochs.values())
    sums = {
        name: sum(counts[name] for counts in listed)
        for name in ("num_batches", "num_samples", "num_padded")
    }
    return {
        **{"run": header.run, "rank": header.rank, "world_size": header.world_size},
        "info": dict(header.info),
        **sums,
        "first_step": min((counts["first_step"] for counts in listed), default=None),
        "last_step": max((counts["last_step"] for counts in listed), default=None),
        "wait": {
            "total_seconds": total,
            "mean_seconds": total / sums["num_batches"] if listed else 0.0,
            "longest_seconds": longest,
        },
        "num_bytes": num_bytes,
        "is_cut_short": end < num_bytes,
        "epochs": listed,
        "events": events,
    }


def _facts_of_logs(paths: Sequence[Path]) -> dict[str, Any]:
    """Return what several logs hold, each on its own and all together."""
    logs = [{"path": str(path), **_facts_of_log(path)} for path in paths]
    logs.sort(key=lambda log: (log["run"], log["rank"], log["path"]))
    return {
        "num_logs": len(logs),
        "num_runs": len({(log["run"] or str(Path(log["path"]).parent)) for log in logs}),
        "num_batches": sum(log["num_batches"] for log in logs),
        "num_samples": sum(log["num_samples"] for log in logs),
        "num_cut_short": sum(log["is_cut_short"] for log in logs),
        "logs": logs,
    }
