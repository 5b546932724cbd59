"""Locks between processes, which the kernel gives back when their owner ends in any way.

A lock belongs to an open file. A forked child would share the open file and so keep the lock alive,
even if it never uses it: what is open here is closed in children.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from weakref import WeakSet

from feedline.errors import CacheError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# The lock of bytes that belongs to an open file, and its `struct flock`; the same on all of Linux.
_SET_LOCK = 37
_LOCK = struct.Struct("hhqqi4x")
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class OpenFile:
    """An open file that can be locked; it is closed with its last reference, and in children.

    Args:
        path: The file. A link is refused, and a pipe is not waited for.
        flags: Of `os.open`.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = -1
        # Guarded, so that no child can get a descriptor that is not known here yet.
        with _guard:
            self.descriptor = os.open(path, flags | _FLAGS, 0o666)
            _open_files.add(self)
        self._identity: tuple[int, int] | None = None

    def lock(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock the file; False if another has it and this one does not wait."""
        if fcntl is None:
            raise CacheError("a cache needs file locks, which this system does not have; use Linux")
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_byte(self, number: int, *, shared: bool = False) -> bool:
        """Lock one byte; False if another open file has it locked."""
        try:
            self._set_byte(number, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def unlock_byte(self, number: int) -> None:
        """Give the lock of one byte back."""
        self._set_byte(number, fcntl.F_UNLCK)

    def _set_byte(self, number: int, kind: int) -> None:
        fcntl.fcntl(self.descriptor, _SET_LOCK, _LOCK.pack(kind, os.SEEK_SET, number, 1, 0))

    def is_at(self, path: Path) -> bool:
        """Whether this file is the one at a path: not removed, and not replaced."""
        if self._identity is None:
            mine = os.fstat(self.descriptor)
            self._identity = mine.st_dev, mine.st_ino
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        return self.descriptor >= 0 and self._identity == (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Close the file, which gives its lock back."""
        with _guard:
            descriptor, self.descriptor = self.descriptor, -1
            _open_files.discard(self)
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def take(path: Path, *, wait: bool) -> OpenFile | None:
    """Return the file at `path`, made if need be, locked for this owner alone.

    None if another has it and this one does not wait. Whoever has the lock may remove the file.
    """
    while True:
        file = OpenFile(path, os.O_RDWR | os.O_CREAT)
        try:
            if not file.lock(wait=wait):
                file.close()
                return None
            if file.is_at(path):
                return file
        except BaseException:
            file.close()
            raise
        # The owner before has removed it, so that others may have locked a new one.
        file.close()


@contextmanager
def locked(path: Path, *, remove: bool = False) -> Iterator[OpenFile]:
    """Wait for the lock at `path` and have it for a while; then remove its file, if asked to."""
    file = take(path, wait=True)
    assert file is not None
    try:
        yield file
    finally:
        try:
            # Not in a child that was forked meanwhile: the lock is its parent's.
            if remove and file.descriptor >= 0:
                path.unlink(missing_ok=True)
        finally:
            file.close()


@cache
def has_byte_locks(folder: Path) -> bool:
    """Whether bytes of a file can be locked by an open file, as on Linux, not by a process."""
    if sys.platform != "linux":
        return False
    file = OpenFile(folder / "holds", os.O_RDWR | os.O_CREAT)
    try:
        file.unlock_byte(0)
        return True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        file.close()


# Closing may be asked for by the garbage collector, while this very thread has the guard.
_guard = threading.RLock()
_open_files: WeakSet[OpenFile] = WeakSet()


def _before_fork() -> None:
    _guard.acquire()


def _after_fork_in_parent() -> None:
    _guard.release()


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.RLock()
    for file in list(_open_files):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
