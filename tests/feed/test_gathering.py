"""What the threads of a pass share while they gather."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.feed.gathering import Workplace, chunking_of, gather
from feedline.feed.slab_jobs import cut
from feedline.plan import Block


@pytest.fixture
def threads_that_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_switch_often")
def test_threads_that_gather_from_many_sets_of_chunks_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    feedline.pack({"x": np.arange(40)}, tmp_path / "data", chunk_samples=2, format="npy")
    store = feedline.open(tmp_path / "data")
    chunking = chunking_of(store)
    workplace = Workplace()

    def gathered(first: int) -> list[int]:
        indices = np.array([first, (first + 7) % 40, (first + 20) % 40])
        (job,) = cut(Block(first=0, indices=indices, bounds=np.array([0, 3])), chunking, 1)
        arrays = {"x": np.empty(3, np.int64)}
        gather(store, job, arrays, workplace)
        return [int(number) for number in arrays["x"]]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(gathered, [n % 40 for n in range(1000)]))
    assert found == [[n % 40, (n % 40 + 7) % 40, (n % 40 + 20) % 40] for n in range(1000)]
