"""What is gathered of batches while logs are read: the cells of a trace, and the waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedline.report.trace import Cell
from feedline.runs.log_entries import LoggedBatch

__all__ = ["CellParts", "Waits"]

_MOST_POINTS = 200

Numbers = NDArray[np.int64]


@dataclass
class CellParts:
    """The batches of one rank in one step, of which at most `most_ids` samples are kept."""

    most_ids: int
    num_real: int = 0
    num_padded: int = 0
    num_batches: int = 0
    wait: float = 0.0
    _ids: list[Numbers] = field(default_factory=list)
    _num_kept: int = 0

    def add(self, batch: LoggedBatch) -> None:
        """Take note of a batch."""
        real = batch.real_ids
        # A copy, for a view would keep the whole record in memory.
        kept = real[: self.most_ids - self._num_kept].copy()
        if len(kept):
            self._ids.append(kept)
            self._num_kept += len(kept)
        self.num_real += len(real)
        self.num_padded += len(batch.ids) - len(real)
        self.num_batches += 1
        self.wait += batch.wait

    @property
    def cell(self) -> Cell:
        """All of it."""
        return Cell(
            ids=np.concatenate([np.empty(0, dtype=np.int64), *self._ids]),
            num_real=self.num_real,
            num_padded=self.num_padded,
            num_batches=self.num_batches,
            wait=self.wait if math.isfinite(self.wait) else None,
        )


@dataclass
class Waits:
    """Seconds that ranks waited for data in `[steps[i], steps[i + 1])`: all of them, and the
    longest. Batches whose wait is no number are left out."""

    steps: Numbers
    total: NDArray[np.float64]
    longest: NDArray[np.float64]
    num_batches: Numbers

    @classmethod
    def over(cls, first: int, end: int) -> Waits:
        """Return waits of zero seconds in steps `[first, end)`, at most a few hundred of them."""
        width = max(1, -(-(end - first) // _MOST_POINTS))
        starts = np.array(range(first, end, width), dtype=np.int64)
        return cls(starts, np.zeros(len(starts)), np.zeros(len(starts)), np.zeros_like(starts))

    def add(self, batch: LoggedBatch) -> None:
        """Count a batch."""
        if not math.isfinite(batch.wait):
            return
        place = int(np.searchsorted(self.steps, batch.step, side="right")) - 1
        self.total[place] += batch.wait
        self.longest[place] = max(self.longest[place], batch.wait)
        self.num_batches[place] += 1
