"""A log of what one rank received, cheap enough to write at every batch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from feedline.errors import DamagedDataError, InvalidValueError, StoreError, check_integer
from feedline.runs.log_records import (
    MAX_CONTENT,
    LogEntry,
    decode,
    encode_batch,
    encode_event,
    framed,
    header_line,
    read_frames,
    read_header,
)
from feedline.words import bytes_in_words, one_line, path_shown, shown


@one_line
class LogHeader(NamedTuple):
    """Whose log it is; `info` is what `feedline.runs.audit` should know about the data.

    Args:
        rank: The rank.
        world_size: The number of ranks.
        run: The name of the run.
        info: What is known about the data.
    """

    rank: int
    world_size: int
    run: str
    info: Mapping[str, Any]


@one_line
class LogFile(NamedTuple):
    """What a log holds, in the order in which it was written.

    Args:
        header: Whose log it is.
        entries: The batches and events.
    """

    header: LogHeader
    entries: tuple[LogEntry, ...]


class ConsumptionLog:
    """An append-only file of the samples that one rank received.

    Every record is passed to the operating system at once, so a killed process loses none. If the
    whole machine fails, the last record may be incomplete; then it is ignored, here and by
    `read_log`.

    Events show an audit how runs follow each other: `start`, `resume` with the next `step` after
    the loaded checkpoint, and `stop`. Others, such as `checkpoint`, are for readers.

    Args:
        path: The file; an existing log of the same rank and run is appended to.
        rank: The rank of this process.
        world_size: The number of ranks.
        run: A unique name for this run, the same on all of its ranks.
        info: Facts for the audit: `num_samples`, or `sources`, the number of samples of each
            by name in the order of their indices; `tail` and `batch_size`. A report also shows the
            `weights` of the sources, by name.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/rank0.log"
        >>> with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 4}) as log:
        ...     log.event("start")
        ...     log.record(epoch=0, step=0, batch=0, ids=[2, 0, 1])
        >>> read_log(path).entries[1].ids.tolist()
        [2, 0, 1]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        world_size: int,
        run: str = "",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        world_size = check_integer("world_size", world_size, 1)
        self.path = Path(path)
        self.header = LogHeader(
            check_integer("rank", rank, 0, world_size - 1), world_size, str(run), _plain(info or {})
        )
        try:
            if self.path.exists():
                self._num_bytes = _check_same(self.path, self.header)
                # An incomplete record would hide all that is appended after it.
                os.truncate(self.path, self._num_bytes)
            else:
                self._num_bytes = _create(self.path, self.header)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from None

    def __repr__(self) -> str:
        header = self.header
        run = f", run {shown(header.run, 40)}" if header.run else ""
        place = f"rank {header.rank} of {header.world_size}{run}"
        size = bytes_in_words(self._num_bytes)
        return f"<ConsumptionLog {path_shown(self.path)}: {place}, {size}>"

    def record(
        self,
        *,
        epoch: int,
        step: int,
        batch: int,
        ids: ArrayLike,
        is_real: ArrayLike | None = None,
        wait: float = 0.0,
    ) -> None:
        """Record a batch: its samples, which of them are real, and the seconds of waiting."""
        self._append(encode_batch(epoch, step, batch, ids, is_real, wait))

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event, with the time."""
        self._append(encode_event(name, {"time": time.time(), **fields}))

    def flush(self) -> None:
        """Wait until everything is on disk, to survive a failure of the machine."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ConsumptionLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, content: bytes) -> None:
        if len(content) > MAX_CONTENT:
            raise InvalidValueError(
                f"{self.path}: a record of {len(content)} bytes must have at most {MAX_CONTENT}; "
                "split it"
            )
        if self._file.closed:
            raise InvalidValueError(f"log={self.path} is closed and must be open; open it again")
        record = framed(content)
        try:
            view = memoryview(record)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            # Half a record would make all that comes after it unreadable.
            os.truncate(self.path, self._num_bytes)
            raise self._unwritable(error) from None
        self._num_bytes += len(record)

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path}: cannot be written ({error.strerror or error}); free some space, or "
            "choose another place for the log"
        )


def read_log(path: str | os.PathLike[str]) -> LogFile:
    """Return everything in a log. A last record that was cut short is left out; any other damage
    is a `DamagedDataError` that says where.

    Args:
        path: The file.
    """
    return LogFile(read_log_header(path), tuple(entry for _, entry in iter_log(path)))


def read_log_header(path: str | os.PathLike[str]) -> LogHeader:
    """Return whose log a file is.

    Args:
        path: The file.
    """
    fields = read_header(Path(path))
    try:
        world_size = check_integer("world_size", fields["world_size"], 1)
        rank = check_integer("rank", fields["rank"], 0, world_size - 1)
        return LogHeader(rank, world_size, str(fields["run"]), dict(fields["info"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedDataError(
            f"{os.fspath(path)}: the header, in line 1, is not that of a log ({error}); remove "
            "this file from the logs"
        ) from None


def iter_log(
    path: str | os.PathLike[str], start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, LogEntry]]:
    """Yield the end of each entry in the file, and the entry.

    Args:
        path: The log.
        start: Where an entry ends, to begin after it.
        stop: Where to stop; by default at the end.
    """
    file = Path(path)
    for end, content in read_frames(file, start, stop):
        yield end, decode(content, file, end)


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info as a reader gets it, or raise if it cannot be written."""
    try:
        return dict(json.loads(json.dumps(info, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(
            f"info={info!r:.80} cannot be written ({error}); use plain values"
        ) from None


def _create(path: Path, header: LogHeader) -> int:
    """Create a log with a complete header, or none."""
    line = header_line(header._asdict())
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(line)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(line)


def _check_same(path: Path, header: LogHeader) -> int:
    """Return the end of the last complete record of a log, or raise if it belongs to another
    run."""
    found = read_log_header(path)
    for name, mine, other in zip(header._fields, header, found, strict=True):
        if mine != other:
            raise InvalidValueError(
                f"{name}={mine!r:.80} must be {other!r:.80}, as in {path}; use another folder for "
                "every run"
            )
    end = len(header_line(header._asdict()))
    for end, _ in read_frames(path):  # noqa: B007
        pass
    return end
