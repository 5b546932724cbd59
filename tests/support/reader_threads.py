"""Threads that read ahead: waiting for them, and telling which a test has started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Readers = Callable[[], set[threading.Thread]]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; a minute is no bound but a hang."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute in vain"
        time.sleep(0.002)


def readers_since_now() -> Readers:
    """A question: which reader threads have been started since, by whoever asks it."""
    before = _readers()
    return lambda: _readers() - before


def _readers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("feedline-reader")}
