"""Reading the checkpoints that hold a cursor: JSON, and `.pt` files whose pickles are not run."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import CursorFormatError, FeedlineError, InvalidValueError, UnsafeDataError
from feedline.plan import Cursor
from feedline.plan.cursor import CURSOR_FORMAT
from feedline.steps.run_state import RunState
from feedline.store.tensor_pickle import read_tensor_pickle

_MAX_BYTES = 2**26
_MAX_DEPTH = 32


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a file holds: a cursor, and where in the file it stands; or a clock without one.

    `found_at` is empty where the file is the cursor itself.
    """

    path: Path
    cursor: Cursor | None
    found_at: str
    clock: RunState | None

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        if self.clock is not None:
            return "state of a StepScheduler"
        return "state of a loader or sampler" if self.found_at else "cursor"


def read_checkpoint(path: Path) -> Checkpoint:
    """Return what a checkpoint holds, or raise `CursorFormatError` if it holds no cursor."""
    content = _load(path)
    found = _find(content, "", 0)
    try:
        clock = _clock_in(content)
    except (CursorFormatError, InvalidValueError) as error:
        raise type(error)(f"{path}: {error}") from None
    if found is None:
        if clock is None:
            raise CursorFormatError(
                f"{path}: holds no cursor; give what to_json() of a cursor or state_dict() of a "
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
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValueError(f"{path}: must be a file; give a checkpoint")
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"
        if is_archive:
            return _load_archive(path)
        if status.st_size > _MAX_BYTES:
            raise InvalidValueError(
                f"{path}: has {status.st_size} bytes but must have at most {_MAX_BYTES}; save the "
                "state on its own"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidValueError(f"{path}: there is no such file; give a checkpoint") from None
    except FeedlineError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CursorFormatError(
            f"{path}: is neither JSON nor a torch.save archive ({error!s:.200}); give a checkpoint"
        ) from None


def _load_archive(path: Path) -> Any:
    """Return what the pickle of a `.pt` file holds, read as data."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [m for m in archive.infolist() if m.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > _MAX_BYTES:
                raise zipfile.BadZipFile("no pickle of a checkpoint in it")
            data = archive.read(pickles[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CursorFormatError(
            f"{path}: is not a torch.save archive, or is damaged ({error!s:.200}); save it again"
        ) from None
    try:
        return read_tensor_pickle(data, path)
    except UnsafeDataError as error:
        reason, _, _ = str(error).partition("; it was not run")
        raise UnsafeDataError(
            f"{reason}; it was not run. Save the state_dict() of the loader on its own, or as JSON"
        ) from None


def _find(content: Any, found_at: str, depth: int) -> tuple[str, Mapping[str, Any]] | None:
    """Return the first cursor in nested mappings and lists, and where it stands."""
    inner: list[tuple[str, Any]] = []
    if isinstance(content, str):
        content = _parsed(content)
    if isinstance(content, Mapping):
        if content.get("format") == CURSOR_FORMAT:
            return found_at, content
        inner = [(f"{found_at}.{key}" if found_at else str(key), v) for key, v in content.items()]
    elif isinstance(content, list | tuple):
        inner = [(f"{found_at}[{number}]", value) for number, value in enumerate(content)]
    if depth == _MAX_DEPTH:
        return None
    found = (_find(value, where, depth + 1) for where, value in inner)
    return next((pair for pair in found if pair is not None), None)


def _parsed(text: str) -> Any:
    """Return the JSON in a text, as which loaders save their cursor, or else the text."""
    try:
        return json.loads(text) if CURSOR_FORMAT in text else text
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
