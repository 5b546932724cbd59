"""The files of a cache: what they take together, and which of them may go.

All changes are made under one lock of the folder, by whoever makes them. The total stands in the
lock's own file, so that not every change counts all files. It is raised before a file appears and
lowered after one is gone: a process that is killed in between leaves it too high, never too low. It
is counted anew by each process that begins, and whenever it says that there is no room.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from feedline.store.cache.holds import Holds, kept_from_others
from feedline.store.cache.locks import OpenFile, locked, take

_FILE = re.compile(r"[0-9a-f]{32}(?:\.[A-Za-z0-9_]{1,16})?")
_PART = re.compile(r"part-(\d{1,19})-([0-9a-f]{32})(?:\.[A-Za-z0-9_]{1,16})?")
_LOCK = re.compile(r"(?:lock|hold)-[0-9a-f]{32}")
_TOTAL_BYTES = 29


class Shelf:
    """The files in the folder of a cache, as one process sees them.

    Args:
        folder: The folder.
        limit_bytes: The number of bytes that all files may have together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.num_evictions = 0
        # The last use, name and size of files, latest first; None before they were counted. What
        # came or was used after the count is younger than all of these that were not.
        self._oldest_last: list[tuple[int, str, int]] | None = None

    def key_lock(self, digest: str) -> Path:
        """Return the lock of the one who fetches a file."""
        return self.folder / f"lock-{digest}"

    def begin(self) -> None:
        """Count the files, once in each process; this removes what killed processes have left.

        A folder that somebody has removed is made again.
        """
        if self._oldest_last is None or not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as lock:
                _write_total(lock, self._count())

    def reserve(self, name: str, num_bytes: int) -> tuple[Path | None, int]:
        """Return where to write a file, once there is room, and the bytes of all files.

        Older files are evicted; None if too many of them are in use. The caller has the lock of the
        file's key.
        """
        part = self.folder / f"part-{num_bytes}-{name}"
        with self._locked() as lock:
            total = _read_total(lock)
            if total is None:
                total = self._count()
            if part.exists():
                # Left by a process that was killed.
                part.unlink()
                total = self._count()
            if total + num_bytes > self.limit_bytes:
                total = self._evict(total, self.limit_bytes - num_bytes)
            if total + num_bytes > self.limit_bytes:
                total = self._evict(self._count(), self.limit_bytes - num_bytes)
            has_room = total + num_bytes <= self.limit_bytes
            _write_total(lock, total + num_bytes if has_room else total)
            if has_room:
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return part if has_room else None, total

    def publish(self, part: Path, path: Path, holds: Holds) -> None:
        """Let a file that is whole appear under its name, held by this process."""
        with self._locked():
            # Whoever evicts has the lock of the folder too, so that nobody can be in the way.
            is_held = holds.hold(path, is_coming=True)
            assert is_held
            try:
                os.replace(part, path)
            except BaseException:
                holds.let_go(path)
                raise

    def give_up(self, part: Path, num_bytes: int) -> None:
        """Remove what has arrived of a file."""
        with self._locked() as lock:
            part.unlink(missing_ok=True)
            total = _read_total(lock)
            # On a full disk, a total that stays too high is counted anew sooner.
            with suppress(OSError):
                if total is not None:
                    _write_total(lock, max(0, total - num_bytes))

    def remove(self, file: OpenFile, path: Path) -> None:
        """Remove a damaged file, unless another one has taken its place."""
        with self._locked() as lock:
            if file.is_at(path):
                path.unlink()
                # The size that was counted may be another one than that of the damaged file.
                os.ftruncate(lock.descriptor, 0)

    @contextmanager
    def _locked(self) -> Iterator[OpenFile]:
        with locked(self.folder / "total") as lock:
            yield lock

    def _count(self) -> int:
        """Return the bytes of all files; remove what was left by processes that were killed."""
        total = 0
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                # What another process removes at this moment needs no room.
                with suppress(FileNotFoundError):
                    if _FILE.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        total += status.st_size
                        found.append((status.st_atime_ns, entry.name, status.st_size))
                    elif part := _PART.fullmatch(entry.name):
                        if not _remove_if_left(self.key_lock(part[2]), Path(entry.path)):
                            size = entry.stat(follow_symlinks=False).st_size
                            total += max(size, int(part[1]))
                    elif _LOCK.fullmatch(entry.name):
                        _remove_if_left(Path(entry.path))
        self._oldest_last = sorted(found, reverse=True)
        return total

    def _evict(self, total: int, most: int) -> int:
        """Remove files, least recently used first, until at most `most` bytes are left."""
        oldest_last = self._oldest_last or []
        while total > most and oldest_last:
            last_use, name, size = oldest_last.pop()
            if self._remove_unless_used(self.folder / name, last_use, size):
                total -= size
                self.num_evictions += 1
        return total

    def _remove_unless_used(self, path: Path, last_use: int, size: int) -> bool:
        """Remove a file; False if it is in use, or has been used or changed since the count."""
        # Somebody else may remove it at this moment, or it may not be ours to remove.
        with (
            kept_from_others(self.folder, path.name) as is_free,
            suppress(FileNotFoundError, PermissionError),
        ):
            status = os.lstat(path)
            if is_free and (status.st_atime_ns, status.st_size) == (last_use, size):
                path.unlink()
                return True
        return False


def _remove_if_left(path: Path, part: Path | None = None) -> bool:
    """Remove the lock of a process that was killed, and what it fetched; False if it lives."""
    lock = take(path, wait=False)
    if lock is None:
        return False
    try:
        if part is not None:
            part.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    finally:
        lock.close()
    return True


def _read_total(lock: OpenFile) -> int | None:
    """Return the total, or None if it was never counted or is damaged."""
    text = os.pread(lock.descriptor, _TOTAL_BYTES + 1, 0)
    number, _, check = text.partition(b" ")
    if len(text) != _TOTAL_BYTES or not number.isdigit() or check != _check_of(number):
        return None
    return int(number)


def _write_total(lock: OpenFile, total: int) -> None:
    number = b"%020d" % total
    os.pwrite(lock.descriptor, number + b" " + _check_of(number), 0)


def _check_of(number: bytes) -> bytes:
    return b"%08x" % zlib.crc32(number)
