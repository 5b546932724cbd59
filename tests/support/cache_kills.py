"""Processes that are killed before each of their changes to a cache, one after another.

Run as a script with a folder, and "new" or "damaged". A cache there has three files, which is all
that it may hold. A child gets a fourth one, or one of these that is damaged, and is killed before
its first change, another before its second, and so on until one is not killed. For each, a JSON
line says what was found after it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_files import content, get, loose, taken, unfinished
from feedline.store.cache import FileCache

LIMIT = 3000
_CHANGES = ("open", "unlink", "replace", "pwrite", "ftruncate", "utime", "close", "mkdir")


def prepare(folder: Path, is_damaged: bool) -> None:
    """Fill a cache; the file that will be got may be there, but damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    cache = FileCache(folder, LIMIT)
    for number in (1, 2, 4 if is_damaged else 3):
        path = loose(cache, number)
    if is_damaged:
        path.write_bytes(bytes(1000))


def killed_at(folder: Path, number: int) -> bool:
    """Get a file in a process that is killed before its n-th change; whether it came to that."""
    child = os.fork()
    if not child:
        try:
            _kill_before_change(number)
            get(FileCache(folder, LIMIT), 4)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _kill_before_change(number: int) -> None:
    left = [number]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in _CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    for name in ("fcntl", "flock"):
        setattr(fcntl, name, counted(getattr(fcntl, name)))


def main(folder: Path, is_damaged: bool) -> None:
    """Run all trials."""
    number = 0
    while True:
        prepare(folder, is_damaged)
        was_killed = killed_at(folder, number)
        after_kill = taken(folder)
        cache = FileCache(folder, LIMIT, wait_seconds=5)
        is_right = all(loose(cache, one).read_bytes() == content(one) for one in (4, 1, 5, 6, 2))
        total = int((folder / "total").read_bytes().split()[0])
        print(
            json.dumps(
                {
                    "was_killed": was_killed,
                    "after_kill": after_kill,
                    "is_right": is_right,
                    "left": unfinished(folder),
                    "taken": taken(folder),
                    "total": total,
                }
            )
        )
        if not was_killed:
            break
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "damaged")
