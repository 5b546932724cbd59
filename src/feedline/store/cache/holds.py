"""The files of a cache that this process holds: nobody evicts them meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from feedline.store.cache.locks import OpenFile, has_byte_locks, take

_LOCKED_BYTES = 2**62


class Holds:
    """The files that one process holds, each as often as it was asked for.

    Each held file is a shared lock, which the kernel gives back when the process ends. It is a lock
    on one byte of the file `holds`, at an offset that the file's name gives, so that thousands of
    files need one open file. Where the system has no such locks, it is a file for each.

    Args:
        folder: The folder of the cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = folder / "holds"
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._files: dict[str, OpenFile] = {}
        self._bytes: OpenFile | None = None

    def hold(self, path: Path, *, is_coming: bool = False) -> bool:
        """Hold the file at a path; False if there is none, or somebody is removing it.

        Args:
            path: The file.
            is_coming: The file is held before it is there.
        """
        with self._lock:
            count = self._counts.get(path.name, 0)
            try:
                if not count and not self._share(path.name):
                    return False
            except FileNotFoundError:
                # There is no folder, and so no file.
                if is_coming:
                    raise
                return False
            if not is_coming and not os.path.lexists(path):
                if not count:
                    self._unshare(path.name)
                return False
            self._counts[path.name] = count + 1
            return True

    def let_go(self, path: Path) -> None:
        """Take one hold of a file back; do nothing if there is none."""
        with self._lock:
            count = self._counts.get(path.name, 0)
            if count > 1:
                self._counts[path.name] = count - 1
            elif count == 1:
                del self._counts[path.name]
                touch(path)
                self._unshare(path.name)

    def let_all_go(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._counts.clear()
            self._bytes = None
            self._files.clear()

    def _share(self, name: str) -> bool:
        if not has_byte_locks(self._folder):
            self._files[name] = _shared_file(self._folder / f"hold-{name[:32]}")
            return True
        if self._bytes is None or not self._bytes.is_at(self._place):
            # Somebody has removed the folder: whoever comes later looks at a new file.
            self._bytes = OpenFile(self._place, os.O_RDWR | os.O_CREAT)
            for other in self._counts:
                self._bytes.lock_byte(_byte_of(other), shared=True)
        return self._bytes.lock_byte(_byte_of(name), shared=True)

    def _unshare(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            path = self._folder / f"hold-{name[:32]}"
            if file.lock(wait=False) and file.is_at(path):
                path.unlink()
        if self._bytes is not None:
            self._bytes.unlock_byte(_byte_of(name))


@contextmanager
def kept_from_others(folder: Path, name: str) -> Iterator[bool]:
    """Keep others from holding a file for a while; False if somebody holds it already."""
    if has_byte_locks(folder):
        file = OpenFile(folder / "holds", os.O_RDWR | os.O_CREAT)
        try:
            yield file.lock_byte(_byte_of(name))
        finally:
            file.close()
        return
    path = folder / f"hold-{name[:32]}"
    lock = take(path, wait=False)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            lock.close()


def touch(path: Path) -> None:
    """Note that a file is used now; its time of modification, which is its seal, stays."""
    # Files of another user are used all the same, and one that is gone needs no note.
    with suppress(PermissionError, FileNotFoundError):
        times = (time.time_ns(), os.lstat(path).st_mtime_ns)
        os.utime(path, ns=times, follow_symlinks=False)


def _byte_of(name: str) -> int:
    return int(name[:32], 16) % _LOCKED_BYTES


def _shared_file(path: Path) -> OpenFile:
    """Return a lock that others share; whoever has it alone is only about to remove it."""
    while True:
        file = OpenFile(path, os.O_RDWR | os.O_CREAT)
        file.lock(shared=True)
        if file.is_at(path):
            return file
