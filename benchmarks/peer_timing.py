"""How every peer is timed: rows a second, the first batch, and a resume at 90% of an epoch.

A peer's script runs in its own environment, as `script.py write FOLDER` and `script.py read FOLDER
WORKERS`. Reading prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from format_data import BATCH_SIZE, NUM_ROWS, SECONDS

# A resume that takes longer is told as this.
_MOST_SECONDS = 30.0


def first_batch(make: Callable[[], Iterable[Any]]) -> float:
    """Return the seconds until the first batch of an epoch has come."""
    start = perf_counter()
    next(iter(make()))
    return perf_counter() - start


def rate(make: Callable[[], Iterable[Any]]) -> float:
    """Return the rows a second after the first batch, until the time is over."""
    batches = iter(make())
    next(batches)
    start, count = perf_counter(), 0
    for batch in batches:
        count += len(batch)
        if perf_counter() - start > SECONDS:
            break
    return count / (perf_counter() - start)


def replayed(make: Callable[[], Iterable[Any]]) -> float:
    """Return the seconds to reach the batch at 90% by going through all before it."""
    start = perf_counter()
    for number, _ in enumerate(make()):
        if number >= NUM_ROWS * 9 // 10 // BATCH_SIZE or perf_counter() - start > _MOST_SECONDS:
            break
    return perf_counter() - start


def run(
    write: Callable[[Path], None],
    make: Callable[[Path, int], Callable[[], Iterable[Any]]],
    resume: Callable[[Path, int], float] | None = None,
) -> None:
    """Do what the command line asks for."""
    folder = Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(folder)
        return
    num_workers = int(sys.argv[3])
    batches = make(folder, num_workers)
    found = {"first": first_batch(batches), "rate": rate(batches)}
    if len(sys.argv) > 4:
        found["resume"] = resume(folder, num_workers) if resume else replayed(batches)
    print(json.dumps(found))
