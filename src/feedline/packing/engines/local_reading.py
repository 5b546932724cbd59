"""Reading a source in processes of its own, where decoding would keep one thread busy.

Parts of the source are read in any order, each by one process, and come here in their order. Rows
travel as files in memory, which only descriptors name, so that no end of any process leaves one.
A process waits while what it has sent is not taken, so memory is bounded. What a process cannot
read is read again here, where it is an error with its row, or succeeds.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from time import thread_time
from typing import Any

from feedline.errors import PackError
from feedline.packing.engines.local_reader import ENDED, FAILED, PIECE, READY, UNREADY
from feedline.packing.fitting import nothing_of
from feedline.packing.parts import Part, PartedSource, for_one_core
from feedline.packing.plan import Plan
from feedline.packing.rows import Rows, num_bytes_of, num_rows_of, part_of_rows, read_rows
from feedline.words import several

#: A source with fewer bytes is read before processes have begun.
MIN_BYTES = 2**28
#: Where decoding is faster, handing rows over costs more than it saves: bytes a second, by one
#: thread that holds the lock.
FAST_BYTES = 2**28
_MAX_PROCESSES = 8
_MAX_PIECE_BYTES = 2**22
_MAX_PART_BYTES = 2**25
#: Pieces that a process may have sent that are not taken yet: each is an open file.
_MAX_PIECES = 16
_MAX_DEATHS = 3
_SAMPLE_BYTES = 2**24
_SAMPLE_SECONDS = 0.2
_log = logging.getLogger("feedline")


def num_processes(plan: Plan) -> int:
    """Return how many processes read a source; 0 where threads are as fast.

    The first rows are read to see how long decoding keeps this thread busy.
    """
    source, threads = plan.source, plan.settings.threads
    if threads < 2 or not hasattr(socket, "AF_UNIX") or not spawn.get_executable():
        return 0
    num_rows = source.num_rows_guess
    if num_rows is None or num_rows * plan.spilled_row_bytes < MIN_BYTES:
        return 0
    if not isinstance(source, PartedSource) or _bytes_a_second(plan) > FAST_BYTES:
        return 0
    return min(threads, _MAX_PROCESSES)


def _bytes_a_second(plan: Plan) -> float:
    """Return how much this thread decodes in a second of its own time, from some of the rows."""
    num_bytes, start = 0, 0.0
    batches = plan.source.batches(0)
    for number, rows in enumerate(plan.fitting.fitted(batches)):
        if not number:
            # The first ones open files and import libraries.
            start = thread_time()
            continue
        num_bytes += num_bytes_of(rows)
        seconds = thread_time() - start
        if num_bytes >= _SAMPLE_BYTES or seconds >= _SAMPLE_SECONDS:
            return num_bytes / max(seconds, 1e-9)
    return inf


@dataclass(eq=False)
class _Process:
    """A process, the parts that it was asked for, and what it has sent of them."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    asked: deque[int] = field(default_factory=deque)

    def end(self) -> int:
        """End it, and return how it ended."""
        self.connection.close()
        self.popen.kill()
        return self.popen.wait()


@dataclass
class _Arrived:
    """What came of a part: pieces that are not taken, and whether there are more to come."""

    pieces: deque[tuple[int, int, _Process]] = field(default_factory=deque)
    num_pieces: int = 0
    is_ended: bool = False
    is_failed: bool = False


class Readers:
    """Yields the rows of a source, read by processes or, if there are none, here.

    Args:
        plan: The source and its columns.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._like = {column.name: nothing_of(column, 0) for column in plan.columns}
        self._processes: list[_Process] = []
        self._setup = b""
        self._num_deaths = 0
        self._parts: Sequence[Part] = ()
        self._arrived: dict[int, _Arrived] = {}
        self._next = 0

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self._processes = []
        for arrived in self._arrived.values():
            for file, *_rest in arrived.pieces:
                os.close(file)
        self._arrived = {}

    def rows(self, start: int) -> Iterator[Rows]:
        """Yield all rows from `start`, brought to the columns; this is asked once."""
        source, count = self._plan.source, num_processes(self._plan)
        if not count or not self._begin(count):
            yield from self._plan.fitting.fitted(source.batches(start))
            return
        assert isinstance(source, PartedSource)
        budget = self._plan.settings.memory_budget // (8 * count)
        parts = source.parts(max(1, min(_MAX_PART_BYTES, budget)), self._plan.spilled_row_bytes)
        skip = start
        if source.num_rows is not None:
            # Where they begin is known, so those before are not read.
            parts = [Part(max(start, part.start), part.stop) for part in parts if part.stop > start]
            skip = 0
        self._parts = parts
        row = 0
        for number, part in enumerate(parts):
            before = parts[number - 1] if number else None
            row = row if before is not None and before.file == part.file else 0
            first = part.start if part.file is None else row
            for rows in self._rows_of(number, part, first):
                num_rows = num_rows_of(rows)
                row += num_rows
                if skip < num_rows:
                    yield part_of_rows(rows, skip, num_rows) if skip else rows
                skip = max(0, skip - num_rows)

    def _begin(self, count: int) -> bool:
        """Start processes; return False if they cannot have the source."""
        budget = self._plan.settings.memory_budget // (8 * count)
        piece_bytes = max(1, min(_MAX_PIECE_BYTES, budget // 4))
        # There are as many processes as threads were wanted.
        source = for_one_core(self._plan.source)
        work = (source, self._plan.fitting, piece_bytes, budget, _MAX_PIECES)
        try:
            self._setup = pickle.dumps(work)
        except Exception as error:
            # A store of the user's own may have anything in it.
            _log.info("the source is read by threads: it cannot be sent to processes (%s)", error)
            return False
        for _ in range(count):
            self._start()
        for process in self._processes:
            try:
                kind, text = json.loads(process.connection.recv_bytes())
            except (EOFError, OSError):
                raise self._death(process) from None
            if kind == UNREADY:
                _log.info("the source is read by threads: processes cannot open it (%s)", text)
                self.__exit__()
                return False
            assert kind == READY
        return True

    def _start(self) -> _Process:
        """Start a process."""
        path = os.pathsep.join(entry for entry in sys.path if entry)
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            here, there = Pipe()
            stack.callback(there.close)
            code = "from feedline.packing.engines.local_reader import main; main()"
            # Not from the working directory: a stranger's files may be there.
            python = [os.fsdecode(spawn.get_executable()), "-P"]
            popen = subprocess.Popen(
                [*python, "-c", code, str(there.fileno()), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": path, **threads},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        process = _Process(popen, here)
        self._processes.append(process)
        with suppress(OSError):
            # If it has ended already, this is found out where its answer is read.
            here.send_bytes(self._setup)
        return process

    def _rows_of(self, number: int, part: Part, row: int) -> Iterator[Rows]:
        """Yield the rows of a part; `row` is the number of its first one in its file."""
        num_taken = 0
        while True:
            arrived = self._arrived.setdefault(number, _Arrived())
            if arrived.pieces:
                rows = self._take(arrived)
                num_taken += num_rows_of(rows)
                yield rows
            elif arrived.is_failed:
                source = self._plan.source
                assert isinstance(source, PartedSource)
                for rows in self._plan.fitting.fitted(source.read(part, row)):
                    # What is taken already comes again, up to where it failed.
                    count = num_rows_of(rows)
                    if num_taken < count:
                        yield part_of_rows(rows, num_taken, count)
                    num_taken = max(0, num_taken - count)
                break
            elif arrived.is_ended:
                break
            else:
                self._ask()
                self._listen()
        del self._arrived[number]

    def _take(self, arrived: _Arrived) -> Rows:
        file, num_bytes, process = arrived.pieces.popleft()
        with open(file, "rb") as opened:
            opened.seek(0)
            rows = read_rows(opened, self._like)
        if process in self._processes:
            self._send(process, ["taken", num_bytes])
        return rows

    def _ask(self) -> None:
        """Ask processes for parts, two each, so that none waits for the next."""
        while self._next < len(self._parts):
            process = min(self._processes, key=lambda one: len(one.asked))
            if len(process.asked) >= 2:
                return
            process.asked.append(self._next)
            self._ask_for(process, self._next)
            self._next += 1

    def _ask_for(self, process: _Process, number: int) -> None:
        num_before = self._arrived.setdefault(number, _Arrived()).num_pieces
        self._send(process, ["read", number, num_before, *self._parts[number]])

    def _send(self, process: _Process, message: list[Any]) -> None:
        with suppress(OSError):
            # If it has ended, this is found out where its answer is read.
            process.connection.send_bytes(json.dumps(message).encode())

    def _listen(self) -> None:
        """Wait for what processes send, and keep it."""
        by_connection: dict[Any, _Process] = {one.connection: one for one in self._processes}
        for connection in wait(list(by_connection)):
            process = by_connection[connection]
            try:
                kind, number, num_bytes = json.loads(process.connection.recv_bytes())
                arrived = self._arrived.setdefault(number, _Arrived())
                if kind == PIECE:
                    file = recv_handle(process.connection)
                    arrived.pieces.append((file, num_bytes, process))
                    arrived.num_pieces += 1
                    continue
            except (EOFError, OSError):
                self._replace(process)
                continue
            assert kind in (ENDED, FAILED), kind
            process.asked.remove(number)
            arrived.is_ended, arrived.is_failed = kind == ENDED, kind == FAILED
            self._ask()

    def _replace(self, process: _Process) -> None:
        """Start another process in place of one that has ended, for the same parts."""
        error = self._death(process)
        self._num_deaths += 1
        if self._num_deaths > _MAX_DEATHS:
            raise error
        _log.warning("%s; what it was reading is read again", error.args[0].partition(";")[0])
        self._processes.remove(process)
        another = self._start()
        try:
            kind, text = json.loads(another.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._death(another) from None
        if kind != READY:
            raise PackError(
                f"the source cannot be opened again ({text:.300}); pack again to resume"
            )
        another.asked = process.asked
        for number in another.asked:
            self._ask_for(another, number)

    def _death(self, process: _Process) -> PackError:
        code = process.end()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        files = self._plan.source.identity.get("files", ())
        where = f"{files[0][0]}: " if len(files) == 1 else ""
        again = several(self._num_deaths + 1, "time")
        return PackError(
            f"{where}a process that reads the source was ended by {how}, {again} in all; memory "
            "ran out, or the data makes its reader fail; use num_threads=1 to read in this "
            "process, or fewer threads; finished work is kept: pack again to resume"
        )
