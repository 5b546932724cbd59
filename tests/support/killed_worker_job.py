"""Loses a worker of a loader in the way that its argument names, and prints what came of it.

In a process of its own: torch raises an error for an ended worker wherever the process is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline.chunks import SequentialSampler
from feedline.store import MemoryMatrix
from feedline.torch import ChunkLoader, DataLoader


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


def report(loader: Any, batches: Iterable[Any]) -> None:
    """Print the samples that came before the error, the error, and the state after it."""
    seen: list[int] = []
    try:
        for batch in batches:
            seen.extend(batch.tolist() if hasattr(batch, "tolist") else [])
    except Exception as caught:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        error, cause = caught, caught.__cause__
    found = {"error": type(error).__name__, "message": str(error), "cause": type(cause).__name__}
    print(json.dumps({**found, "seen": seen, "state": loader.state_dict()}))


def lose_memory(folder: Path) -> None:
    feedline.pack({"x": np.arange(4000)}, folder / "data")
    dying = LoseMemoryAndDie(folder)
    store = feedline.open(folder / "data")
    loader = DataLoader(store, batch_size=4, num_workers=1, worker_init_fn=dying)
    batches = iter(loader)
    while not dying.is_lost.exists():
        time.sleep(0.001)
    dying.is_asked.touch()
    report(loader, batches)


def main() -> None:
    case = sys.argv[1]
    if case == "chunks":
        store = DeadlyRows(np.arange(80).reshape(40, 2))
        chunks = ChunkLoader(store, SequentialSampler(4, 1, 4), num_workers=1)
        report(chunks, chunks)
    elif case == "memory":
        with tempfile.TemporaryDirectory() as folder:
            lose_memory(Path(folder))
    else:
        code, num_workers = map(int, case.split(","))
        loader = DataLoader(Deadly(code), batch_size=4, num_workers=num_workers)
        report(loader, loader)


if __name__ == "__main__":
    main()
