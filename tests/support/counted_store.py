"""A store of the user's own that writes down what is read of it, and kills who reads a chunk."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store import Column, Store


class CountedStore(Store):
    """Numbers in chunks of one size; each chunk that a process begins to read is in a log.

    Args:
        log: The file.
        num_chunks: The number of chunks.
        chunk_samples: The samples in each.
        deadly: The process that is the first to read this chunk is killed; None for none.
    """

    def __init__(
        self, log: Path, num_chunks: int, chunk_samples: int, deadly: int | None = None
    ) -> None:
        self._log, self._num_chunks, self._chunk_samples = log, num_chunks, chunk_samples
        self._deadly = deadly

    @property
    def num_samples(self) -> int:
        return self._num_chunks * self._chunk_samples

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        return np.full(self._num_chunks, self._chunk_samples)

    @property
    def columns(self) -> dict[str, Column]:
        return {"x": Column("x", "int64", (8,))}

    @property
    def fingerprint(self) -> str:
        return f"counted {self._num_chunks} {self._chunk_samples}"

    def read(self, chunk: int, rows: NDArray[np.int64]) -> dict[str, Any]:
        if len(rows) and rows[0] == 0:
            is_first = chunk not in self.times_read()
            with open(self._log, "a") as file:
                file.write(f"{chunk}\n")
            if chunk == self._deadly and is_first:
                os.kill(os.getpid(), signal.SIGKILL)
        return {"x": (chunk * self._chunk_samples + rows)[:, None] * 8 + np.arange(8)}

    def describe_row(self, chunk: int, row: int) -> str:
        return f"chunk {chunk}, row {row}"

    def times_read(self) -> Counter[int]:
        """Return how many times each chunk was begun."""
        return Counter(map(int, self._log.read_text().split())) if self._log.exists() else Counter()
