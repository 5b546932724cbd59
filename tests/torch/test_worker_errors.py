"""A worker that is killed gives one clear error, whatever torch makes of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.chunks import SequentialSampler
from feedline.errors import WorkerError
from feedline.store import MemoryMatrix
from feedline.torch import ChunkLoader, DataLoader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
KILLED = r"worker 0 \(process \d+\) was killed by signal 9 \(SIGKILL\).*load it to resume"


class Deadly:
    """Samples of which one kills its worker, or ends it."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 20:
            # By now the loop waits for this batch; torch's own error comes wherever it is.
            time.sleep(1)
            if self._code < 0:
                os.kill(os.getpid(), -self._code)
            os._exit(self._code)
        return index


class DeadlyRows(MemoryMatrix):
    """Rows of which some kill their worker."""

    def fetch(self, requests: Any) -> Any:
        if requests[0].start == 20:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fetch(requests)


class Failing(Deadly):
    """Samples of which one cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 20:
            raise FileNotFoundError("the file of sample 20")
        return index


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_killed_worker_is_named_and_the_state_stays_at_the_last_batch(num_workers: int) -> None:
    loader = DataLoader(Deadly(-9), batch_size=4, num_workers=num_workers)
    seen: list[int] = []

    def train() -> None:
        for batch in loader:
            seen.extend(batch.tolist())

    with pytest.raises(WorkerError, match=r"worker \d \(process \d+\) was killed by signal 9"):
        train()
    resumed = DataLoader(list(range(40)), batch_size=4)
    state = loader.state_dict()
    assert seen == list(range(len(seen)))
    resumed.load_state_dict(state)
    assert [int(i) for batch in resumed for i in batch] == list(range(len(seen), 40))


def test_a_worker_that_ends_by_itself_is_named() -> None:
    loader = DataLoader(Deadly(3), batch_size=4, num_workers=1)
    with pytest.raises(WorkerError, match=r"worker 0 .*ended with exit code 3"):
        list(loader)


def test_a_killed_worker_of_a_chunk_loader_is_named() -> None:
    store = DeadlyRows(np.arange(80).reshape(40, 2))
    loader = ChunkLoader(store, SequentialSampler(4, 1, 4), num_workers=1)
    with pytest.raises(WorkerError, match=KILLED):
        list(loader)


def test_an_error_of_the_dataset_stays_as_it_is() -> None:
    loader = DataLoader(Failing(0), batch_size=4, num_workers=1)
    with pytest.raises(FileNotFoundError, match="the file of sample 20"):
        list(loader)


class LoseMemoryAndDie:
    """Closes the memory of the first batch, as a process does that is being killed; ends later."""

    def __init__(self, folder: Path) -> None:
        self.is_lost, self.is_asked = folder / "is_lost", folder / "is_asked"

    def __call__(self, worker: int) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not (found := [name for name in os.listdir("/proc/self/fd") if self._is_ours(name)]):
            time.sleep(0.001)
        # By now it may have been sent, but it is not received before it is asked for.
        time.sleep(0.1)
        os.close(int(found[0]))
        self.is_lost.touch()
        while not self.is_asked.exists():
            time.sleep(0.001)
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_ours(self, name: str) -> bool:
        try:
            return "feedline-batches" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            return False


def test_a_batch_whose_memory_is_gone_with_its_worker_gives_the_same_error(tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(4000)}, tmp_path / "data")
    dying = LoseMemoryAndDie(tmp_path)
    store = feedline.open(tmp_path / "data")
    loader = DataLoader(store, batch_size=4, num_workers=1, worker_init_fn=dying)
    batches = iter(loader)
    while not dying.is_lost.exists():
        time.sleep(0.001)
    dying.is_asked.touch()
    with pytest.raises(WorkerError, match=KILLED) as caught:
        next(batches)
    # Here torch lets another error through.
    assert isinstance(caught.value.__cause__, FileNotFoundError)
