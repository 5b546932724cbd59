"""The workers of a Ray cluster on this machine, by their titles."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 120


def workers_at(task: str) -> list[int]:
    """Return the processes that are at a task, as their titles tell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(f"ray::{task}".encode()):
                found.append(int(path.parent.name))
    return found


def wait_for(is_so: Callable[[], Any]) -> Any:
    """Return what is true at last."""
    limit = time.monotonic() + SECONDS
    while not (found := is_so()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.002)
    return found
