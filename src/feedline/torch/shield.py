"""Loader workers that signals to the run do not reach.

A job's end is announced to all of its processes. The main one wants to save a checkpoint then, and
may need its workers for the last batches. So workers pass over such signals, unless they come from
the process that started them: that is how torch ends a worker that hangs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Shielded", "shield_worker"]

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def shield_worker(worker: int) -> None:
    """Pass over the signals that stop a run: a `worker_init_fn` for torch's DataLoader."""
    # torch installs handlers of its own in workers, but a blocked signal reaches no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    watch = threading.Thread(
        target=_watch, args=(os.getppid(),), name="feedline-shield", daemon=True
    )
    watch.start()


def _watch(parent: int) -> None:
    while True:
        found = signal.sigwaitinfo(_STOPS)
        if found.si_signo == signal.SIGTERM and found.si_pid == parent:
            os._exit(1)


@dataclass(frozen=True)
class Shielded:
    """A `worker_init_fn` that shields the worker and then calls another one."""

    inner: Callable[[int], Any] | None = None

    def __call__(self, worker: int) -> None:
        shield_worker(worker)
        if self.inner is not None:
            self.inner(worker)

    @classmethod
    def around(cls, inner: Any) -> Shielded:
        """Return a shield around another `worker_init_fn`, if it is none itself."""
        return inner if isinstance(inner, Shielded) else cls(inner)
