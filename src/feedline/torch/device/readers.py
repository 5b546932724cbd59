"""The processes that read for a device, as the training process sees them."""

from __future__ import annotations

import pickle
import select
import socket
import subprocess
import sys
import weakref
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from feedline.feed.reader_process import (
    BEGIN,
    END,
    ENDED,
    FREE,
    ReaderPass,
    ReaderSetup,
    ReadSlab,
)
from feedline.store import Store

# The same modules are found there as here, also those beside the user's script.
_CODE = "import sys; sys.path[:] = {path!r}; from feedline.feed.reader_process import main; main()"


class ReaderGoneError(Exception):
    """A reader has failed, or its process has ended."""


class Reader:
    """One process that reads, with its pieces of the shared memory.

    Args:
        setup: What it needs once.
    """

    def __init__(self, setup: ReaderSetup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = _CODE.format(path=sys.path)
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), setup.store, setup.file],
            )
        self.connection = Connection(ours.detach())
        weakref.finalize(self, _end, self.process, self.connection)
        self._poll = select.poll()
        self._poll.register(self.connection.fileno(), select.POLLIN)
        #: Pieces whose copy may not be over, oldest first, with the event after the copy.
        self.in_flight: deque[tuple[int, Any]] = deque()
        self._is_ready = False
        self._is_in_pass = False
        self._send(pickle.dumps(setup))

    @property
    def is_ready(self) -> bool:
        """Whether the process has begun to listen."""
        if not self._is_ready and self.has_message():
            error = self._receive()[1:].decode()
            if error:
                raise ReaderGoneError(error)
            self._is_ready = True
        return self._is_ready

    def has_message(self) -> bool:
        """Whether something has come from the process, or its end."""
        # Cheaper than `connection.poll`, which makes a new one each time.
        return bool(self._poll.poll(0))

    def begin(self, asked: ReaderPass) -> None:
        """Begin a pass."""
        self.end()
        while self._is_in_pass:
            # What was read ahead for the pass before.
            self._is_in_pass = self._receive()[:1] != ENDED
        while self.in_flight:
            _wait_for(self.in_flight.popleft()[1])
        self._send(BEGIN + pickle.dumps(asked))
        self._is_in_pass = True

    def end(self) -> None:
        """Ask to end the pass; what was read for it meanwhile is dropped when the next begins."""
        if self._is_in_pass:
            self._send(END)

    def next_slab(self) -> ReadSlab:
        """Return the next slab of the pass; wait for it if need be."""
        while self.in_flight and not self.has_message():
            # The process may wait for just this piece.
            _wait_for(self.in_flight[0][1])
            self.give_back()
        message = self._receive()
        if message[:1] == ENDED:
            self._is_in_pass = False
            raise ReaderGoneError(message[1:].decode() or "a pass ended before its last slab")
        return ReadSlab.unpacked(message)

    def give_back(self) -> None:
        """Let the process use the pieces again whose copies are over."""
        while self.in_flight:
            piece, event = self.in_flight[0]
            if event is not None and not event.query():
                return
            self.in_flight.popleft()
            self._send(FREE + b"%d" % piece)

    def _send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise self._gone() from None

    def _receive(self) -> bytes:
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._gone() from None

    def _gone(self) -> ReaderGoneError:
        # The system closes its connection a moment before the process is over.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        return ReaderGoneError(f"its process has ended (exit code {self.process.returncode})")

    def close(self) -> None:
        """End the process."""
        _end(self.process, self.connection)


def _wait_for(event: Any) -> None:
    if event is not None:
        event.synchronize()


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    if not connection.closed:
        connection.close()
    # It holds nothing that could be lost.
    process.kill()
    process.wait()


def pickled(store: Store) -> bytes | None:
    """Return what another process opens the same store with; None if it cannot."""
    try:
        return pickle.dumps(store)
    except Exception:
        return None
