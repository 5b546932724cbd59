"""Blocks of a segment that readers share: computed in large pieces, handed out in small ones."""

from __future__ import annotations

from threading import Lock

from feedline.plan import Block, Segment

__all__ = ["BlocksAhead"]

_MAX_ENTRIES = 2**15


class BlocksAhead:
    """The batches of one rank. Threads ask for parts of it, roughly from the front to the end.

    To compute a block costs some hundred microseconds however small it is, so large ones are
    computed, a small one first. The latest two are kept, because readers straddle their border.
    """

    def __init__(self, segment: Segment, rank: int) -> None:
        self._segment = segment
        self._rank = rank
        self._lock = Lock()
        self._latest: list[Block] = []
        self._num_batches = 1

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
