"""Comparing the samples that were delivered with those that the plan says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Segment

__all__ = ["IdTrail", "planned_ids"]

Ids = NDArray[np.int64]


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


def planned_ids(segment: Segment, rank: int, start: int, entries_per_batch: int) -> Iterator[Ids]:
    """Yield the samples of each batch of a pass, from its beginning on."""
    waiting: list[Ids] = []
    num_waiting = 0
    for block in segment.blocks(rank, start, entries_per_batch):
        edges = block.bounds.tolist()
        if entries_per_batch == 1:
            for first, end in pairwise(edges):
                yield block.indices[first:end]
            continue
        # Entries are single samples, and several of them make a batch.
        waiting.append(block.indices)
        num_waiting += len(block.indices)
        together = np.concatenate(waiting)
        num_whole = num_waiting - num_waiting % entries_per_batch
        for first in range(0, num_whole, entries_per_batch):
            yield together[first : first + entries_per_batch]
        waiting, num_waiting = [together[num_whole:]], num_waiting - num_whole
    if num_waiting:
        yield np.concatenate(waiting)


def _rolled(before: bytes, ids: Ids) -> bytes:
    return hashlib.blake2b(before + np.ascontiguousarray(ids).tobytes(), digest_size=16).digest()
