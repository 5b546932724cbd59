"""The contents of a path: a checkpoint, a log, chunks or a matrix; and whether a cursor fits.

Checkpoints are JSON, or `.pt` files whose pickles are not run.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from feedline.errors import (
    CursorFormatError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    PlanMismatchError,
    UnsafeDataError,
)
from feedline.feed.waits import PARTS
from feedline.plain_file import open_plain
from feedline.plan import Cursor, PastSegment
from feedline.plan.cursor import CURSOR_FORMATS
from feedline.runs.audit import find_logs
from feedline.runs.audit_runs import Table, parts_of
from feedline.runs.log_records import is_log
from feedline.runs.run_config import RunConfig
from feedline.runs.store_facts import facts_of_store
from feedline.steps.run_state import RunState
from feedline.store import FolderStore, open_anndata
from feedline.store import open as open_store
from feedline.store.foreign.known import is_foreign
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.tensor_pickle import read_tensor_pickle

_MAX_BYTES = 2**26
_MAX_DEPTH = 32
# Files with these endings hold samples, and no checkpoint.
_SAMPLE_ENDINGS = (".parquet", ".arrow", ".feather", ".safetensors", ".npy")
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
    """The contents of a path, in printable values."""

    kind: str
    facts: Mapping[str, Any]
    cursor: Cursor | None = None


def inspect_path(path: Path | str) -> Inspection:
    """Return the contents of a file or folder, or of the data at a URL."""
    if isinstance(path, str):
        with closing(open_store(path)) as store:
            return Inspection(kind="data in object storage", facts=facts_of_store(store))
    if not path.is_dir():
        if path.is_file() and is_log(path):
            return Inspection(kind="log of one rank", facts=_facts_of_log(path))
        return _of_file(path)
    if (path / MANIFEST_NAME).exists():
        return Inspection(kind="folder of chunks", facts=facts_of_store(FolderStore(path)))
    if any((path / name).exists() for name in _ZARR_MARKS):
        return Inspection(kind="zarr matrix", facts=_facts_of_matrix(path))
    splits = sorted(inner.parent for inner in path.glob(f"*/{MANIFEST_NAME}"))
    if splits:
        facts = {split.name: facts_of_store(FolderStore(split)) for split in splits}
        return Inspection(kind="splits, each a folder of chunks", facts=facts)
    if is_foreign(path):
        return Inspection(kind="data of another format", facts=facts_of_store(open_store(path)))
    try:
        logs = find_logs([path])
    except MissingDataError:
        raise InvalidValueError(
            f"{path}: is not a folder of chunks, a zarr matrix or a folder of logs; pass one of "
            "these, or a checkpoint"
        ) from None
    return Inspection(kind="folder of logs", facts=_facts_of_logs(logs))


def _of_file(path: Path) -> Inspection:
    """Return the contents of a file: samples, or a checkpoint."""
    if path.suffix in _SAMPLE_ENDINGS or (path.is_file() and is_foreign(path)):
        return Inspection(kind="file of samples", facts=facts_of_store(open_store(path)))
    try:
        return _of_checkpoint(read_checkpoint(path))
    except CursorFormatError:
        # A `.pt` file may hold samples instead.
        if path.suffix not in (".pt", ".pth"):
            raise
        try:
            store = open_store(path)
        except FeedlineError:
            store = None
        if store is None:
            raise
        return Inspection(kind="file of samples", facts=facts_of_store(store))


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
            "history": [_entry(past) for past in cursor.history],
            **({"skipped": skips_of(cursor)} if cursor.num_skipped else {}),
            "num_changes": len(cursor.changes),
            "fingerprint": cursor.fingerprint,
            "fields": dict(cursor.fields),
        }
    return Inspection(kind=checkpoint.kind, facts=facts, cursor=cursor)


def _entry(past: PastSegment) -> dict[str, int]:
    return dict(zip(PastSegment._fields, past[:3], strict=False))


def skips_of(cursor: Cursor) -> list[dict[str, Any]]:
    """Return the batches that a cursor skips, numbered from the start of its epoch.

    Args:
        cursor: The cursor.
    """
    skips, before = [], 0
    for past in cursor.history:
        for start, stop in past.skipped:
            skips.append(
                {
                    "first_batch": before + start,
                    "last_batch": before + stop - 1,
                    "num_batches": stop - start,
                    "world_size": past.world_size,
                    "batch_size": past.batch_size,
                    "is_ahead": start > past.num_behind,
                    "is_resized": past is not cursor.history[-1],
                }
            )
        before += past.num_behind
    return skips


def _facts_of_matrix(path: Path) -> dict[str, Any]:
    store = open_anndata(path)
    return {
        "num_rows": store.shape[0],
        "shape": list(store.shape),
        "layout": "sparse" if type(store).__name__ == "CsrStore" else "dense",
        "fingerprint": store.fingerprint,
    }


def _facts_of_log(path: Path) -> dict[str, Any]:
    """Return the header of a log, what was received and when, and the time spent waiting."""
    # Before the records are read: a run that has not ended adds to them.
    num_bytes = path.stat().st_size
    parts = list(parts_of(path))
    header = parts[0].header
    table = np.concatenate([part.table for part in parts])
    events = [event for part in parts for event in part.events]
    waits = table["wait"]
    # In the order in which they were begun.
    epochs = dict.fromkeys(table["epoch"].tolist())
    return {
        **{"run": header.run, "rank": header.rank, "world_size": header.world_size},
        "info": dict(header.info),
        **_sums_of(table),
        "wait": {
            "total_seconds": float(waits.sum()),
            "mean_seconds": float(waits.mean()) if len(table) else 0.0,
            "longest_seconds": float(waits.max(initial=0.0)),
            **_parts_of(table),
        },
        "num_bytes": num_bytes,
        "is_cut_short": parts[-1].end < num_bytes,
        "epochs": [{"epoch": e, **_sums_of(table[table["epoch"] == e])} for e in epochs],
        "events": [{"event": "", **event.fields} | {"event": event.name} for event in events],
    }


def _parts_of(table: Table) -> dict[str, float]:
    """Return the seconds of each part of waiting, unless a log is too old to have any."""
    known = table[~np.isnan(table["reading"])]
    return {f"{part}_seconds": float(known[part].sum()) for part in PARTS} if len(known) else {}


def _sums_of(table: Table) -> dict[str, int | None]:
    num_samples = int(table["num_ids"].sum())
    return {
        "first_step": int(table["step"].min()) if len(table) else None,
        "last_step": int(table["step"].max()) if len(table) else None,
        "num_batches": len(table),
        "num_samples": num_samples,
        "num_padded": num_samples - int(table["num_real"].sum()),
    }


def _facts_of_logs(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the contents of several logs, separately and together."""
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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The contents of a file: a cursor and its place in the file, or a scheduler without one.

    `found_at` is empty if the file is the cursor itself.
    """

    path: Path
    cursor: Cursor | None
    found_at: str
    clock: RunState | None

    @property
    def kind(self) -> str:
        """A description of the file."""
        if self.clock is not None:
            return "state of a StepScheduler"
        return "state of a loader or sampler" if self.found_at else "cursor"


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the contents of a checkpoint, or raise `CursorFormatError` if it has no cursor."""
    content = _load(path)
    found = _find(content, "", 0)
    try:
        clock = _clock_in(content)
    except (CursorFormatError, InvalidValueError) as error:
        raise type(error)(f"{path}: {error}") from None
    if found is None:
        if clock is None:
            raise CursorFormatError(
                f"{path}: contains no cursor; pass what to_json() of a cursor or state_dict() of a "
                "loader returned"
            )
        return Checkpoint(path=path, cursor=None, found_at="", clock=clock)
    found_at, state = found
    try:
        cursor = Cursor.from_dict(state)
    except CursorFormatError as error:
        raise CursorFormatError(f"{path}: {error}") from None
    return Checkpoint(path=path, cursor=cursor, found_at=found_at, clock=clock)


def _load(path: Path) -> Any:
    try:
        with _opened(path) as file:
            if file.read(2) == b"PK":
                return _load_archive(path, file)
            file.seek(0)
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InvalidValueError(
                f"{path}: has more than {_MAX_BYTES} bytes, which is the most; save the state "
                "separately"
            )
        return json.loads(content)
    except FeedlineError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CursorFormatError(
            f"{path}: is neither JSON nor a torch.save archive ({error!s:.200}); pass a checkpoint"
        ) from None


def _opened(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidValueError(f"{path}: does not exist; pass a checkpoint") from None
    except UnsafeDataError as error:
        raise InvalidValueError(f"{error}; pass a checkpoint") from None


def _load_archive(path: Path, file: BinaryIO) -> Any:
    """Return the contents of the pickle in a `.pt` file, read as data."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) < len(members):
                raise zipfile.BadZipFile("it has two members of one name")
            pickles = [m for m in members if m.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > _MAX_BYTES:
                raise zipfile.BadZipFile("it contains no pickle")
            # The others decode to any size before that can be compared with the claimed one.
            if pickles[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile("its pickle is compressed in another way than deflate")
            with archive.open(pickles[0]) as member:
                data = member.read(pickles[0].file_size + 1)
            if len(data) > pickles[0].file_size:
                raise zipfile.BadZipFile("its pickle is longer than it says")
    except Exception as error:  # zipfile raises many kinds for damaged files
        raise CursorFormatError(
            f"{path}: is not a torch.save archive, or is damaged ({error!s:.200}); save it again"
        ) from None
    try:
        return read_tensor_pickle(data, path)
    except UnsafeDataError as error:
        reason, _, _ = str(error).partition("; it was not run")
        raise UnsafeDataError(
            f"{reason}; it was not run. Save the state_dict() of the loader separately, or as JSON"
        ) from None


def _find(
    content: Any, found_at: str, depth: int, seen: set[int] | None = None
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the first cursor in nested mappings and lists, and its place; each is seen once."""
    inner: list[tuple[str, Any]] = []
    seen = set() if seen is None else seen
    if isinstance(content, str):
        content = _parsed(content)
        seen = set()  # what was parsed here may be freed, and its place used again
    if not isinstance(content, Mapping | list | tuple) or id(content) in seen:
        return None
    seen.add(id(content))
    if isinstance(content, Mapping):
        if content.get("format") in CURSOR_FORMATS:
            return found_at, content
        inner = [(f"{found_at}.{key}" if found_at else str(key), v) for key, v in content.items()]
    else:
        inner = [(f"{found_at}[{number}]", value) for number, value in enumerate(content)]
    if depth == _MAX_DEPTH:
        return None
    found = (_find(value, where, depth + 1, seen) for where, value in inner)
    return next((pair for pair in found if pair is not None), None)


def _parsed(text: str) -> Any:
    """Return the JSON in a text, or else the text; loaders save their cursor as JSON text."""
    try:
        return json.loads(text) if any(f in text for f in CURSOR_FORMATS) else text
    except (ValueError, RecursionError):
        return text


def _clock_in(content: Any) -> RunState | None:
    """Return the state of a StepScheduler, at the top or one level below."""
    if not isinstance(content, Mapping):
        return None
    for state in (content, *content.values()):
        if isinstance(state, Mapping) and {"step", "epoch", "num_batches"} <= state.keys():
            return RunState.from_dict(state)
    return None
