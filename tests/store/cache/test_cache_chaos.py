"""Processes that share a cache get right files, whatever is killed, damaged or full meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cache_files import content, get, listed, loose, still, taken, unfinished, whole
from cache_job import MOST_BYTES, PAGE, size_of
from feedline.errors import CacheError
from feedline.store.cache import FileCache, holds
from forked import Forked, forked_python, forked_run
from processes import finish

NUM_PROCESSES = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where one can be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "feedline-test", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        yield path
    finally:
        # Lazily: a test that fails keeps its files open, and nothing must stay mounted.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class Chaos:
    """Processes that use a cache, while some are killed and files are damaged.

    Args:
        place: Where to keep logs.
        folder: The folder of the cache.
        seed: Of all that is random.
        num_held: How many files each process holds at most.
        num_files: How many different files there are.
        limit: The limit of the cache.
    """

    def __init__(
        self, place: Path, folder: Path, *, seed: int, num_held: int, num_files: int, limit: int
    ) -> None:
        self.folder = folder
        self.log, self.stop = place / "log", place / "stop"
        self.chance = random.Random(seed)
        self.job: dict[str, Any] = {
            **{"folder": str(folder), "log": str(self.log), "stop": str(self.stop)},
            **{"num_held": num_held, "num_files": num_files, "limit": limit},
            "has_byte_locks": holds.has_byte_locks(folder),
        }
        self.killed: dict[int, int] = {}
        self.num_damaged = 0
        self.most_bytes = self.num_looks = 0

    def run(self, seconds: float, *, how: str = "files") -> list[dict[str, int]]:
        """Make trouble for a while; return what the processes tell that came to their end."""
        with ExitStack() as stack:
            watcher = stack.enter_context(
                forked_python("cache_watch.py", str(self.folder), str(self.stop), how)
            )
            workers = [self._start(stack) for _ in range(NUM_PROCESSES)]
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self.chance.random() * 0.1)
                self._damage()
                if self.chance.random() < 0.3:
                    number = self.chance.randrange(NUM_PROCESSES)
                    self._kill(workers[number])
                    workers[number] = self._start(stack)
            self.stop.touch()
            told = [json.loads(finish(worker)) for worker in workers]
            self.most_bytes, self.num_looks = map(int, finish(watcher).split())
        return told

    def _start(self, stack: ExitStack) -> Forked:
        job = {**self.job, "seed": self.chance.randrange(2**32)}
        return stack.enter_context(forked_python("cache_job.py", json.dumps(job)))

    def _kill(self, worker: Forked) -> None:
        if worker.poll() is not None:
            raise AssertionError(finish(worker))
        self.killed[worker.pid] = time.monotonic_ns()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(30)

    def _damage(self) -> None:
        """Damage a file that nobody holds: one that is in use cannot be protected."""
        names = whole(self.folder)
        if not names:
            return
        path = self.folder / self.chance.choice(names)
        with still(self.folder), holds.kept_from_others(self.folder, path.name) as is_free:
            if not is_free or not path.exists():
                return
            with open(path, "r+b") as file:
                kind = self.chance.choice(["write", "cut", "zeros"])
                size = os.fstat(file.fileno()).st_size
                if kind == "write":
                    os.pwrite(file.fileno(), b"damage", self.chance.randrange(max(1, size - 6)))
                elif kind == "cut":
                    os.ftruncate(file.fileno(), self.chance.randrange(max(1, size)))
                else:
                    os.pwrite(file.fileno(), bytes(size), 0)
            self.num_damaged += 1

    def check(self) -> None:
        """Fail if the limit was passed, a file was fetched twice at once, or anything is left."""
        limit = self.job["limit"]
        assert self.num_looks > 20
        # One file more, and a page for the total that a cache keeps.
        assert self.most_bytes <= limit + MOST_BYTES + PAGE
        self._check_fetches()
        cache = FileCache(self.folder, limit, wait_seconds=5)
        for number in range(self.job["num_files"]):
            data = content(number, size_of(number))
            path = cache.get(
                f"file {number}.bin", len(data), lambda part, data=data: part.write_bytes(data)
            )
            assert path.read_bytes() == data
            cache.let_go(f"file {number}.bin")
        assert not unfinished(self.folder)
        total = int((self.folder / "total").read_bytes().split()[0])
        assert taken(self.folder) == total <= limit

    def _check_fetches(self) -> None:
        """At each time at most one living process fetches a file."""
        lines = sorted(map(json.loads, self.log.read_text().splitlines()), key=lambda e: e["time"])
        busy: dict[int, int] = {}
        for line in lines:
            number, pid = line["file"], line["pid"]
            if line["what"] == "start":
                other = busy.get(number)
                assert other is None or self.killed.get(other, line["time"]) < line["time"], line
                busy[number] = pid
            else:
                assert busy.pop(number) == pid


def test_kills_and_damage_harm_no_file_and_no_limit(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    limit = NUM_PROCESSES * 4 * MOST_BYTES
    chaos = Chaos(tmp_path, folder, seed=1, num_held=4, num_files=60, limit=limit)
    told = chaos.run(1)
    assert chaos.killed
    assert sum(one["read"] for one in told) > 0
    chaos.check()


@pytest.mark.slow
@pytest.mark.parametrize("has_byte_locks", [True, False])
@pytest.mark.parametrize(("num_held", "num_files"), [(1, 12), (2, 30), (4, 60)])
def test_long_chaos_on_a_disk_that_counts_its_own_bytes(
    tmp_path: Path,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_byte_locks: bool,
    num_held: int,
    num_files: int,
) -> None:
    """Just as many files fit in as all processes hold, so that they wait for each other."""
    limit = NUM_PROCESSES * num_held * MOST_BYTES
    monkeypatch.setattr(holds, "has_byte_locks", lambda _: has_byte_locks)
    chaos = Chaos(tmp_path, disk, seed=2, num_held=num_held, num_files=num_files, limit=limit)
    told = chaos.run(10, how="disk")
    assert len(chaos.killed) > 5
    assert chaos.num_damaged > 5
    assert sum(one["read"] for one in told) > 100
    chaos.check()


def test_many_processes_fetch_each_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    chaos = Chaos(tmp_path, folder, seed=1, num_held=4, num_files=20, limit=10**9)
    with ExitStack() as stack:
        workers = [chaos._start(stack) for _ in range(NUM_PROCESSES)]
        while len(whole(folder)) < 20:
            assert all(worker.poll() is None for worker in workers)
            time.sleep(0.02)
        chaos.stop.touch()
        told = [json.loads(finish(worker)) for worker in workers]
    assert sum(one["num_misses"] for one in told) == 20
    assert sum(one["num_evictions"] for one in told) == 0
    assert sum(one["num_bytes_fetched"] for one in told) == sum(map(size_of, range(20)))


def test_a_full_disk_is_refused_and_leaves_what_was_there(disk: Path) -> None:
    cache = FileCache(disk / "cache", 2**30)
    first = get(cache, 1, 2**20)
    with pytest.raises(CacheError, match="No space left on device"):
        get(cache, 2, 2**20)
    assert list(listed(disk / "cache")) == [first.name]
    assert first.read_bytes() == content(1, 2**20)
    assert loose(cache, 3, 2**19).read_bytes() == content(3, 2**19)
    (disk / "other").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096))
    with pytest.raises(CacheError, match="No space left on device"):
        get(cache, 4, 10_000)
    os.unlink(disk / "other")
    assert get(cache, 4, 10_000).read_bytes() == content(4, 10_000)


def test_a_limit_of_the_system_on_files_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, sys
from cache_files import get, listed, loose
from feedline.errors import CacheError
from feedline.store.cache import FileCache
cache = FileCache(sys.argv[1], 10**9)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
loose(cache, 1, 50_000)
try:
    get(cache, 2, 50_001)
except CacheError as error:
    print(error)
print(len(listed(cache.folder)))
"""
    done = forked_run("-c", code, str(tmp_path / "cache"), env=None)
    assert "File too large); free some space" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "1"


def test_many_files_are_held_with_few_open_files(tmp_path: Path) -> None:
    code = """
import os, resource, sys
from cache_files import get, loose, whole
from feedline.errors import CacheError
from feedline.store.cache import FileCache
cache = FileCache(sys.argv[1], 400_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
for number in range(400):
    get(cache, number)
other = FileCache(sys.argv[1], 400_000, wait_seconds=0.01)
try:
    get(other, 400)
except CacheError as error:
    print(error)
cache.let_go("file 123")
print(loose(other, 400).exists(), cache.hold("file 123"), len(whole(cache.folder)))
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    get(cache, 401)
except CacheError as error:
    print(error)
"""
    done = forked_run("-c", code, str(tmp_path / "cache"), env=None)
    full, held, opened = done.stdout.splitlines()
    assert "set limit_bytes to at least 401000" in full, done.stderr
    assert held == "True False 400"
    assert "Too many open files); raise `ulimit -n`" in opened
