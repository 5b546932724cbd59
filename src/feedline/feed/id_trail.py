"""Comparing the samples that were delivered with those that the plan says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block, Segment

__all__ = ["IdTrail", "PlannedMarks", "planned_ids"]

Ids = NDArray[np.int64]
Marks = NDArray[np.bool_]
Value = TypeVar("Value", np.int64, np.bool_)


class IdTrail:
    """Two rolling hashes: of the samples of each batch that was delivered, and of those planned.

    Examples:
        >>> trail = IdTrail(iter([np.array([1, 2]), np.array([3, 4])]))
        >>> trail.deliver(np.array([1, 2]))
        >>> trail.agrees
        True
        >>> trail.deliver(np.array([4, 3]))
        >>> trail.agrees
        False
    """

    def __init__(self, planned: Iterator[Ids]) -> None:
        self._planned = planned
        self.delivered = self.expected = b""

    def deliver(self, ids: Ids) -> None:
        """Take note of the samples of a batch, in their order."""
        self.delivered = _rolled(self.delivered, np.asarray(ids, dtype=np.int64))
        planned = next(self._planned, None)
        self.expected = b"" if planned is None else _rolled(self.expected, planned)

    @property
    def agrees(self) -> bool:
        """Whether all batches so far were those that the plan says."""
        return self.delivered == self.expected


class PlannedMarks:
    """Which samples of the batches of a pass are real, asked for one batch after another."""

    def __init__(self, segment: Segment, rank: int, start: int, entries_per_batch: int) -> None:
        self._marks = _planned(segment, rank, start, entries_per_batch, _marks_of)
        self._number = -1
        self._latest: Marks = np.empty(0, dtype=np.bool_)

    def of(self, number: int) -> Marks:
        """Return the marks of a batch of the pass; numbers must not go down."""
        assert number >= self._number
        for _ in range(number - self._number):
            self._latest = next(self._marks)
        self._number = number
        return self._latest


def planned_ids(segment: Segment, rank: int, start: int, entries_per_batch: int) -> Iterator[Ids]:
    """Yield the samples of each batch of a pass, from its beginning on."""
    return _planned(segment, rank, start, entries_per_batch, lambda block: block.indices)


def _planned(
    segment: Segment,
    rank: int,
    start: int,
    entries_per_batch: int,
    values_of: Callable[[Block], NDArray[Value]],
) -> Iterator[NDArray[Value]]:
    """Yield a value for each sample of each batch of a pass."""
    waiting: list[NDArray[Value]] = []
    num_waiting = 0
    for block in segment.blocks(rank, start, entries_per_batch):
        values = values_of(block)
        if entries_per_batch == 1:
            for first, end in pairwise(block.bounds.tolist()):
                yield values[first:end]
            continue
        # Entries are single samples, and several of them make a batch.
        waiting.append(values)
        num_waiting += len(values)
        together = np.concatenate(waiting)
        num_whole = num_waiting - num_waiting % entries_per_batch
        for first in range(0, num_whole, entries_per_batch):
            yield together[first : first + entries_per_batch]
        waiting, num_waiting = [together[num_whole:]], num_waiting - num_whole
    if num_waiting:
        yield np.concatenate(waiting)


def _marks_of(block: Block) -> Marks:
    is_real = block.is_real
    return np.ones(len(block.indices), dtype=np.bool_) if is_real is None else is_real


def _rolled(before: bytes, ids: Ids) -> bytes:
    return hashlib.blake2b(before + np.ascontiguousarray(ids).tobytes(), digest_size=16).digest()
