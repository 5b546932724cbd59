"""Files in the page cache: dropping them from it, and asking what is there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import random
from time import sleep

_MOST_FILES = 20_000
_NUM_PROBES = 64
_NUM_CHECKED = 8
_NUM_ATTEMPTS, _PAUSE = 5, 0.03
_APART_BYTES = 2**20
_CANNOT_SAY = "this file system does not say what is in the page cache"


def drop_from_cache(files: Sequence[Path]) -> str | None:
    """Drop files from the page cache; return why that failed, or None if they are gone.

    Args:
        files: The files; nobody must have mapped what is to be dropped.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return "this system cannot drop a file from the page cache"
    if len(files) > _MOST_FILES:
        return f"there are {len(files):,} files, and at most {_MOST_FILES:,} are dropped"
    checked = files[:: -(-len(files) // _NUM_CHECKED)]
    for attempt in range(_NUM_ATTEMPTS):
        for path in files:
            # What was written just now stays until it has been written out.
            _drop(path, sync=attempt > 0)
        # Asked only once: a byte that was asked for is read.
        if not any(_is_cached_at(path, 0.5) for path in checked):
            break
        # What is being read ahead cannot be dropped yet.
        sleep(_PAUSE)
    else:
        return "the files stay in the page cache: they lie in memory, or another process uses them"
    if not _can_say(checked[0]):
        return _CANNOT_SAY
    for path in checked:
        _drop(path)
    return None


def cached_share(files: Sequence[Path]) -> float | None:
    """Return the share of some files that seems to be in the page cache; None if unknown.

    Args:
        files: The files.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return None
    some = files[:: -(-len(files) // _NUM_PROBES)]
    places = []
    for path in some:
        # Neither near each other nor where they were before: a byte that was asked for is read.
        count = max(1, min(_NUM_PROBES // len(some), path.stat().st_size // _APART_BYTES))
        places += [(path, (part + random()) / count) for part in range(count)]
    found = sum(_is_cached_at(*place) for place in places)
    if not found and not _can_say(some[0]):
        return None
    return found / len(places)


def _drop(path: Path, *, sync: bool = False) -> None:
    with open(path, "rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_cached_at(path: Path, share: float) -> bool:
    with open(path, "rb", buffering=0) as file:
        place = int(share * os.fstat(file.fileno()).st_size)
        # A byte that is not there is read now, and without this many of its neighbours.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        try:
            return os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT) > 0
        except OSError:  # it would have to wait, or the file system cannot say
            return False


def _can_say(path: Path) -> bool:
    """Whether the file system says of a byte that was just read that it is in the cache."""
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(os.fstat(file.fileno()).st_size // 2)
        file.read(1)
    return _is_cached_at(path, 0.5)
