"""Threads of one process share a cache as processes do."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cache_files import content, get, still, taken, unfinished
from feedline.store.cache import FileCache

NUM_THREADS = 6


def test_threads_get_right_files_within_the_limit(tmp_path: Path) -> None:
    """Just as many files fit in as all threads hold, two each."""
    cache = FileCache(tmp_path, 2 * NUM_THREADS * 1000, wait_seconds=60)

    def work(seed: int) -> int:
        chance = random.Random(seed)
        held: list[int] = []
        for _ in range(60):
            held.append(chance.randrange(30))
            get(cache, held[-1])
            for number in held:
                path = get(cache, number)
                cache.let_go(f"file {number}")
                assert path.read_bytes() == content(number)
            with still(tmp_path):
                assert taken(tmp_path) <= cache.limit_bytes
            if len(held) == 2:
                cache.let_go(f"file {held.pop(0)}")
        for number in held:
            cache.let_go(f"file {number}")
        return seed

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        assert list(threads.map(work, range(NUM_THREADS))) == list(range(NUM_THREADS))
    meters = cache.meters
    assert meters.num_hits + meters.num_misses >= NUM_THREADS * 120
    assert meters.num_bytes_fetched == 1000 * meters.num_misses
    assert meters.num_misses - meters.num_evictions == taken(tmp_path) // 1000
    assert not unfinished(tmp_path)
    assert FileCache(tmp_path, 1000 * 2 * NUM_THREADS, wait_seconds=1).get(
        "large", cache.limit_bytes, lambda part: part.write_bytes(bytes(cache.limit_bytes))
    )


def test_threads_that_want_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 10_000)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        found = set(threads.map(lambda _: get(cache, 1), range(30)))
    assert len(found) == 1
    assert (cache.meters.num_misses, cache.meters.num_hits) == (1, 29)
    for _ in range(30):
        assert cache.hold("file 1")
        cache.let_go("file 1")
        cache.let_go("file 1")
    assert get(FileCache(tmp_path, 10_000, wait_seconds=1), 2, 10_000).exists()
