"""A process that reads parts of a source for packing; see `local_reading.py`, which starts it."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from feedline.packing.fitting import Fitting
from feedline.packing.parts import Part, PartedSource
from feedline.packing.rows import Rows, concatenate_rows, num_bytes_of, write_rows
from feedline.store.processes import ask_for_death_signal

READY, UNREADY, PIECE, ENDED, FAILED = "ready", "unready", "piece", "ended", "failed"


class _GoneError(Exception):
    """Nobody waits for what is read."""


class _Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: deque[list[Any]] = deque()
        self._num_bytes = self._num_pieces = 0
        self._source: PartedSource
        self._fitting: Fitting

    def run(self) -> None:
        """Read what is asked for, until the other side is gone."""
        setup = self._received()
        try:
            work = pickle.loads(setup)
            self._source, self._fitting, self._piece_bytes, self._max_bytes, self._max = work
        except Exception as error:
            self._say(UNREADY, f"{type(error).__name__}: {error}"[:300])
            return
        self._say(READY, "")
        while True:
            while not self._asked:
                self._hear()
            number, num_before, *part = self._asked.popleft()
            try:
                for place, rows in enumerate(self._pieces(Part(*part))):
                    if place >= num_before:
                        self._send(number, rows)
            except _GoneError:
                raise
            except Exception:
                # It is raised where it is known which rows these are.
                self._say(FAILED, number, 0)
            else:
                self._say(ENDED, number, 0)

    def _pieces(self, part: Part) -> Iterator[Rows]:
        """Yield the rows of a part, joined up to a size."""
        held: list[Rows] = []
        num_bytes = 0
        for rows in self._fitting.fitted(self._source.read(part, 0)):
            held.append(rows)
            num_bytes += num_bytes_of(rows)
            if num_bytes >= self._piece_bytes:
                yield concatenate_rows(held)
                held, num_bytes = [], 0
        if held:
            yield concatenate_rows(held)

    def _send(self, number: int, rows: Rows) -> None:
        while self._num_pieces and (
            self._num_bytes >= self._max_bytes or self._num_pieces >= self._max
        ):
            self._hear()
        with _file_in_memory() as file:
            num_bytes = write_rows(file, rows)
            file.flush()
            self._num_bytes += num_bytes
            self._num_pieces += 1
            self._say(PIECE, number, num_bytes)
            with _connected():
                send_handle(self._connection, file.fileno(), 0)

    def _hear(self) -> None:
        kind, *rest = json.loads(self._received())
        if kind == "taken":
            self._num_bytes -= rest[0]
            self._num_pieces -= 1
        else:
            self._asked.append(rest)

    def _received(self) -> bytes:
        with _connected():
            return self._connection.recv_bytes()

    def _say(self, *message: Any) -> None:
        with _connected():
            self._connection.send_bytes(json.dumps(message).encode())


@contextmanager
def _connected() -> Iterator[None]:
    """Tell an end of the connection from errors of the source."""
    try:
        yield
    except (EOFError, OSError):
        raise _GoneError from None


def _file_in_memory() -> Any:
    if sys.platform == "linux":
        return open(os.memfd_create("feedline-rows"), "w+b")
    return tempfile.TemporaryFile()


def main() -> None:
    """Run a process; the arguments are the descriptor of its connection, and its parent."""
    # Ctrl-C reaches every process of a terminal; the one that packs decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ask_for_death_signal(signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    try:
        _Worker(Connection(int(sys.argv[1]))).run()
    except _GoneError:
        # Threads of the source may still read: nobody needs it.
        os._exit(0)
