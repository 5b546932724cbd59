"""Spill files: rows on their way through a shuffle that is larger than memory.

Every row has a random key, and the shuffled order is the order of the keys. A spill holds the rows
whose keys are in one of `num_parts` equal ranges, so spills can be sorted one by one, and a spill
that is too large can be dealt again to finer ranges. The order depends on neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.store.columns import Column
from feedline.store.writing import reported

__all__ = ["Spill", "Spills", "part_of"]

Rows = NDArray[Any]

_BATCH_BYTES = 2**22


@dataclass(frozen=True)
class Spill:
    """One file: part number `part` of the `num_parts` of a split."""

    split: int
    num_parts: int
    part: int
    num_rows: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.split}-{self.num_parts}-{self.part}.rows"


def part_of(keys: NDArray[np.uint64], num_parts: int) -> NDArray[np.int64]:
    """Return which of that many equal ranges each key is in.

    A part of n is made of k parts of n * k: the floors of x * n and of x * n * k agree.
    """
    high = keys >> np.uint64(32)
    return ((high * np.uint64(num_parts)) >> np.uint64(32)).astype(np.int64)


class Spills:
    """The spill files of a folder, as arrays of records: a key, then a value of each column."""

    def __init__(self, folder: Path, columns: list[Column]) -> None:
        self.folder = folder
        self._names = [column.name for column in columns]
        fields = [(str(n), column.dtype, column.shape) for n, column in enumerate(columns)]
        self.dtype = np.dtype([("key", "<u8"), *fields])

    def path(self, spill: Spill) -> Path:
        """Return where a spill is."""
        return self.folder / spill.name

    def fill(self, rows: Rows, keys: NDArray[np.uint64], arrays: dict[str, NDArray[Any]]) -> None:
        """Set records from columns."""
        rows["key"] = keys
        for number, name in enumerate(self._names):
            rows[str(number)] = arrays[name]

    def columns(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """Return records as columns."""
        return {name: rows[str(number)] for number, name in enumerate(self._names)}

    def append(self, spill: Spill, rows: Rows) -> None:
        """Add rows at the end of a file."""
        path = self.path(spill)
        with reported(path), open(path, "ab") as file:
            file.write(rows.view(np.uint8).data)

    def read(self, spill: Spill, max_rows: int) -> Iterator[Rows]:
        """Yield the rows of a file, so many at a time."""
        path = self.path(spill)
        size = path.stat().st_size if path.exists() else -1
        if size != spill.num_rows * self.dtype.itemsize:
            raise PackError(
                f"{path}: has {size} bytes and must have {spill.num_rows * self.dtype.itemsize}; "
                "someone has altered the partial folder, so start over by resume=False"
            )
        with open(path, "rb") as file:
            for first in range(0, spill.num_rows, max_rows):
                count = min(max_rows, spill.num_rows - first)
                yield np.fromfile(file, self.dtype, count)

    def sorted_columns(self, spill: Spill) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the rows of a spill in the order of their keys, a few MiB at a time."""
        for rows in self.read(spill, spill.num_rows):
            order = np.argsort(rows["key"], kind="stable")
            step = max(1, _BATCH_BYTES // self.dtype.itemsize)
            for first in range(0, len(order), step):
                yield self.columns(np.take(rows, order[first : first + step]))

    def group(self, rows: Rows, labels: NDArray[np.int64]) -> Iterable[tuple[int, Rows]]:
        """Return the rows of each label, in their order; labels without rows are left out."""
        if not len(rows):
            return []
        order = np.argsort(labels, kind="stable")
        ordered, found = np.take(rows, order), labels[order]
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        ends = [*starts[1:].tolist(), len(rows)]
        return [
            (int(found[start]), ordered[start:end])
            for start, end in zip(starts.tolist(), ends, strict=True)
        ]
