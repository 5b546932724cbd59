"""The two passes of a shuffle: deal rows to spills, then sort each spill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.batch import Batch
from feedline.packing.journal import Entry, Journal
from feedline.packing.keys import Seed, row_keys
from feedline.packing.spills import Spill, Spills, part_of
from feedline.store.writing import remove, reported, sync

__all__ = ["Dealer", "deal_again", "num_parts_for"]

_MAX_PARTS = 256
_NUM_PARTS_IF_UNKNOWN = 64
# Beyond this the numbers of parts would not fit the arithmetic; keys never get that close.
_MAX_NUM_PARTS = 2**31
# What sorting needs beside a row: its key, its place, and the label that it is grouped by.
_WORK_BYTES = 24


def rows_in(num_bytes: int, row_bytes: int) -> int:
    """Return how many rows can be held and sorted in so much memory."""
    return max(1, num_bytes // (row_bytes + _WORK_BYTES))


def num_parts_for(num_rows: int | None, max_rows: int) -> int:
    """Return to how many spills rows are dealt so that each of them probably fits in memory."""
    if num_rows is None:
        return _NUM_PARTS_IF_UNKNOWN
    return max(1, min(_MAX_PARTS, -(-num_rows * 5 // (max_rows * 4))))


class Dealer:
    """The first pass: appends every row to a spill by its key and its split.

    Args:
        spills: The files.
        journal: Where it is entered how long the files are.
        entries: What the journal of an interrupted run holds.
        num_splits: The number of splits; each has spills of its own.
        num_parts: The number of spills of each split, unless the journal tells another.
        max_rows: How many rows are collected before they are written.
        sync_rows: How many rows are written before the journal is told.
        pool: Threads for writing.
    """

    def __init__(
        self,
        *,
        spills: Spills,
        journal: Journal,
        entries: Iterable[Entry],
        num_splits: int,
        num_parts: int,
        max_rows: int,
        sync_rows: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._spills = spills
        self._journal = journal
        self._pool = pool
        self._sync_rows = sync_rows
        last = next((entry for entry in reversed(list(entries)) if "dealt" in entry), None)
        self.num_rows = last["dealt"] if last else 0
        self.is_done: bool = bool(last and last["is_all"])
        counts = last["spills"] if last else [[0] * num_parts for _ in range(num_splits)]
        self._counts = np.array(counts, np.int64)
        self._num_synced = self.num_rows
        self._buffer = np.empty(0 if self.is_done else max_rows, spills.dtype)
        self._labels = np.empty(len(self._buffer), np.int64)
        self._num_held = 0
        if not self.is_done:
            with reported(spills.folder):
                self._cut_back()

    def add(self, seed: Seed, batch: Batch, labels: NDArray[np.uint8] | None) -> None:
        """Deal the next rows; `labels` are their splits."""
        done = 0
        while done < batch.num_rows:
            count = min(batch.num_rows - done, len(self._buffer) - self._num_held)
            start = self.num_rows + self._num_held
            keys = row_keys(seed, start, start + count)
            held = slice(self._num_held, self._num_held + count)
            part = batch.part(done, done + count)
            self._spills.fill(self._buffer[held], keys, dict(part.arrays))
            num_parts = self._counts.shape[1]
            self._labels[held] = part_of(keys, num_parts)
            if labels is not None:
                self._labels[held] += labels[done : done + count].astype(np.int64) * num_parts
            done += count
            self._num_held += count
            if self._num_held == len(self._buffer):
                self._write()

    def finish(self) -> None:
        """Write what is held, and enter that all rows are dealt."""
        self._write()
        self._sync(is_all=True)
        self._buffer, self._labels = self._buffer[:0].copy(), self._labels[:0].copy()
        self.is_done = True

    def dealt(self) -> list[list[Spill]]:
        """Return the spills of each split, in the order of their keys."""
        return [
            [
                Spill(split, len(counts), part, int(count))
                for part, count in enumerate(counts)
                if count
            ]
            for split, counts in enumerate(self._counts)
        ]

    def _write(self) -> None:
        num_parts = self._counts.shape[1]
        groups = self._spills.group(self._buffer[: self._num_held], self._labels[: self._num_held])
        tasks = [
            self._pool.submit(self._spills.append, Spill(*_place(label, num_parts), 0), rows)
            for label, rows in groups
        ]
        for task in tasks:
            task.result()
        for label, rows in groups:
            self._counts[label // num_parts, label % num_parts] += len(rows)
        self.num_rows += self._num_held
        self._num_held = 0
        if self.num_rows - self._num_synced >= self._sync_rows:
            self._sync(is_all=False)

    def _sync(self, *, is_all: bool) -> None:
        paths = [self._spills.path(spill) for spills in self.dealt() for spill in spills]
        with reported(self._spills.folder):
            sync([*paths, self._spills.folder])
        counts = self._counts.tolist()
        self._journal.append({"dealt": self.num_rows, "is_all": is_all, "spills": counts})
        self._num_synced = self.num_rows

    def _cut_back(self) -> None:
        """Bring the files back to what the journal says."""
        folder = self._spills.folder
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {
            spill.name: spill.num_rows * self._spills.dtype.itemsize
            for spills in self.dealt()
            for spill in spills
        }
        for path in folder.iterdir():
            if path.name in sizes:
                with open(path, "r+b") as file:
                    file.truncate(sizes[path.name])
            else:
                remove(path)


def _place(label: int, num_parts: int) -> tuple[int, int, int]:
    return label // num_parts, num_parts, label % num_parts


def deal_again(
    spills: Spills, spill: Spill, max_rows: int, journal: Journal, entries: Iterable[Entry]
) -> list[Spill]:
    """Return spills that hold the rows of one and fit in memory; the one itself if it does."""
    for entry in entries:
        if entry.get("dealt_again") == spill.name:
            parts = [Spill(*values) for values in entry["spills"]]
            break
    else:
        factor = min(_MAX_PARTS, -(-spill.num_rows * 5 // (max_rows * 4)))
        if spill.num_rows <= max_rows or spill.num_parts * factor > _MAX_NUM_PARTS:
            return [spill]
        parts = _deal_one(spills, spill, factor, max_rows)
        values = [[s.split, s.num_parts, s.part, s.num_rows] for s in parts]
        journal.append({"dealt_again": spill.name, "spills": values})
    with reported(spills.folder):
        remove(spills.path(spill))
    found: list[Spill] = []
    for part in parts:
        found += deal_again(spills, part, max_rows, journal, entries)
    return found


def _deal_one(spills: Spills, spill: Spill, factor: int, max_rows: int) -> list[Spill]:
    num_parts = spill.num_parts * factor
    first = spill.part * factor
    counts = [0] * factor
    with reported(spills.folder):
        for number in range(factor):
            remove(spills.path(Spill(spill.split, num_parts, first + number, 0)))
    for rows in spills.read(spill, max(1, max_rows // 2)):
        for part, group in spills.group(rows, part_of(rows["key"], num_parts)):
            spills.append(Spill(spill.split, num_parts, part, 0), group)
            counts[part - first] += len(group)
    parts = [
        Spill(spill.split, num_parts, first + number, count)
        for number, count in enumerate(counts)
        if count
    ]
    with reported(spills.folder):
        sync([*(spills.path(part) for part in parts), spills.folder])
    return parts


def sorted_rows(
    spills: Spills,
    dealt: list[Spill],
    max_rows: int,
    *,
    journal: Journal,
    entries: Iterable[Entry],
    is_finished: Callable[[int, int], bool],
) -> Iterator[tuple[int, dict[str, NDArray[Any]] | None]]:
    """Yield the rows of a split in shuffled order: their number, and their columns.

    Where `is_finished(start, stop)` says that rows are in finished chunks, their columns are None
    and their spills are not read. Spills whose rows have been written are removed.
    """
    position = 0
    spent: list[tuple[Spill, int, int]] = []
    for large in dealt:
        if is_finished(position, position + large.num_rows):
            yield large.num_rows, None
            position += large.num_rows
            continue
        for spill in deal_again(spills, large, max_rows, journal, entries):
            stop = position + spill.num_rows
            if is_finished(position, stop):
                yield spill.num_rows, None
            else:
                for columns in spills.sorted_columns(spill):
                    yield len(next(iter(columns.values()))), columns
            spent.append((spill, position, stop))
            position = stop
            for old in [entry for entry in spent if is_finished(*entry[1:])]:
                with reported(spills.folder):
                    remove(spills.path(old[0]))
                spent.remove(old)
