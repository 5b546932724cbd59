"""Loaders that fail within a group, and streams that never end, lose no batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clock_loaders import Places, SizedPlaces
from clock_runs import records_of, saved, scheduler_for
from feedline.steps import StepScheduler
from thread_peers import ThreadPeers, on_ranks


class Stream:
    """Batches without an end; an epoch is so many of them, and the next one goes on from there."""

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._number = -1

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        self._number += 1
        return [self._number]


def test_a_stream_with_a_length_goes_on_from_epoch_to_epoch() -> None:
    records = records_of(scheduler_for(Stream(4), grad_acc=2, num_epochs=3))
    assert [one for record in records for (one,) in record["ids"]] == list(range(12))


@pytest.mark.parametrize("kind", [Places, SizedPlaces])
@pytest.mark.parametrize("bad", [0, 1, 4, 5])
def test_an_error_of_a_foreign_loader_loses_none_of_its_batches(kind: Any, bad: int) -> None:
    class Failing(kind):  # type: ignore[misc]
        def _batch(self, number: int) -> Any:
            if number == bad:
                raise RuntimeError("cannot be read")
            return super()._batch(number)

    whole = records_of(scheduler_for(kind(8), grad_acc=3, num_epochs=1, max_steps=100))
    scheduler = scheduler_for(Failing(8), grad_acc=3, num_epochs=1, max_steps=100)
    done = []

    def train() -> None:
        for _ in scheduler:
            done.append(scheduler.step)

    with pytest.raises(RuntimeError, match="cannot be read"):
        train()
    resumed = scheduler_for(kind(8), grad_acc=3, num_epochs=1, max_steps=100)
    resumed.load_state_dict(saved(scheduler))
    assert records_of(resumed) == whole[len(done) :]


AROUND = """
import signal
from feedline.steps import DistributedSignalHandler
signal.signal(signal.SIGUSR1, lambda *_: print("before", flush=True))
with DistributedSignalHandler("USR1"):
    ours = signal.getsignal(signal.SIGUSR1)
    def around(number, frame):
        print("around", flush=True)
        ours(number, frame)
    signal.signal(signal.SIGUSR1, around)
with DistributedSignalHandler("USR1"):
    pass
signal.raise_signal(signal.SIGUSR1)
"""


def test_a_handler_around_ours_reaches_the_first_one_after_two_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AROUND], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["around", "before"])


def test_ranks_that_ask_differently_and_go_back_to_a_state_stay_together() -> None:
    def run(peers: ThreadPeers) -> Any:
        batches = [[number] for number in range(6)]
        options: dict[str, Any] = {"peers": peers, "num_epochs": 2, "preemption_signal": None}
        scheduler = StepScheduler(2, 1, 2, batches, ckpt_every_steps=100, **options)
        state = saved(scheduler)
        for _ in scheduler:
            if scheduler.step == 3:
                # A loss that is no number: back to the checkpoint, on all ranks.
                if peers.rank == 0:
                    _ = scheduler.is_ckpt_step
                break
        scheduler.load_state_dict(state)
        return [scheduler.step for _ in scheduler.epochs for _ in scheduler]

    assert on_ranks(2, run) == [list(range(12))] * 2
