"""Loader workers that ignore signals to the run.

A job's end is announced to all of its processes. The main one wants to save a checkpoint then, and
may need its workers for the last batches. So workers ignore such signals, unless they come from the
process that started them: that is how torch ends a worker that hangs. And they end with that
process, whenever it is killed: torch's own watch begins late, and takes whoever adopted the worker
for its parent.
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

from feedline.store.processes import ask_for_death_signal
from feedline.torch.forking import wait_for_threads

# Where no signal tells of the parent's end, it is looked for this often.
_SECONDS_BETWEEN_LOOKS = 2.0
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
    parent = _Parent()
    # Not SIGTERM: this one also comes when only the thread ends that has started the worker.
    ask_for_death_signal(signal.SIGHUP)
    # Afterwards, so that an end just before is seen too.
    parent.end_with_it()
    name = "feedline-shield"
    threading.Thread(target=_watch, args=(parent, signals), name=name, daemon=True).start()


class _Parent:
    """The process that a worker is for, and whether it is still there."""

    def __init__(self) -> None:
        self._meant = multiprocessing.parent_process()
        self._adopter = os.getppid()
        self.pid = self._adopter
        if self._meant is not None and self._meant.pid is not None:
            self.pid = self._meant.pid
        # A fork server or a wrapper may stand between; then a pipe tells when the process that was
        # meant ends. It does not after a fork, where the other workers hold the pipe too.
        started = getattr(multiprocessing.current_process(), "_start_method", None)
        started = started or multiprocessing.get_start_method(allow_none=True)
        if started == "fork":
            self._adopter, self._meant = self.pid, None

    def end_with_it(self) -> None:
        """End this process if its parent is gone."""
        is_gone = os.getppid() != self._adopter
        if is_gone or (self._meant is not None and not self._meant.is_alive()):
            os._exit(0)


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
    else:
        wait_for_threads()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(parent: _Parent, signals: tuple[int, ...]) -> None:
    while True:
        found = signal.sigtimedwait(signals, _SECONDS_BETWEEN_LOOKS)
        parent.end_with_it()
        if found is None or found.si_signo != signal.SIGTERM or found.si_pid != parent.pid:
            continue
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
