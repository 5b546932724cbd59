"""Blocks of a segment that readers share: computed in large pieces, read in small ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block, Segment
from feedline.words import several

_MAX_ENTRIES = 2**15


class BlocksAhead:
    """The batches of one rank. Threads ask for parts of it, roughly from the front to the end.

    Computing a block costs some hundred microseconds even if it is small, so blocks are large,
    except the first. The latest two are kept, because readers straddle their border.

    Args:
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
    """

    def __init__(self, segment: Segment, rank: int) -> None:
        self._segment = segment
        self._rank = rank
        self._lock = Lock()
        self._latest: list[Block] = []
        self._num_batches = 1

    def __repr__(self) -> str:
        sizes = f"rank {self._rank} of {self._segment.world_size}"
        return f"<BlocksAhead: {several(self._segment.num_batches, 'batch', 'batches')}, {sizes}>"

    def part(self, start: int, stop: int) -> Block:
        """Return batches `[start, stop)`."""
        with self._lock:
            for block in self._latest:
                if block.first <= start and stop <= block.first + len(block):
                    return block.part(start, stop)
            end = min(max(stop, start + self._num_batches), self._segment.num_batches)
            block = self._segment.block(self._rank, start, end)
            self._latest = [block, *self._latest[:1]]
            if len(block.indices) * 4 <= _MAX_ENTRIES:
                self._num_batches = max(4 * self._num_batches, stop - start)
        return block.part(start, stop)


def picked_batches(segment: Segment, rank: int, numbers: range) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of each of the batches `numbers`, computed together in growing portions.

    Args:
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        numbers: Which batches.
    """
    start, count = 0, 1
    while start < len(numbers):
        indices, bounds = segment.picked(rank, numbers[start : start + count])
        edges = bounds.tolist()
        for first, end in pairwise(edges):
            yield indices[first:end]
        start += count
        if 4 * len(indices) <= _MAX_ENTRIES:
            count *= 4
