"""What a distant store is told of a pass, and how often the jobs of the pass are made for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.feed.announcing import DistantAnnouncer
from feedline.feed.gathering import chunking_of
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import SamplePlan, Sequential
from feedline.store import FolderStore, pack

NUM_SAMPLES, CHUNK, NUM_BLOCKS = 400, 20, 10


class Distant(FolderStore):
    """Notes what is announced and released, in an order."""

    num_ahead, bytes_ahead, meters = 4, 2**30, 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[tuple[str, int]] = []

    def chunk_bytes(self, chunk: int) -> int:
        return 8 * CHUNK

    def check_window(self, num_chunks: int) -> None:
        pass

    def prefetch(self, chunk: int) -> None:
        self.told.append(("announced", chunk))

    def release(self, chunk: int) -> None:
        self.told.append(("released", chunk))


@pytest.fixture
def store(tmp_path: Path) -> Distant:
    pack({"x": np.arange(NUM_SAMPLES)}, tmp_path / "data", chunk_samples=CHUNK)
    return Distant(tmp_path / "data")


class Pass:
    """Blocks of two batches of a chunk each; counts how often each block is made."""

    def __init__(self, store: Distant) -> None:
        self.num_made: Counter[int] = Counter()
        plan = SamplePlan(order=Sequential(num_samples=NUM_SAMPLES))
        self._segment = plan.segment(world_size=1, batch_size=CHUNK)
        self._chunking = chunking_of(store)

    def blocks(self) -> Iterator[Any]:
        return (partial(self._make, number) for number in range(NUM_BLOCKS))

    def _make(self, number: int) -> list[SlabJob]:
        self.num_made[number] += 1
        return cut(self._segment.block(0, 2 * number, 2 * number + 2), self._chunking, 1)


@pytest.mark.parametrize("has_threads", [False, True])
def test_each_block_is_made_once_and_each_chunk_announced_and_released_once(
    store: Distant, has_threads: bool
) -> None:
    running = Pass(store)
    announcer = DistantAnnouncer(store, running.blocks(), 1, has_threads=has_threads)
    for make in announcer.around(running.blocks()):
        for job in make():
            announcer.finished(job)
    announcer.end()
    assert running.num_made == dict.fromkeys(range(NUM_BLOCKS), 1)
    chunks = range(NUM_SAMPLES // CHUNK)
    assert Counter(store.told) == {
        (what, chunk): 1 for what in ("announced", "released") for chunk in chunks
    }
    assert [chunk for what, chunk in store.told if what == "announced"] == list(chunks)


def test_the_first_block_waits_for_no_other_if_there_are_threads(store: Distant) -> None:
    running = Pass(store)
    announcer = DistantAnnouncer(store, running.blocks(), 1, has_threads=True)
    blocks = announcer.around(running.blocks())
    next(blocks)()
    assert running.num_made == {0: 1}
    assert store.told == [("announced", 0), ("announced", 1)]
    next(blocks)()
    assert len(store.told) > 4


def test_a_block_that_is_made_late_by_others_is_not_kept(store: Distant) -> None:
    """Threads that make blocks overtake each other; each block is right all the same."""
    running = Pass(store)
    announcer = DistantAnnouncer(store, running.blocks(), 1, has_threads=True)
    makes = list(announcer.around(running.blocks()))
    made = {number: makes[number]() for number in (0, 3, 1, 2, 5, 4, 9, 8, 7, 6)}
    for number, jobs in made.items():
        assert [job.needed for job in jobs] == [(2 * number,), (2 * number + 1,)]
    assert max(running.num_made.values()) <= 2


def test_a_thread_that_has_read_waits_for_no_other_that_tells_the_store(store: Distant) -> None:
    """What it has not told, the next one tells."""
    running = Pass(store)
    announcer = DistantAnnouncer(store, running.blocks(), 1)
    jobs = [job for make in announcer.around(running.blocks()) for job in make()]
    with announcer._lock:
        announcer.finished(jobs[3])
        assert ("released", 0) not in store.told
    announcer.finished(jobs[4])
    assert [chunk for what, chunk in store.told if what == "released"] == [0, 1, 2, 3]
