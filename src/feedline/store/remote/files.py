"""The files of remote data: fetched into the cache when needed or announced, and let go after."""

from __future__ import annotations

import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.cache import FileCache, NoRoomError
from feedline.store.chunk import OpenChunks
from feedline.store.remote.meters import FetchMeters
from feedline.store.remote.objects import Objects
from feedline.store.remote.remote_file import RemoteFile
from feedline.store.remote.turns import is_at_exit

#: How often a file is opened, in case the cache evicts it before it is open.
MAX_OPENS = 8
# Files that are fetched at the same time; each may come in several parts.
_NUM_FETCHERS = 16
# A body that is damaged on its way is fetched again.
_MAX_FETCHES = 3
# Of the cache's limit, what one process may hold of files that nobody has announced.
_SHARE_UNANNOUNCED = 8
# The weight of the latest file in the mean time that a file takes.
_WEIGHT = 0.2
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
# How long a reader tries to get room in the cache, while other processes hold all of it.
_ROOM_SECONDS = 120


class _Here:
    """What one process has of the files."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = Lock()
        self.coming: dict[str, Future[Path]] = {}
        self.held: OrderedDict[str, tuple[Path, str, int]] = OrderedDict()
        self.fetching: dict[str, int] = {}
        self.users: dict[str, set[int]] = {}
        self.bytes_unannounced = 0
        self.fetchers = ThreadPoolExecutor(_NUM_FETCHERS, "feedline-fetch")
        self.turns = itertools.count(1)
        # Chunks that are open and not needed now, with their bytes; and what was fetched before.
        self.idle: OrderedDict[tuple[ref[OpenChunks[Any]], int], int] = OrderedDict()
        self.idle_bytes = 0
        self.num_fetched = self.num_fetched_before_idle = 0
        self.fetch_seconds = 0.0
        self.use_seconds = 0.0
        self.last_use: float | None = None
        self.num_waits = 0
        self.wait_seconds = 0.0


class RemoteFiles:
    """Named files that come through the cache.

    Files that were announced are held until they are released, so that nobody evicts them. Of the
    others, only the latest are.

    Args:
        objects: Reads objects.
        cache: Keeps files.
        file_of: Returns what is known of a file, by its name; may ask the server.
        known: What it returns without asking.
    """

    def __init__(
        self,
        objects: Objects,
        cache: FileCache,
        file_of: Callable[[str], RemoteFile],
        known: Mapping[str, RemoteFile],
    ) -> None:
        self.objects = objects
        self.cache = cache
        self._file_of = file_of
        self._known = known
        self._of_process: _Here | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_process": None}

    def path(self, name: str) -> Path:
        """Return the path of a whole file, which is fetched if need be."""
        here = self._here()
        began = time.perf_counter()
        while True:
            with here.lock:
                held = here.held.get(name)
                if held is not None:
                    here.held.move_to_end(name)
                    return held[0]
                future = here.coming.get(name)
                # What no thread has begun is fetched here, at once.
                if future is not None and future.cancel():
                    future = None
                is_mine = future is None
                if future is None:
                    future = here.coming[name] = Future()
                    future.set_running_or_notify_cancel()
            self._make_room(here, name)
            if is_mine:
                self._run(here, name, future)
            try:
                path = future.result()
                break
            except NoRoomError:
                if time.perf_counter() - began > _ROOM_SECONDS:
                    raise
                # Others hold the rest: this process keeps nothing but what it needs now.
                self._make_room(here, name, most=0)
        with here.lock:
            here.num_waits += 1
            here.wait_seconds += time.perf_counter() - began
        return path

    def content(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a whole file, which is fetched if need be."""
        for _ in range(MAX_OPENS - 1):
            with suppress(FileNotFoundError):
                return np.fromfile(self.path(name), np.uint8)
        return np.fromfile(self.path(name), np.uint8)

    def announce(self, name: str, user: int, *, is_open: bool = False) -> None:
        """Fetch a file in the background, and hold it until its user releases it.

        Args:
            name: The file.
            user: Who needs it.
            is_open: It is open since it was last in use; it is fetched only if it was evicted.
        """
        here = self._here()
        with here.lock:
            users = here.users.setdefault(name, set())
            if not users and name in here.held:
                here.bytes_unannounced -= here.held[name][2]
            users.add(user)
            if name in here.held or name in here.coming:
                return
            known = self._known.get(name)
            if known is not None:
                path = self.cache.find(
                    known.key, known.num_bytes, digest=known.check, is_open=is_open
                )
                if path is not None:
                    here.held[name] = (path, known.key, known.num_bytes)
                    return
            future: Future[Path] = Future()
            here.coming[name] = future
            # What was announced first is needed first.
            here.fetchers.submit(self._run_announced, here, name, future, next(here.turns))

    def release(self, name: str, user: int) -> bool:
        """Take an announcement back; True if nobody needs the file any more."""
        here = self._here()
        with here.lock:
            users = here.users.get(name)
            if users is None:
                return name not in here.held
            users.discard(user)
            if users:
                return False
            del here.users[name]
            self._note_use(here)
            held = here.held.pop(name, None)
        if held is not None:
            self.cache.let_go(held[1])
        return True

    def keep_open(
        self, chunks: OpenChunks[Any], chunk: int, num_bytes: int, *, is_read: bool = False
    ) -> None:
        """Let a chunk that nobody has announced stay open, so that it need not be opened again.

        A file that is open takes room on the disk even when the cache has evicted it. So only a
        small part of the limit stays open, and nothing of what is not needed now as soon as this
        process fetches something. A chunk that is about to be read stays (`is_read`).
        """
        here = self._here()
        most = self.cache.limit_bytes // _SHARE_UNANNOUNCED // num_local_ranks()
        with here.lock:
            here.idle_bytes += num_bytes - here.idle.pop((ref(chunks), chunk), 0)
            here.idle[ref(chunks), chunk] = num_bytes
            if not is_read and here.num_fetched != here.num_fetched_before_idle:
                here.num_fetched_before_idle, most = here.num_fetched, 0
            closed = []
            while len(here.idle) > is_read and here.idle_bytes > most:
                place, size = here.idle.popitem(last=False)
                here.idle_bytes -= size
                closed.append(place)
        for owner, number in closed:
            if (found := owner()) is not None:
                found.drop(number)

    def is_announced(self, name: str) -> bool:
        """Whether somebody has announced a file, and not released it."""
        return name in self._here().users

    def use(self, chunks: OpenChunks[Any], chunk: int) -> bool:
        """Note that a chunk is needed again; True if it is still open."""
        here = self._here()
        with here.lock:
            num_bytes = here.idle.pop((ref(chunks), chunk), None)
            here.idle_bytes -= num_bytes or 0
        return num_bytes is not None and chunks.has_all([chunk])

    @property
    def num_ahead(self) -> int:
        """The number of files to announce ahead: enough to hide the time that one takes."""
        here = self._here()
        with here.lock:
            if not here.use_seconds:
                return _NUM_FETCHERS
            return min(_MOST_AHEAD, _LEAST_AHEAD + round(here.fetch_seconds / here.use_seconds))

    @property
    def meters(self) -> FetchMeters:
        """What this process has read so far."""
        here, cached = self._here(), self.cache.meters
        with here.lock:
            return FetchMeters(
                num_hits=cached.num_hits,
                num_misses=cached.num_misses,
                num_waits=here.num_waits,
                wait_seconds=here.wait_seconds,
                requests=replace(self.objects.meters),
            )

    def close(self) -> None:
        """Let go of all files."""
        here = self._here()
        with here.lock:
            held, here.held = here.held, OrderedDict()
            here.users.clear()
            here.idle.clear()
            here.idle_bytes = 0
            here.bytes_unannounced = 0
            for name, future in list(here.coming.items()):
                if future.cancel():
                    del here.coming[name]
            # What is running ends by itself; a later announcement gets threads of its own.
            here.fetchers.shutdown(wait=False, cancel_futures=True)
            here.fetchers = ThreadPoolExecutor(_NUM_FETCHERS, "feedline-fetch")
        for _, key, _ in held.values():
            self.cache.let_go(key)

    def _here(self) -> _Here:
        here = self._of_process
        if here is None or here.pid != os.getpid():
            with _making[0]:
                here = self._of_process
                if here is None or here.pid != os.getpid():
                    here = self._of_process = _Here()
        return here

    def _run_announced(self, here: _Here, name: str, future: Future[Path], turn: int) -> None:
        # A reader may have taken it over.
        with here.lock:
            is_wanted = here.coming.get(name) is future and name in here.users and not is_at_exit()
            if not is_wanted and here.coming.get(name) is future:
                del here.coming[name]
        if is_wanted and future.set_running_or_notify_cancel():
            self._run(here, name, future, turn)

    def _run(self, here: _Here, name: str, future: Future[Path], turn: int = 0) -> None:
        """Fetch a file, and let all who wait for it know."""
        try:
            path = self._fetch(here, name, turn)
        except BaseException as error:
            with here.lock:
                here.coming.pop(name, None)
            future.set_exception(error)
        else:
            future.set_result(path)

    def _fetch(self, here: _Here, name: str, turn: int) -> Path:
        file = self._file_of(name)
        began = time.perf_counter()

        def fetch(part: Path) -> str:
            with here.lock:
                here.num_fetched += 1
            return self.objects.fetch_parts(
                file.url, part, file.parts, file.etag, file.object_bytes, turn=turn
            )

        with here.lock:
            here.fetching[name] = file.num_bytes
        try:
            path = self._get(file, fetch)
        finally:
            with here.lock:
                del here.fetching[name]
        seconds = time.perf_counter() - began
        with here.lock:
            before = here.fetch_seconds
            here.fetch_seconds = before + _WEIGHT * (seconds - before) if before else seconds
            here.coming.pop(name, None)
            here.held[name] = (path, file.key, file.num_bytes)
            if name not in here.users:
                here.bytes_unannounced += file.num_bytes
            dropped = self._over(here, name)
        for key in dropped:
            self.cache.let_go(key)
        return path

    def _get(self, file: RemoteFile, fetch: Callable[[Path], str]) -> Path:
        for _ in range(_MAX_FETCHES - 1):
            try:
                return self.cache.get(file.key, file.num_bytes, fetch, digest=file.check)
            except DamagedDataError:
                if file.check is None:
                    raise
        return self.cache.get(file.key, file.num_bytes, fetch, digest=file.check)

    def _make_room(self, here: _Here, wanted: str, most: int | None = None) -> None:
        """Let go of files if those that this process holds leave no room for one that it needs now.

        A file that is open stays readable. First go those that nobody has announced, then those
        that were announced last.
        """
        most = self.cache.limit_bytes if most is None else most
        num_bytes = self._file_of(wanted).num_bytes
        dropped = []
        with here.lock:
            others = [size for name, size in here.fetching.items() if name != wanted]
            total = num_bytes + sum(others) + sum(size for _, _, size in here.held.values())
            unannounced = [name for name in here.held if name not in here.users]
            announced = [name for name in reversed(here.users) if name in here.held]
            for name in (*unannounced, *announced):
                if total <= most:
                    break
                _, key, size = here.held.pop(name)
                total -= size
                if name not in here.users:
                    here.bytes_unannounced -= size
                dropped.append(key)
        for key in dropped:
            self.cache.let_go(key)

    def _over(self, here: _Here, latest: str) -> list[str]:
        """Take files that nobody has announced, least recently used first, from those held."""
        most = self.cache.limit_bytes // _SHARE_UNANNOUNCED
        dropped = []
        for name in list(here.held):
            if here.bytes_unannounced <= most:
                break
            if name not in here.users and name != latest:
                _, key, num_bytes = here.held.pop(name)
                here.bytes_unannounced -= num_bytes
                dropped.append(key)
        return dropped

    def _note_use(self, here: _Here) -> None:
        now = time.perf_counter()
        if here.last_use is not None:
            seconds, before = now - here.last_use, here.use_seconds
            here.use_seconds = before + _WEIGHT * (seconds - before) if before else seconds
        here.last_use = now


def num_local_ranks() -> int:
    """Return the number of ranks on this machine, as launchers tell it."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(ranks) if ranks.isdecimal() and int(ranks) else 1


_making = [Lock()]


def _after_fork_in_child() -> None:
    _making[0] = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
