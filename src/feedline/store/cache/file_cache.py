"""A cache of whole files that the processes of a node share."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from feedline.errors import (
    CacheError,
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    check_integer,
    check_positive,
)
from feedline.store.cache.holds import Holds, touch
from feedline.store.cache.locks import OpenFile, locked
from feedline.store.cache.meters import CacheMeters
from feedline.store.cache.seals import (
    check_digest,
    digest_of,
    is_sealed,
    kind_of,
    renew_seal,
    seal,
)
from feedline.store.cache.shelf import Shelf
from feedline.words import bytes_in_words, path_shown, several

_ENDING = re.compile(r"\.[A-Za-z0-9_]{1,16}\Z")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.25


def default_folder() -> Path:
    """Return the folder `objects` in `$FEEDLINE_CACHE`, or in `~/.cache/feedline`."""
    given = os.environ.get("FEEDLINE_CACHE")
    return (Path(given) if given else Path("~/.cache/feedline").expanduser()) / "objects"


class NoRoomError(CacheError):
    """All that a cache keeps is in use, so that there is no room for another file."""


class _Here:
    """What a cache has in one process."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.meters = CacheMeters()
        self.holds = Holds(folder)
        self.shelf = Shelf(folder, limit_bytes)


class FileCache:
    """A folder of whole files, shared by all processes of a node, with a limit of bytes.

    It can be pickled, and used after a fork and by several threads. What a process holds is let go
    when it ends, however it ends; a forked child holds nothing at first.

    Args:
        folder: The folder; it is made if need be.
        limit_bytes: The number of bytes that all files may have together.
        wait_seconds: How long to wait for other users of the cache to let files go, if there is no
            room for another one.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, FileCache(folder, 1000) as cache:
        ...     path = cache.get("a", 5, lambda part: part.write_bytes(b"hello"))
        ...     path.read_bytes(), cache.meters.num_misses
        (b'hello', 1)
    """

    def __init__(
        self, folder: str | os.PathLike[str], limit_bytes: int, *, wait_seconds: float = 120
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.limit_bytes = check_integer("limit_bytes", limit_bytes, 1)
        self.wait_seconds = check_positive("wait_seconds", wait_seconds)
        self._of_process: _Here | None = None

    def get(
        self,
        key: str,
        num_bytes: int,
        fetch: Callable[[Path], object],
        *,
        digest: str | None = None,
    ) -> Path:
        """Return the path of a whole file, which this process holds until it lets it go.

        If it is not there, or damaged, one process fetches it while the others wait. Each `get`
        needs a `let_go`, once the file is no longer open or mapped.

        Args:
            key: Any text that names the content. If it ends like a file, for instance with
                `.parquet`, the path does too.
            num_bytes: The size of the file.
            fetch: Writes the file to the path that it is given, at most `num_bytes` of it. What it
                raises is raised here, and nothing is left of the file. It may return the digest of
                what it wrote, of the kind of `digest`, or `crc32` if that is None; else the file is
                read once more.
            digest: The name of a hash function of hashlib, or `crc32`, a colon, and the hash of the
                content as hexadecimal digits.
        """
        num_bytes = check_integer("num_bytes", num_bytes, 0)
        digest = check_digest(digest)
        self.check_room(num_bytes, what="one file")
        path = self._path(key)
        here = self._here()
        with self._reported():
            here.shelf.begin()
            if self._hold_checked(here, key, path, num_bytes, digest):
                return path
        with self._locked(here, path):
            with self._reported():
                if self._hold_checked(here, key, path, num_bytes, digest, remove=True):
                    return path
            self._fetch(here, key, path, num_bytes, fetch, digest)
        return path

    def find(
        self, key: str, num_bytes: int, *, digest: str | None = None, is_open: bool = False
    ) -> Path | None:
        """Return what `get` returns if that takes no time: the file is there, and was checked.

        Args:
            key: What `get` takes.
            num_bytes: What `get` takes.
            digest: What `get` takes.
            is_open: This process has had the file open since it was checked, and reads no other: it
                is held and looked at no more.
        """
        path = self._path(key)
        with self._reported():
            here = self._here()
            if is_open:
                if not here.holds.hold(path):
                    return None
                with here.lock:
                    here.meters.num_hits += 1
                return path
            digest = check_digest(digest)
            if not self.folder.is_dir():
                return None
            here.shelf.begin()
            if self._hold_checked(here, key, path, num_bytes, digest, only_sealed=True):
                return path
        return None

    def hold(self, key: str) -> bool:
        """Keep a file from being evicted; False if it is not there."""
        with self._reported():
            return self._here().holds.hold(self._path(key))

    def let_go(self, key: str) -> None:
        """Take one `get` or `hold` back; if this process holds no such file, do nothing."""
        with self._reported():
            self._here().holds.let_go(self._path(key))

    def check_room(self, num_bytes: int, *, what: str = "one window") -> None:
        """Raise if that many bytes can never be in the cache together.

        Args:
            num_bytes: The bytes of the files that are needed at the same time.
            what: What needs them, for the message.
        """
        if check_integer("num_bytes", num_bytes, 0) > self.limit_bytes:
            raise InvalidValueError(
                f"limit_bytes={self.limit_bytes} must be at least {num_bytes}, the number of bytes "
                f"that {what} needs ({bytes_in_words(num_bytes)}); set a higher limit, which is "
                "cache_limit= of feedline.open, or use smaller windows"
            )

    @property
    def meters(self) -> CacheMeters:
        """What this process has got from the cache so far."""
        here = self._here()
        with here.lock:
            return replace(here.meters, num_evictions=here.shelf.num_evictions)

    def close(self) -> None:
        """Let go of all files that this process holds."""
        self._here().holds.let_all_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_process": None}

    def __repr__(self) -> str:
        return f"FileCache({path_shown(self.folder)!r}, limit_bytes={self.limit_bytes})"

    def _here(self) -> _Here:
        here = self._of_process
        if here is None or here.pid != os.getpid():
            with _making:
                here = self._of_process
                if here is None or here.pid != os.getpid():
                    here = self._of_process = _Here(self.folder, self.limit_bytes)
        return here

    def _path(self, key: str) -> Path:
        if not isinstance(key, str):
            raise InvalidValueError(f"key={key!r:.80} must be a text")
        return _path_in(self.folder, key)

    @contextmanager
    def _locked(self, here: _Here, path: Path) -> Iterator[None]:
        """Be the one who fetches a file."""
        with self._reported():
            lock = locked(here.shelf.key_lock(path.name[:32]), remove=True)
            lock.__enter__()
        try:
            yield
        finally:
            with self._reported():
                lock.__exit__(None, None, None)

    def _hold_checked(
        self,
        here: _Here,
        key: str,
        path: Path,
        num_bytes: int,
        digest: str | None,
        *,
        remove: bool = False,
        only_sealed: bool = False,
    ) -> bool:
        """Hold a file if it is there and as it arrived; remove it otherwise, if asked to."""
        if not here.holds.hold(path):
            return False
        is_whole = False
        try:
            file = OpenFile(path, os.O_RDONLY)
            try:
                is_whole = _is_whole(file, key, num_bytes, digest, only_sealed)
                if remove and not is_whole:
                    here.shelf.remove(file, path)
            finally:
                file.close()
        except OSError as error:
            # It was removed by force, or is a link, which is as good as a damaged file.
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
        finally:
            if not is_whole:
                here.holds.let_go(path)
        if is_whole:
            touch(path)
        with here.lock:
            here.meters.num_hits += is_whole
            here.meters.num_damaged += remove and not is_whole
        return is_whole

    def _fetch(
        self,
        here: _Here,
        key: str,
        path: Path,
        num_bytes: int,
        fetch: Callable[[Path], object],
        digest: str | None,
    ) -> None:
        with self._reported():
            part = self._wait_for_room(here, path.name, num_bytes)
        try:
            try:
                found = fetch(part)
            except OSError as error:
                if error.errno in _FULL and not isinstance(error, FeedlineError):
                    raise self._error(error) from error
                raise
            with self._reported():
                self._check_arrived(part, key, num_bytes, digest, found)
                here.shelf.publish(part, path, here.holds)
        except BaseException:
            # Not in a child that was forked by `fetch`. What cannot be removed now, the next one
            # that counts the files removes.
            if here.pid == os.getpid():
                with suppress(OSError):
                    here.shelf.give_up(part, num_bytes)
            raise
        with here.lock:
            here.meters.num_misses += 1
            here.meters.num_bytes_fetched += num_bytes

    def _wait_for_room(self, here: _Here, name: str, num_bytes: int) -> Path:
        end = time.monotonic() + self.wait_seconds
        wait = _FIRST_WAIT
        while True:
            part, total = here.shelf.reserve(name, num_bytes)
            if part is not None:
                return part
            if time.monotonic() > end:
                raise NoRoomError(
                    f"{self.folder}: has no room for {several(num_bytes, 'byte')}: "
                    f"{several(total, 'byte')} of limit_bytes={self.limit_bytes} are in use by "
                    f"running processes, and none was let go within {self.wait_seconds:g} s; set "
                    f"limit_bytes to at least {total + num_bytes}, or use smaller windows"
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _check_arrived(
        self, part: Path, key: str, num_bytes: int, digest: str | None, found: object
    ) -> None:
        """Seal a file that has arrived, or raise if it is damaged."""
        file = OpenFile(part, os.O_RDONLY)
        try:
            size = os.fstat(file.descriptor).st_size
            if size != num_bytes:
                raise DamagedDataError(
                    f"{key:.200}: arrived with {several(size, 'byte')} and must have {num_bytes}; "
                    "the connection broke, or the object has changed; try again"
                )
            if not isinstance(found, str) or kind_of(found) != kind_of(digest):
                found = digest_of(file.descriptor, digest)
            if digest is not None and found != digest:
                raise DamagedDataError(
                    f"{key:.200}: arrived with the digest {found} and must have {digest}; it was "
                    "damaged on its way, or the object has changed; try again"
                )
            seal(file.descriptor, key, found)
        finally:
            file.close()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn a failure of the operating system into an error that names the folder."""
        try:
            yield
        except FeedlineError:
            raise
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> CacheError:
        if error.errno in _FULL:
            remedy = "free some space on its disk, lower limit_bytes, or set another folder"
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "raise `ulimit -n`"
        elif error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            remedy = "its file system has no locks; set a folder on a local disk"
        else:
            remedy = "check that the folder can be written, or set another one"
        reason = error.strerror or error
        return CacheError(f"{self.folder}: a file cannot be cached ({reason}); {remedy}")


@lru_cache(2**12)
def _path_in(folder: Path, key: str) -> Path:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16)
    ending = _ENDING.search(key)
    return folder / (digest.hexdigest() + (ending[0] if ending else ""))


def _is_whole(
    file: OpenFile, key: str, num_bytes: int, digest: str | None, only_sealed: bool
) -> bool:
    """Whether a cached file is as it arrived; if only its seal may tell, it is not read."""
    status = os.fstat(file.descriptor)
    if status.st_size != num_bytes:
        return False
    is_known = is_sealed(status, key, digest)
    return is_known or (not only_sealed and renew_seal(file.descriptor, key, digest))


_making = threading.Lock()


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
