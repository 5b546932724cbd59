"""What a log holds: batches that were received, and events."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError
from feedline.runs.log_frames import damaged

Ids = NDArray[np.int64]
Marks = NDArray[np.bool_]

_BATCH, _EVENT = 1, 2
_HAS_MARKS = 1
# The kind, what it has, the number of samples; epoch, step, batch, and seconds of waiting.
_HEAD = struct.Struct("<BBxxIqqqd")


class LoggedBatch(NamedTuple):
    """A batch that a rank received.

    `batch` is its number in the pass, and `wait` the seconds that the rank waited for it. `is_real`
    is False where a sample is padding, and `None` if none is.
    """

    epoch: int
    step: int
    batch: int
    ids: Ids
    is_real: Marks | None = None
    wait: float = 0.0

    @property
    def real_ids(self) -> Ids:
        """The samples that are real."""
        return self.ids if self.is_real is None else self.ids[self.is_real]


class LoggedEvent(NamedTuple):
    """Something that happened to a run, such as a checkpoint; `fields` has the time, in seconds."""

    name: str
    fields: Mapping[str, Any]


LogEntry = LoggedBatch | LoggedEvent


def encode_batch(
    epoch: int, step: int, batch: int, ids: ArrayLike, is_real: ArrayLike | None, wait: float
) -> bytes:
    """Return a batch as bytes."""
    samples = _as_ids(ids)
    marks, flags = b"", 0
    if is_real is not None:
        given = np.asarray(is_real)
        if given.shape != samples.shape or given.dtype != np.bool_:
            raise InvalidValueError(
                f"is_real has shape {given.shape} and holds {given.dtype} but must be a bool for "
                f"each of {len(samples)} samples"
            )
        if not given.all():
            marks, flags = np.packbits(given).tobytes(), _HAS_MARKS
    try:
        head = _HEAD.pack(_BATCH, flags, len(samples), epoch, step, batch, wait)
    except struct.error:
        raise InvalidValueError(
            f"epoch={epoch!r:.80}, step={step!r:.80} and batch={batch!r:.80} must be integers of "
            f"64 bits, and wait={wait!r:.80} a number of seconds"
        ) from None
    return head + samples.tobytes() + marks


def encode_event(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return an event as bytes; a number that JSON does not have, such as a loss that is not a
    number, is written as text."""
    try:
        text = json.dumps([name, _with_finite(dict(fields))], separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(
            f"the fields of event {name!r:.80} cannot be written ({error}); use plain values"
        ) from None
    return bytes([_EVENT]) + text.encode()


def _with_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _with_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite(inner) for inner in value]
    return value


def decode(content: bytes, path: Path, end: int) -> LogEntry:
    """Return the entry that a record holds, or raise if its parts do not fit."""
    kind = content[0] if content else 0
    if kind == _BATCH and len(content) >= _HEAD.size:
        _, flags, count, epoch, step, batch, wait = _HEAD.unpack_from(content)
        num_marks = -(-count // 8) if flags & _HAS_MARKS else 0
        if len(content) == _HEAD.size + 8 * count + num_marks:
            ids = np.frombuffer(content, np.dtype("<i8"), count, _HEAD.size).view(np.int64)
            marks = None
            if num_marks:
                packed = np.frombuffer(content, np.uint8, num_marks, _HEAD.size + 8 * count)
                marks = np.unpackbits(packed, count=count).view(np.bool_)
            return LoggedBatch(epoch, step, batch, ids, marks, wait)
    if kind == _EVENT:
        try:
            name, fields = json.loads(content[1:])
            return LoggedEvent(str(name), dict(fields))
        except (ValueError, TypeError, RecursionError):
            pass
    raise damaged(path, end - len(content), "is neither a batch nor an event")


def _as_ids(ids: ArrayLike) -> Ids:
    given = np.asarray(ids)
    if given.dtype == np.int64 and given.ndim == 1:
        return given.astype("<i8", copy=False)
    if given.ndim == 1 and (given.dtype.kind in "iu" or not given.size):
        try:
            return given.astype("<i8", casting="safe" if given.size else "unsafe")
        except TypeError:
            pass
    raise InvalidValueError(
        f"ids has shape {given.shape} and holds {given.dtype} but must be a flat list of integers "
        "of 64 bits"
    )
