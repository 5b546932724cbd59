"""A killed worker costs the task that it was doing, and no other is done again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import feedline
from counted_store import CountedStore
from pack_data import read_tree
from ray_workers import SECONDS, wait_for, workers_at

pytestmark = pytest.mark.usefixtures("cluster")

NUM_CHUNKS, CHUNK_SAMPLES = 60, 1500


# A task deals the rows of one chunk, or writes four chunks.
@pytest.mark.parametrize(
    ("shuffle", "deadly", "again"), [(True, 6, {6}), (False, 6, {4, 5, 6})], ids=["deal", "write"]
)
def test_only_the_task_of_a_killed_worker_reads_again(
    tmp_path: Path, shuffle: bool, deadly: int, again: set[int]
) -> None:
    options = {"shuffle": shuffle, "chunk_samples": CHUNK_SAMPLES, "memory_budget": 2**20}
    sizes = NUM_CHUNKS, CHUNK_SAMPLES
    feedline.pack(CountedStore(tmp_path / "here.log", *sizes), tmp_path / "here", **options)
    store = CountedStore(tmp_path / "there.log", *sizes, deadly)
    feedline.pack(store, tmp_path / "there", engine="ray", **options)
    found = store.times_read()
    # The driver has looked at the first chunk.
    found[0] -= 1
    assert {chunk for chunk, times in found.items() if times == 2} == again
    assert all(found[chunk] == 1 for chunk in range(NUM_CHUNKS) if chunk not in again)
    assert read_tree(tmp_path / "there") == read_tree(tmp_path / "here")


def test_killed_workers_change_nothing_about_what_verify_finds(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    feedline.pack({"x": np.arange(2**23)}, folder, chunk_samples=2**18)
    (folder / "chunk-000007.safetensors").write_bytes(b"altered")
    here = feedline.verify(folder)
    num_killed = 0
    while not num_killed:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(feedline.verify, folder, engine="ray")
            for pid in wait_for(lambda: workers_at("check_some") or (running.done() and [0])):  # noqa: B023
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    num_killed += 1
            assert running.result(timeout=SECONDS) == here
