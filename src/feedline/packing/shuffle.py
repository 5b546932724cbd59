"""A shuffle that is larger than memory.

Every row has a random key, and the shuffled order is that of the keys. Rows are dealt to files, the
spills, by ranges of keys; each spill is then sorted in memory, or dealt again to finer ranges if it
is too large. So the order depends on neither the number of spills nor the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.keys import row_keys
from feedline.packing.rows import (
    Rows,
    concatenate_rows,
    num_bytes_of,
    part_of_rows,
    read_rows,
    take_rows,
    write_rows,
)
from feedline.packing.workshop import Entry, Journal
from feedline.plan.seeds import Seed
from feedline.store.lists import Lists
from feedline.store.writing import remove, reported, sync

# Columns beside those of the rows; no column of a source can have such a name.
_KEY = "\0key"
_SPLIT = "\0split"
_MAX_PARTS = 256
_NUM_PARTS_IF_UNKNOWN = 64
# Beyond this the numbers of parts would not fit the arithmetic; keys never get that close.
_MAX_NUM_PARTS = 2**31
# What sorting needs beside a row and its key: its place, and the part that it is grouped by.
_WORK_BYTES = 16


@dataclass(eq=False)
class Spill:
    """The rows of a split whose keys are in range `part` of `num_parts` equal ones: one file."""

    split: int
    num_parts: int
    part: int
    num_rows: int = 0
    num_bytes: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.split}-{self.num_parts}-{self.part}.rows"


class Shuffle:
    """Takes all rows, and then yields those of each split in shuffled order.

    Args:
        folder: The folder for spills.
        seed: The seed of the order.
        num_bytes: About the number of bytes of all rows; None if unknown.
        max_bytes: The bytes of rows that are sorted at once; the peak is twice as much.
        pool: Threads that write spills.
        num_splits: The number of splits; each has its own spills.
        like: No rows, with the columns; by default those of the first rows.
        journal: Records what is on disk, so that an interrupted run can resume.
        entries: The journal entries of the interrupted run.
        sync_bytes: The bytes to write between journal entries.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: Seed,
        num_bytes: int | None,
        max_bytes: int,
        pool: Executor,
        num_splits: int = 1,
        like: Rows | None = None,
        journal: Journal | None = None,
        entries: Sequence[Entry] = (),
        sync_bytes: int = 2**30,
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._max_bytes = max_bytes
        self._pool = pool
        self._like: Rows | None = None if like is None else {**like, _KEY: np.empty(0, np.uint64)}
        self._journal = journal
        self._entries = entries
        self._sync_bytes = sync_bytes
        self._num_unsynced_bytes = 0
        self._held: list[Rows] = []
        self._num_held_bytes = 0
        last = next((entry for entry in reversed(entries) if "dealt" in entry), None)
        #: How many rows were taken.
        self.num_rows: int = last["dealt"] if last else 0
        #: Whether all rows were.
        self.is_done: bool = bool(last and last["is_all"])
        if last:
            self._spills = [Spill(*values) for values in last["spills"]]
        else:
            num_parts = _NUM_PARTS_IF_UNKNOWN if num_bytes is None else self._num_parts(num_bytes)
            splits = range(num_splits)
            self._spills = [s for split in splits for s in _make_spills(split, 1, 0, num_parts)]
        if not self.is_done:
            with reported(folder):
                self._cut_back()

    def add(self, rows: Rows, labels: NDArray[np.uint8] | None = None) -> None:
        """Take the next rows of the source; `labels` are their splits, if there are several."""
        start, count = self.num_rows, len(next(iter(rows.values())))
        self.num_rows += count
        held = {**rows, _KEY: row_keys(self._seed, start, start + count)}
        if labels is not None:
            held[_SPLIT] = labels
        self._held.append(held)
        self._num_held_bytes += num_bytes_of(held) + _WORK_BYTES * count
        if self._num_held_bytes >= self._max_bytes // 2:
            self._write()

    def finish(self) -> None:
        """Write the buffered rows, after the last one."""
        self._write()
        self._enter(is_all=True)
        self.is_done = True

    def shuffled(
        self, split: int = 0, is_finished: Callable[[int, int], bool] | None = None
    ) -> Iterator[tuple[int, Rows | None]]:
        """Yield the rows of a split in the order of their keys: their number, and the rows.

        If `is_finished(start, stop)` is true, the rows are in finished chunks: None is yielded, and
        spills are not read. Spills of finished rows are removed; without it, those that were read.
        """
        position = 0
        spent: list[tuple[Spill, int, int]] = []
        # A stack, so that what a spill is dealt to comes before the next spill.
        left = [spill for spill in self._spills[::-1] if spill.split == split and spill.num_rows]
        while left:
            spill = left.pop()
            stop = position + spill.num_rows
            if is_finished is not None and is_finished(position, stop):
                yield spill.num_rows, None
            elif finer := self._deal_again(spill):
                left += finer[::-1]
                continue
            else:
                for rows in self._sorted(spill):
                    yield len(rows[_KEY]), rows
            spent.append((spill, position, stop))
            position = stop
            for old in [s for s in spent if is_finished is None or is_finished(*s[1:])]:
                self._remove(old[0])
                spent.remove(old)

    def _sorted(self, spill: Spill) -> Iterator[Rows]:
        rows = concatenate_rows(list(self._frames(spill)))
        # Frames came in the order of the rows, so equal keys stay in that order.
        order = np.argsort(_numbers(rows, _KEY), kind="stable")
        step = max(1, len(order) * self._max_bytes // (4 * max(1, spill.num_bytes)))
        for first in range(0, len(order), step):
            yield take_rows(rows, order[first : first + step])

    def _deal_again(self, spill: Spill) -> list[Spill]:
        """Return spills that hold the rows of one; none if the one itself fits in memory."""
        found = (entry for entry in self._entries if entry.get("dealt_again") == spill.name)
        if entry := next(found, None):
            finer = [Spill(*values) for values in entry["spills"]]
        else:
            num_bytes = spill.num_bytes + _WORK_BYTES * spill.num_rows
            factor = self._num_parts(num_bytes)
            is_small = num_bytes <= self._max_bytes or spill.num_rows == 1
            if is_small or spill.num_parts * factor > _MAX_NUM_PARTS:
                return []
            finer = _make_spills(spill.split, spill.num_parts, spill.part, factor)
            for part in finer:
                self._remove(part)
            for rows in self._frames(spill):
                places = part_of(_numbers(rows, _KEY), finer[0].num_parts) - finer[0].part
                self._deal(rows, finer, places)
            finer = [part for part in finer if part.num_rows]
            if self._journal is not None:
                self._sync(finer)
                values = [astuple(part) for part in finer]
                self._journal.append({"dealt_again": spill.name, "spills": values})
        self._remove(spill)
        return finer

    def _write(self) -> None:
        if not self._held:
            return
        rows = dict(concatenate_rows(self._held))
        self._held, self._num_held_bytes = [], 0
        num_parts = self._spills[0].num_parts
        places = part_of(_numbers(rows, _KEY), num_parts)
        if _SPLIT in rows:
            places += _numbers(rows, _SPLIT).astype(np.int64) * num_parts
            del rows[_SPLIT]
        if self._like is None:
            self._like = part_of_rows(rows, 0, 0)
        self._deal(rows, self._spills, places)
        self._num_unsynced_bytes += num_bytes_of(rows)
        if self._num_unsynced_bytes >= self._sync_bytes:
            self._enter(is_all=False)

    def _deal(self, rows: Rows, spills: list[Spill], places: NDArray[np.int64]) -> None:
        """Append every row to the spill at its place."""
        dealt = rows if len(spills) == 1 else take_rows(rows, np.argsort(places, kind="stable"))
        ends = np.cumsum(np.bincount(places, minlength=len(spills))).tolist()
        tasks = [
            self._pool.submit(self._append, spill, part_of_rows(dealt, start, stop), stop - start)
            for spill, start, stop in zip(spills, [0, *ends], ends, strict=False)
            if stop > start
        ]
        for task in tasks:
            task.result()

    def _append(self, spill: Spill, rows: Rows, count: int) -> None:
        path = self._folder / spill.name
        with reported(path), open(path, "ab") as file:
            spill.num_bytes += write_rows(file, rows)
        spill.num_rows += count

    def _frames(self, spill: Spill) -> Iterator[Rows]:
        """Yield the rows of a spill, as they were appended."""
        assert self._like is not None
        path = self._folder / spill.name
        size = path.stat().st_size if path.exists() else -1
        if size != spill.num_bytes:
            raise PackError(
                f"{path}: has {size} bytes and must have {spill.num_bytes}; the partial folder was "
                "changed; start over with resume=False"
            )
        with open(path, "rb") as file:
            while file.tell() < size:
                yield read_rows(file, self._like)

    def _enter(self, *, is_all: bool) -> None:
        """Record the spills in the journal, once they are on disk."""
        self._num_unsynced_bytes = 0
        if self._journal is not None:
            self._sync(spill for spill in self._spills if spill.num_rows)
            values = [astuple(spill) for spill in self._spills]
            self._journal.append({"dealt": self.num_rows, "is_all": is_all, "spills": values})

    def _sync(self, spills: Iterable[Spill]) -> None:
        with reported(self._folder):
            sync([*(self._folder / spill.name for spill in spills), self._folder])

    def _remove(self, spill: Spill) -> None:
        with reported(self._folder):
            remove(self._folder / spill.name)

    def _cut_back(self) -> None:
        """Truncate the files to the sizes in the journal."""
        self._folder.mkdir(parents=True, exist_ok=True)
        sizes = {spill.name: spill.num_bytes for spill in self._spills if spill.num_rows}
        for path in self._folder.iterdir():
            if path.name in sizes:
                with open(path, "r+b") as file:
                    file.truncate(sizes[path.name])
            else:
                remove(path)

    def _num_parts(self, num_bytes: int) -> int:
        """Return the number of spills for which each probably fits in memory."""
        return max(1, min(_MAX_PARTS, -(-num_bytes * 5 // (self._max_bytes * 4))))


def part_of(keys: NDArray[np.uint64], num_parts: int) -> NDArray[np.int64]:
    """Return which of that many equal ranges each key is in.

    A part of n is made of k parts of n * k: the floors of x * n and of x * n * k agree.
    """
    high = keys >> np.uint64(32)
    return ((high * np.uint64(num_parts)) >> np.uint64(32)).astype(np.int64)


def _make_spills(split: int, num_parts: int, part: int, factor: int) -> list[Spill]:
    """Return the parts that are finer by a factor, and that one part is made of."""
    first = part * factor
    return [Spill(split, num_parts * factor, n) for n in range(first, first + factor)]


def _numbers(rows: Rows, name: str) -> NDArray[np.uint64]:
    column = rows[name]
    assert not isinstance(column, Lists)
    return column
