"""Files for caches: what is in them, getting them, and what lies in a cache's folder."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedline.store.cache import FileCache

__all__ = ["content", "get", "listed", "loose", "still", "taken", "unfinished", "whole"]


def content(number: int, num_bytes: int = 1000) -> bytes:
    """Return the bytes of a file; those of different files differ everywhere."""
    return random.Random(number).randbytes(num_bytes)


def get(cache: FileCache, number: int, num_bytes: int = 1000) -> Path:
    """Get a file that is fetched at once; it stays held."""
    data = content(number, num_bytes)
    return cache.get(f"file {number}", num_bytes, lambda part: part.write_bytes(data))


def loose(cache: FileCache, number: int, num_bytes: int = 1000) -> Path:
    """Get a file and let it go."""
    path = get(cache, number, num_bytes)
    cache.let_go(f"file {number}")
    return path


@contextmanager
def still(folder: Path) -> Iterator[None]:
    """Let nothing come or go in a cache for a moment, so that a look at it is consistent."""
    with open(folder / "total", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def listed(folder: Path) -> dict[str, int]:
    """Return the sizes of all files in a cache but those of its total and its locks."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    for name in ("total", "holds"):
        found.pop(name, None)
    return found


def whole(folder: Path) -> list[str]:
    """Return the names of the files of a cache that are whole."""
    return [name for name in listed(folder) if not name.startswith(("part", "lock", "hold"))]


def unfinished(folder: Path) -> list[str]:
    """Return the names of what processes need that fetch files, or have left."""
    return [name for name in listed(folder) if name.startswith(("part", "lock", "hold"))]


def taken(folder: Path) -> int:
    """Return the bytes that all files of a cache take, also those that are not whole yet."""
    return sum(listed(folder).values())
