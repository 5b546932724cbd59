"""The records of a log: batches that were received and events, in frames that show damage.

The first line is JSON with a checksum. Each record after it is a length, a checksum of
the length, a checksum of the content, and the content. A file that ends inside a record is
truncated, for example because its writer was killed; an altered length is told apart by its own
checksum.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.feed.waits import Wait
from feedline.plain_file import open_plain
from feedline.words import one_line, several

FORMAT = "feedline-log-1"
MAX_CONTENT = 2**28
_MAX_HEADER = 2**20
_PREFIX = struct.Struct("<III")
_LENGTH = struct.Struct("<I")
_START = f'{{"format":"{FORMAT}",'.encode()
_BATCH, _EVENT = 1, 2
_HAS_MARKS, _HAS_PARTS = 1, 2
_MOST_EPOCHS = 2**62
# The kind, what it has, the number of samples; epoch, step, batch, and seconds of waiting.
_HEAD = struct.Struct("<BBxxIqqqd")
# At the end, where they are known: seconds of reading and of copying.
_PARTS = struct.Struct("<dd")

Ids = NDArray[np.int64]
Marks = NDArray[np.bool_]


@one_line
class LoggedBatch(NamedTuple):
    """A batch that a rank received.

    `batch` is its number in the pass, and `wait` the seconds that the rank waited for it. `is_real`
    is False where a sample is padding, and `None` if none is.

    Args:
        epoch: The number of the epoch.
        step: The number of the step.
        batch: The number of the batch in its pass.
        ids: The samples.
        is_real: Which of them are real and not padding; None means all.
        wait: How many seconds the rank waited for it: a `feedline.feed.Wait` if it is known what
            for.
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


@one_line
class LoggedEvent(NamedTuple):
    """Something that happened to a run, such as a checkpoint; `fields` has the time, in seconds.

    Args:
        name: What happened.
        fields: What is known about it.
    """

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
                f"each of {several(len(samples), 'sample')}"
            )
        if not given.all():
            marks, flags = np.packbits(given).tobytes(), _HAS_MARKS
    parts = b""
    try:
        if isinstance(wait, Wait):
            parts, flags = _PARTS.pack(wait.reading, wait.copying), flags | _HAS_PARTS
        head = _HEAD.pack(_BATCH, flags, len(samples), epoch, step, batch, wait)
    except struct.error:
        raise InvalidValueError(
            f"epoch={epoch!r:.80}, step={step!r:.80} and batch={batch!r:.80} must be integers of "
            f"64 bits, and wait={wait!r:.80} a number of seconds"
        ) from None
    return head + samples.tobytes() + marks + parts


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
    """Return the entry in a record, or raise if its parts do not fit."""
    kind = content[0] if content else 0
    if kind == _BATCH and len(content) >= _HEAD.size:
        _, flags, count, epoch, step, batch, wait = _HEAD.unpack_from(content)
        num_marks = -(-count // 8) if flags & _HAS_MARKS else 0
        end_of_marks = _HEAD.size + 8 * count + num_marks
        if len(content) == end_of_marks + (_PARTS.size if flags & _HAS_PARTS else 0):
            ids = np.frombuffer(content, np.dtype("<i8"), count, _HEAD.size).view(np.int64)
            marks = None
            if num_marks:
                packed = np.frombuffer(content, np.uint8, num_marks, _HEAD.size + 8 * count)
                marks = np.unpackbits(packed, count=count).view(np.bool_)
            if flags & _HAS_PARTS:
                reading, copying = _PARTS.unpack_from(content, end_of_marks)
                wait = Wait(wait, reading=reading, copying=copying)
            if 0 <= epoch <= _MOST_EPOCHS:
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


def framed(content: bytes) -> bytes:
    """Return a record with this content."""
    size = len(content)
    return _PREFIX.pack(size, crc32(_LENGTH.pack(size)), crc32(content)) + content


def header_line(fields: dict[str, Any]) -> bytes:
    """Return the first line of a log."""
    text = _as_json({"format": FORMAT, **fields})
    line = f'{text[:-1]},"crc32":"{crc32(text.encode()):08x}"}}\n'.encode()
    if len(line) > _MAX_HEADER:
        raise InvalidValueError(
            f"info takes {len(line)} bytes but must take at most {_MAX_HEADER}; remove large values"
        )
    return line


def is_log(path: Path) -> bool:
    """Whether a file begins like a log."""
    with opened(path) as file:
        return file.read(len(_START)) == _START


def read_header(path: Path) -> dict[str, Any]:
    """Return the fields of the first line."""
    with opened(path) as file:
        return _header_of(path, file)


def read_frames(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the end of each record, and its content; an incomplete last record is ignored.

    Args:
        path: The log.
        start: Where a record ends, to begin after it; by default after the header.
        stop: Where to stop; by default at the end of the file.
    """
    with opened(path) as file:
        place = start
        if start:
            file.seek(start)
        else:
            _header_of(path, file)
            place = file.tell()
        end = os.fstat(file.fileno()).st_size
        end = end if stop is None else min(stop, end)
        while end - place >= _PREFIX.size:
            size, size_check, content_check = _PREFIX.unpack(file.read(_PREFIX.size))
            # Before the length is believed: it decides how much is read.
            if crc32(_LENGTH.pack(size)) != size_check or size > MAX_CONTENT:
                raise damaged(path, place, "has a length that was altered")
            if size > end - place - _PREFIX.size:
                return
            content = file.read(size)
            if crc32(content) != content_check:
                raise damaged(path, place, "does not have its checksum")
            place += _PREFIX.size + size
            yield place, content


def damaged(path: Path, place: int, fault: str) -> DamagedDataError:
    """Return the error for a damaged record."""
    return DamagedDataError(
        f"{path}: the record at byte {place} {fault}; restore the file from a copy, or remove this "
        "log from the audit"
    )


def opened(path: Path) -> BinaryIO:
    """Return a file to read from, or raise an error that names it."""
    try:
        return open_plain(path)
    except UnsafeDataError as error:
        raise UnsafeDataError(f"{error}; pass a log") from None
    except FileNotFoundError:
        raise MissingDataError(f"{path}: does not exist; check the path") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from None


def _header_of(path: Path, file: BinaryIO) -> dict[str, Any]:
    line = file.readline(_MAX_HEADER)
    if not line.startswith(_START):
        raise DamagedDataError(f"{path}: does not begin like a log of feedline; pass a log")
    try:
        fields = json.loads(line) if line.endswith(b"\n") else {}
        check = fields.pop("crc32", None)
        is_whole = check == f"{crc32(_as_json(fields).encode()):08x}"
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise DamagedDataError(
            f"{path}: the header, in line 1, is damaged or truncated; restore the file from a "
            "copy, or remove this log from the audit"
        )
    del fields["format"]
    return dict(fields)


def _as_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
