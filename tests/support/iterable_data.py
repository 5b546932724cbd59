"""Iterable datasets with states of every kind that the protocol allows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def share() -> tuple[int, int]:
    """Return which part of how many this process reads."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class Counting(IterableDataset[int]):
    """Numbers below a bound, every n-th in each worker; the state is in the dataset."""

    def __init__(self, num_samples: int, *, pause: float = 0.0, fails_at: int = -1) -> None:
        self.num_samples = num_samples
        self.pause = pause
        self.fails_at = fails_at
        self.epoch = 0
        self.at: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        start, step = share()
        if self.at is None:
            self.at = start
        while self.at < self.num_samples:
            number = self.at
            if number == self.fails_at:
                raise RuntimeError(f"sample {number} is broken")
            if self.pause:
                time.sleep(self.pause * random.random())
            self.at += step
            yield number + 1000 * self.epoch
        # As torchdata's own examples do: the next pass begins at the start.
        self.at = None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Unequal(Counting):
    """Numbers of which each worker has another count: some end long before others."""

    def __iter__(self) -> Iterator[int]:
        worker, _ = share()
        sizes = [self.num_samples, self.num_samples // 4, 1, self.num_samples // 2]
        base = 100 * worker
        if self.at is None:
            self.at = 0
        while self.at < sizes[worker % 4]:
            if self.pause:
                time.sleep(self.pause * random.random())
            self.at += 1
            yield base + self.at - 1
        self.at = None


class Shuffling(IterableDataset[dict[str, Any]]):
    """Samples out of a buffer; the iterator has the state: buffer, generators and all."""

    def __init__(self, num_samples: int, buffer_size: int = 7) -> None:
        self.num_samples = num_samples
        self.buffer_size = buffer_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> _Shuffled:
        return _Shuffled(self, *share())


class _Shuffled:
    def __init__(self, data: Shuffling, start: int, step: int) -> None:
        self.data, self.at, self.step = data, start, step
        self.rng = random.Random(data.epoch * 31 + start)
        self.noise = torch.Generator().manual_seed(data.epoch)
        self.numbers = np.random.default_rng([data.epoch, start])
        self.buffer: list[int] = []

    def __iter__(self) -> _Shuffled:
        return self

    def __next__(self) -> dict[str, Any]:
        while len(self.buffer) < self.data.buffer_size and self.at < self.data.num_samples:
            self.buffer.append(self.at)
            self.at += self.step
        if not self.buffer:
            raise StopIteration
        number = self.buffer.pop(self.rng.randrange(len(self.buffer)))
        noise = torch.rand(2, generator=self.noise)
        return {"id": number, "noise": noise, "more": self.numbers.random(3), "name": f"s{number}"}

    def state_dict(self) -> dict[str, Any]:
        # The buffer is the live one, which the next sample changes.
        return {
            "at": self.at,
            "buffer": self.buffer,
            "rng": self.rng.getstate(),
            "noise": self.noise.get_state(),
            "numbers": self.numbers.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], list(state["buffer"])
        self.rng.setstate(state["rng"])
        self.noise.set_state(state["noise"])
        self.numbers.bit_generator.state = state["numbers"]


class Stateless(IterableDataset[int]):
    """Numbers, and no way to resume."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))
