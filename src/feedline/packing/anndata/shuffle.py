"""A shuffle of rows of any length that is larger than memory.

Every row has a random key, and the shuffled order is that of the keys. Rows are dealt to files by
ranges of keys; each file is then sorted in memory, or dealt again if it is too large. So the order
depends on neither the number of files nor the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.packing.anndata.rows import (
    Ragged,
    Rows,
    concatenate_rows,
    num_bytes_of,
    part_of_rows,
    read_rows,
    take_rows,
    write_rows,
)
from feedline.packing.keys import Seed, row_keys
from feedline.packing.spills import part_of
from feedline.store.writing import remove

__all__ = ["RowShuffle"]

_MAX_PARTS = 256
# Beyond this the numbers of parts would not fit the arithmetic; keys never get that close.
_MAX_NUM_PARTS = 2**31


@dataclass(eq=False)
class _Spill:
    """The rows whose keys are in one of `num_parts` ranges; frames were appended one by one."""

    path: Path
    num_parts: int
    part: int
    frames: list[list[int]] = field(default_factory=list)
    num_rows: int = 0
    num_bytes: int = 0


class RowShuffle:
    """Takes all rows, and then gives them back in another order.

    Args:
        folder: Where to keep rows on the way.
        seed: What the order depends on.
        num_bytes: About how many bytes of rows there will be.
        max_bytes: How many bytes of rows are held at once; twice as many are needed for moments.
    """

    def __init__(self, folder: Path, *, seed: Seed, num_bytes: int, max_bytes: int) -> None:
        self._folder = folder
        self._seed = seed
        self._max_bytes = max_bytes
        self._spills = self._make_spills(1, 0, self._num_parts_for(num_bytes))
        self._held: list[Rows] = []
        self._num_held_bytes = 0
        self._like: Rows = {}
        folder.mkdir(parents=True)

    def add(self, rows: Rows) -> None:
        """Take neighbouring rows."""
        numbers = rows["row"]
        assert not isinstance(numbers, Ragged)
        keys = row_keys(self._seed, int(numbers[0]), int(numbers[-1]) + 1)
        self._held.append({**rows, "key": keys})
        self._num_held_bytes += num_bytes_of(self._held[-1])
        if self._num_held_bytes >= self._max_bytes:
            self._write()

    def shuffled(self) -> Iterator[Rows]:
        """Yield all rows in the order of their keys, some at a time."""
        self._write()
        # A stack, so that what a spill is dealt to comes before the next spill.
        left = self._spills[::-1]
        while left:
            spill = left.pop()
            num_parts = self._num_parts_for(spill.num_bytes)
            is_large = spill.num_bytes > self._max_bytes and spill.num_rows > 1
            if is_large and spill.num_parts * num_parts <= _MAX_NUM_PARTS:
                finer = self._make_spills(spill.num_parts, spill.part, num_parts)
                for rows in self._frames(spill):
                    self._deal(rows, finer)
                left += finer[::-1]
            elif spill.num_rows:
                rows = concatenate_rows(list(self._frames(spill)))
                yield from self._sorted(rows, spill.num_bytes)
            remove(spill.path)

    def _sorted(self, rows: Rows, num_bytes: int) -> Iterator[Rows]:
        # Frames came in the order of the rows, so equal keys stay in that order.
        order = np.argsort(_keys_of(rows), kind="stable")
        step = max(1, len(order) * self._max_bytes // (4 * max(1, num_bytes)))
        for first in range(0, len(order), step):
            yield take_rows(rows, order[first : first + step])

    def _write(self) -> None:
        if self._held:
            rows = concatenate_rows(self._held)
            self._held, self._num_held_bytes = [], 0
            self._like = part_of_rows(rows, 0, 0)
            self._deal(rows, self._spills)

    def _deal(self, rows: Rows, spills: list[_Spill]) -> None:
        """Append every row to the one of neighbouring spills that its key belongs to."""
        places = part_of(_keys_of(rows), spills[0].num_parts) - spills[0].part
        order = np.argsort(places, kind="stable")
        dealt = take_rows(rows, order) if len(spills) > 1 else rows
        ends = np.cumsum(np.bincount(places, minlength=len(spills))).tolist()
        for spill, start, stop in zip(spills, [0, *ends], ends, strict=False):
            if stop > start:
                part = part_of_rows(dealt, start, stop)
                with open(spill.path, "ab") as file:
                    spill.frames.append(write_rows(file, part))
                spill.num_rows += stop - start
                spill.num_bytes += num_bytes_of(part)

    def _frames(self, spill: _Spill) -> Iterator[Rows]:
        if spill.frames:
            with open(spill.path, "rb") as file:
                for lengths in spill.frames:
                    yield read_rows(file, self._like, lengths)

    def _num_parts_for(self, num_bytes: int) -> int:
        return max(1, min(_MAX_PARTS, -(-num_bytes * 5 // (self._max_bytes * 4))))

    def _make_spills(self, num_parts: int, part: int, factor: int) -> list[_Spill]:
        total, first = num_parts * factor, part * factor
        return [
            _Spill(self._folder / f"{total}-{number}.rows", total, number)
            for number in range(first, first + factor)
        ]


def _keys_of(rows: Rows) -> NDArray[np.uint64]:
    keys = rows["key"]
    assert not isinstance(keys, Ragged)
    return keys
