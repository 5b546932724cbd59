"""Loader workers that ignore signals to the run.

A job's end is announced to all of its processes. The main one wants to save a checkpoint then, and
may need its workers for the last batches. So workers ignore such signals, unless they come from the
process that started them: that is how torch ends a worker that hangs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import DataLoader

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def prepare(
    loader: Any, signals: tuple[int, ...]
) -> Callable[[], AbstractContextManager[None]] | None:
    """Make workers of a torch DataLoader ignore these signals; return the context to start them
    in."""
    if not isinstance(loader, DataLoader):
        return None
    loader.worker_init_fn = Shielded.around(loader.worker_init_fn, signals)
    return lambda: born_shielded(loader)


def shield_worker(worker: int) -> None:
    """Pass over the signals that stop a run: a `worker_init_fn` for torch's DataLoader.

    Args:
        worker: The number of the worker, which torch gives.
    """
    _shield(_STOPS)


def _shield(signals: tuple[int, ...]) -> None:
    # Blocked, a signal waits for the watch; threads from before, which do not block it, ignore it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    pid = os.getppid() if parent is None or parent.pid is None else parent.pid
    name = "feedline-shield"
    threading.Thread(target=_watch, args=(pid, signals), name=name, daemon=True).start()


@contextmanager
def born_shielded(loader: Any) -> Iterator[None]:
    """Start the workers of a loader with these signals blocked.

    Signals to this process in that time are not lost: they are delivered afterwards.
    """
    if not getattr(loader, "num_workers", 0):
        yield
        return
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    if context.get_start_method() != "fork":
        # Started later, the tracker would unblock some of them.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(parent: int, signals: tuple[int, ...]) -> None:
    while True:
        found = signal.sigwaitinfo(signals)
        if found.si_signo == signal.SIGTERM and found.si_pid == parent:
            # As torch does: a failure would be raised in the parent.
            os._exit(0)


@dataclass(frozen=True)
class Shielded:
    """A `worker_init_fn` that shields the worker and then calls another one."""

    inner: Callable[[int], Any] | None = None
    more: tuple[int, ...] = ()

    def __call__(self, worker: int) -> None:
        _shield(tuple({*_STOPS, *self.more}))
        if self.inner is not None:
            self.inner(worker)

    @classmethod
    def around(cls, inner: Any, more: tuple[int, ...] = ()) -> Shielded:
        """Return a shield around another `worker_init_fn`, against these signals too."""
        if isinstance(inner, Shielded):
            return cls(inner.inner, (*inner.more, *more))
        return cls(inner, more)
