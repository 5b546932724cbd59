"""A process that forks while it uses a cache; it ends well if each has what is its own.

Arguments: the name of a check and the folder of the cache.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cache_files import content, get, loose
from feedline.store.cache import CacheMeters, FileCache

LIMIT = 2000


@contextmanager
def child(run: Callable[[], object]) -> Iterator[int]:
    """Fork a child that calls a function and ends; it is waited for, and must end well."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    ended = False
    try:
        yield pid
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        ended = True
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)


def a_child_does_not_keep_what_its_parent_lets_go(folder: Path) -> None:
    """The open file of a lock is shared by a fork; a child that lives on must not keep it."""
    cache = FileCache(folder, LIMIT)
    get(cache, 1), get(cache, 2)
    reader, writer = os.pipe()
    with child(lambda: os.read(reader, 1)):
        cache.close()
        other = FileCache(folder, LIMIT, wait_seconds=1)
        assert loose(other, 3).read_bytes() == content(3)
        os.write(writer, b".")


def a_child_begins_without_holds_and_meters(folder: Path) -> None:
    """What a child lets go stays held by its parent."""
    cache = FileCache(folder, LIMIT, wait_seconds=0.05)
    get(cache, 1)

    def run() -> None:
        assert cache.meters == CacheMeters()
        cache.let_go("file 1")
        cache.close()
        for number in (2, 3, 4):
            loose(cache, number)

    with child(run):
        pass
    assert FileCache(folder, LIMIT).hold("file 1")
    assert cache.meters.num_misses == 1


def a_child_can_be_forked_while_threads_use_the_cache(folder: Path) -> None:
    """No lock of a thread may stay taken in the child."""
    cache = FileCache(folder, LIMIT, wait_seconds=30)
    stop = threading.Event()

    def work(first: int) -> None:
        number = first
        while not stop.is_set():
            number += 2
            loose(cache, number % 10, 500)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            with child(lambda number=number: loose(cache, number % 10, 500)):
                pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def a_fetch_may_fork(folder: Path) -> None:
    """A child that is forked while a file is fetched, and fails, disturbs nothing."""
    cache = FileCache(folder, LIMIT)

    def fetch(part: Path) -> None:
        pid = os.fork()
        if not pid:
            raise RuntimeError("the child fails")
        os.waitpid(pid, 0)
        part.write_bytes(content(1))

    parent = os.getpid()
    try:
        path = cache.get("file 1", 1000, fetch)
    except RuntimeError:
        assert os.getpid() != parent
        os._exit(0)
    assert path.read_bytes() == content(1)


def a_killed_process_keeps_nothing(folder: Path) -> None:
    """What a process has held or fetched is free when it was killed."""
    reader, writer = os.pipe()

    def run() -> None:
        cache = FileCache(folder, LIMIT)
        get(cache, 1)

        def fetch(part: Path) -> None:
            part.write_bytes(bytes(500))
            os.write(writer, b".")
            time.sleep(60)

        cache.get("file 2", 1000, fetch)

    pid = os.fork()
    if not pid:
        run()
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    cache = FileCache(folder, LIMIT, wait_seconds=5)
    assert get(cache, 2).read_bytes() == content(2)
    assert get(cache, 3).read_bytes() == content(3)


def processes_get_it_pickled(folder: Path) -> None:
    """A cache that is in use can be given to processes that are forked or spawned."""
    cache = FileCache(folder, LIMIT)
    get(cache, 1)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        process = context.Process(target=use, args=(cache,))
        process.start()
        process.join(60)
        assert process.exitcode == 0, method


def use(cache: FileCache) -> None:
    """Get a file that is there, and one that is not."""
    assert get(cache, 1).read_bytes() == content(1)
    assert loose(cache, os.getpid()).read_bytes() == content(os.getpid())
    assert (cache.meters.num_hits, cache.meters.num_misses) == (1, 1)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
