"""A loader whose workers hear signals from outside, as a job of its own.

Arguments: one JSON object with `loader` (feedline or plain), `start_method`, `preemption_signal`,
`hangs` (whether a worker sleeps for ever at its second batch), `threads` (whether spawned workers
have a thread before they can be shielded, as libraries of linear algebra start when they are
imported) and `early` (whether they hear SIGTERM before that). It prints the worker's number first,
goes on when a line comes in, and prints the ids of all batches.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any

import torch.utils.data

from feedline.torch import DataLoader, StepScheduler

NUM_SAMPLES = 40


class Slow:
    """Each sample is its own index; one of them may never come."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._hangs = job["hangs"]
        self._threads = job["threads"]
        self._early = job["early"]

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        if self._hangs and index == 4:
            time.sleep(600)
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A spawned worker comes here before anything of its loader is called.
        self.__dict__.update(state)
        if self._threads:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        if self._early:
            os.kill(os.getpid(), signal.SIGTERM)


def main(job: dict[str, Any]) -> None:
    make: Any = DataLoader if job["loader"] == "feedline" else torch.utils.data.DataLoader
    loader = make(
        Slow(job),
        batch_size=4,
        num_workers=1,
        prefetch_factor=1,
        multiprocessing_context=job["start_method"],
    )
    scheduler = StepScheduler(
        4, 4, 1, loader, num_epochs=1, preemption_signal=job["preemption_signal"]
    )
    found: list[int] = []
    for batches in scheduler:
        found += batches[0].tolist()
        if scheduler.step == 0:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            sys.stdin.readline()
        if job["hangs"]:
            break
    print(json.dumps(found), scheduler.stop_reason, flush=True)
    scheduler.close()
    for child in multiprocessing.active_children():
        child.join(5)
    print(len(multiprocessing.active_children()), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
