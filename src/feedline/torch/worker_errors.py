"""One clear error when a worker of torch's loader was killed.

What torch raises then depends on the moment: a RuntimeError that names a process, or whatever comes
from a batch whose memory or socket is gone with its worker (FileNotFoundError, ConnectionError,
EOFError, or an error of unpickling).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.errors import WorkerError

# A worker's files are gone a little before it counts as ended.
_SECONDS_TO_END = 2.0


@contextmanager
def worker_errors(batches: Any) -> Iterator[None]:
    """Raise a WorkerError in place of what an iterator of torch's loader makes of a killed worker.

    `batches` is that iterator, or None while it is made for the first time.
    """
    try:
        yield
    except StopIteration:
        raise
    except Exception as error:
        raise_if_killed(batches, error)
        raise


def raise_if_killed(batches: Any, error: Exception) -> None:
    """Raise a WorkerError if an error came from a killed worker of torch's loader."""
    if found := _look_for_death(batches, error):
        raise WorkerError(found) from error


def _look_for_death(batches: Any, error: Exception) -> str | None:
    workers = getattr(batches, "_workers", ())
    for _ in workers:
        try:
            return _death(batches, error)
        except RuntimeError:
            continue  # torch's handler of the signal for an ended worker raises wherever we are.
    return _death(batches, error)


def _death(batches: Any, error: Exception) -> str | None:
    """Return what happened to a worker, if that is the reason of an error."""
    workers = getattr(batches, "_workers", ())
    # An error of the user's dataset comes from a worker that lives.
    if not workers or str(error).startswith("Caught "):
        return None
    end = time.monotonic() + (_SECONDS_TO_END if _may_come_early(error) else 0)
    while True:
        for number, worker in enumerate(workers):
            code = worker.exitcode
            if code or (code == 0 and "exited unexpectedly" in str(error)):
                return _words(number, worker.pid, code)
        if time.monotonic() >= end:
            return None
        time.sleep(0.01)


def _may_come_early(error: Exception) -> bool:
    """Whether an error may come before its worker counts as ended."""
    return isinstance(error, OSError | EOFError) or "Pin memory thread" in str(error)


def _words(number: int, pid: int, code: int) -> str:
    how = f"ended with exit code {code}"
    remedy = "look for its own message above"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "an unknown one"
        how = f"was killed by signal {-code} ({name})"
        remedy = (
            "if the machine or the job ran out of memory, use fewer workers, a smaller batch or a "
            "smaller prefetch_factor"
        )
    return (
        f"worker {number} (process {pid}) {how} before its batch arrived; {remedy}. The state is "
        "at the last delivered batch: load it to resume"
    )
