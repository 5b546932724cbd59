"""Datasets for loader tests, in a module of their own so that spawned workers can import them."""

from __future__ import annotations

import os
import signal

import numpy as np
from numpy.typing import NDArray


class Ids:
    """Each sample is its own index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


class Listing(Ids):
    """A dataset with a fingerprint of what it lists."""

    def __init__(self, size: int, fingerprint: str) -> None:
        super().__init__(size)
        self.fingerprint = fingerprint


class WholeBatches:
    """Rows of an array, fetched a batch at a time."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._rows = rows
        self.num_calls = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return self._rows[index]

    def __getitems__(self, indices: list[int]) -> NDArray[np.float32]:
        self.num_calls += 1
        return self._rows[indices]


class FailsOnce(Ids):
    """One sample cannot be read."""

    def __init__(self, size: int, bad: int) -> None:
        super().__init__(size)
        self._bad = bad

    def __getitem__(self, index: int) -> int:
        if index == self._bad:
            raise RuntimeError(f"sample {index} cannot be read")
        return index


class ProcessIds(Ids):
    """Each sample is the process that fetched it."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Deadly(Ids):
    """Whoever fetches sample 7 is killed."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return index
