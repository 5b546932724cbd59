"""Forking, and ending a process, while other threads run.

Before Python 3.12, a forked process waits forever if another thread was just being registered with
the interpreter: it inherits a lock that is held, and nobody is there to give it back. torch's own
threads register when they are done with a tensor. So a worker that is forked right after a
collective might never begin, and the run would hang.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_IS_SAFE = sys.version_info >= (3, 12)
# A thread that computes does not register; this is how long to take it for one that may.
_MOST_SECONDS = 0.2
# At the end, what is left to do is little, but a busy machine may take long over it.
_MOST_SECONDS_AT_EXIT = 2.0
_SECONDS_BETWEEN_LOOKS = 0.0005


def wait_for_threads(most_seconds: float = _MOST_SECONDS) -> None:
    """Wait until no other thread of this process runs, for a short time at most."""
    if _IS_SAFE:
        return
    end = time.monotonic() + most_seconds
    while _others_run() and time.monotonic() < end:
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _others_run() -> bool:
    """Whether a thread other than this one runs, or waits for a processor or a disk."""
    try:
        threads = os.listdir(_TASKS)
    except OSError:  # not on Linux
        return False
    mine = str(threading.get_native_id())
    return any(_state(thread) in ("R", "D") for thread in threads if thread != mine)


def _state(thread: str) -> str:
    try:
        return (_TASKS / thread / "stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


if not _IS_SAFE:
    atexit.register(wait_for_threads, _MOST_SECONDS_AT_EXIT)
