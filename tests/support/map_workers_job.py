"""Fetches batches with two workers, until it is killed. Argument: where workers leave their ids."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from feedline.feed import Batching, Pass
from feedline.feed.map_batches import Fetching, Readers
from feedline.plan import SamplePlan, Sequential


class Slow:
    """Samples of which each takes a while."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        Path(self._folder, f"worker-{os.getpid()}").touch()
        time.sleep(0.02)
        return index


def main(folder: str) -> None:
    plan = SamplePlan(order=Sequential(num_samples=10**6))
    running = Pass(plan.segment(world_size=1, batch_size=2), 0, Batching())
    for _ in Readers(Fetching(Slow(folder)), num_workers=2).batches(running):
        pass


if __name__ == "__main__":
    main(sys.argv[1])
