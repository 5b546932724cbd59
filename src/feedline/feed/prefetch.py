"""Chunks that will be read soon, announced to their store, so that a disk is never idle."""

from __future__ import annotations

from threading import Lock

from feedline.plan import Chunking, Segment
from feedline.store import Store

__all__ = ["Prefetch"]

_BYTES_AHEAD = 2**27
# A batch that touches more chunks than this comes from anywhere, and so will the next one.
_MAX_CHUNKS = 16


class Prefetch:
    """Looks a fixed distance ahead in a plan, now and then, and announces the chunks it sees."""

    def __init__(
        self, store: Store, chunking: Chunking, segment: Segment, rank: int, batch_bytes: int
    ) -> None:
        self._store = store
        self._chunking = chunking
        self._segment = segment
        self._rank = rank
        self._distance = max(1, _BYTES_AHEAD // max(batch_bytes, 1))
        self._lock = Lock()
        self._looked_to = -1
        self._announced: dict[int, None] = {}
        self._is_useful = True

    def after(self, number: int) -> None:
        """Look ahead, unless that was done lately; batch `number` has been read."""
        with self._lock:
            if not self._is_useful or self._looked_to >= number + self._distance // 2:
                return
            first = max(number, self._looked_to)
            last = number + self._distance
            self._looked_to = last
        step = max(1, self._distance // 4)
        for seen in range(first, min(last + 1, self._segment.num_batches), step):
            if not self._announce(seen):
                return

    def _announce(self, number: int) -> bool:
        indices = self._segment.block(self._rank, number, number + 1).indices
        chunks = set(self._chunking.rows_of(indices)[0].tolist())
        if len(chunks) > _MAX_CHUNKS:
            self._is_useful = False
            return False
        for chunk in chunks:
            if chunk not in self._announced:
                self._announced[chunk] = None
                self._store.prefetch(chunk)
        while len(self._announced) > 4 * _MAX_CHUNKS:
            del self._announced[next(iter(self._announced))]
        return True
