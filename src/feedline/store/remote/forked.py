"""Requests of a forked process, made by a helper process.

The threads of obstore do not survive a fork, and a child of a process that has used it waits for
them forever. Such a child starts a helper, a fresh interpreter, which makes its requests. Files are
written by the helper itself, so that no data goes through the pipe. The helper ends with its owner,
however that ends.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, Thread
from typing import IO, Any

from feedline.errors import RemoteError
from feedline.store.remote.requests import Requests

_LENGTH = struct.Struct("<Q")
_NUM_THREADS = 32
# The processes that have made requests themselves: this one, and those that it was forked from.
_users: set[int] = set()


def note_use() -> None:
    """Note that this process makes requests itself."""
    _users.add(os.getpid())


def is_helper_needed() -> bool:
    """Whether this process was forked from one that has made requests itself."""
    return bool(_users - {os.getpid()})


class HelperRequests:
    """The same requests as `Requests`, made by a helper process.

    Args:
        options: The keys of obstore's store, and `client_options`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
        )
        assert self._process.stdin is not None
        self._lock = Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        send(self._process.stdin, dict(options))
        Thread(target=self._receive, name="feedline-helper", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._ask(name, arguments)

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        future: Future[Any] = Future()
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                send(self._process.stdin, (number, name, arguments))
            except OSError:
                future.set_exception(_lost())
        return future.result()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                number, is_error, found = receive(self._process.stdout)
                future = self._waiting.pop(number)
                (future.set_exception if is_error else future.set_result)(found)
        except (EOFError, OSError):
            with self._lock:
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(_lost())


def _lost() -> RemoteError:
    return RemoteError("the helper process that makes requests has ended; start the worker again")


def sendable(error: BaseException) -> Exception:
    """Return an error that arrives as it is, or one with its text, so that its caller gets one."""
    try:
        arrived = pickle.loads(pickle.dumps(error))
    except Exception:
        arrived = None
    if isinstance(arrived, Exception):
        return arrived
    return RemoteError(f"a request has failed ({type(error).__name__}: {error}); try again")


def send(pipe: IO[bytes], value: Any) -> None:
    """Write a value to a pipe."""
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Return the next value of a pipe, which another process of ours has written."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def serve() -> None:
    """Make the requests that come through standard input, until it ends."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    lock = Lock()
    requests = Requests(receive(source))

    def answer(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            found, is_error = getattr(requests, name)(*arguments), False
        except BaseException as error:
            # A panic of obstore is none of Python's usual errors.
            found, is_error = sendable(error), True
        with lock:
            send(out, (number, is_error, found))

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        try:
            while True:
                threads.submit(answer, *receive(source))
        except EOFError:
            # Nobody waits for what is still running.
            os._exit(0)
