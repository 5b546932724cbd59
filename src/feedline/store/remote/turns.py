"""Threads that take the most urgent work first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, thread
from threading import Lock
from typing import Any


class Turns:
    """A pool of threads; of the work that waits, that with the lowest number is done next.

    Args:
        num_threads: The number of threads.
        name: What their names begin with.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name)
        self._lock = Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []

    def submit(self, turn: int, work: Callable[[], Any]) -> Future[Any]:
        """Have work done; what has the same number is done in the order in which it came."""
        future: Future[Any] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (turn, next(self._numbers), future, work))
        self._threads.submit(self._do_next)
        return future

    def _do_next(self) -> None:
        with self._lock:
            _, _, future, work = heapq.heappop(self._waiting)
        if is_at_exit():
            future.cancel()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


def is_at_exit() -> bool:
    """Whether the interpreter is about to end: it waits until its threads have done all work."""
    return bool(getattr(thread, "_shutdown", False))
