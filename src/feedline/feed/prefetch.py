"""Chunks that will be read soon, announced to their store, so that a disk is never idle."""

from __future__ import annotations

import numpy as np

from feedline.plan import Block, Chunking
from feedline.store import Store

# Blocks that touch more chunks than this take their samples from anywhere: reading ahead is no use.
_MAX_CHUNKS = 64


class Prefetch:
    """Announces the chunks of a block when they come up for the first time in a while."""

    def __init__(self, store: Store, chunking: Chunking) -> None:
        self._store = store
        self._chunking = chunking
        self._announced: dict[int, None] = {}

    def announce(self, block: Block) -> None:
        """Tell the store about the chunks of a block, in the order in which they are needed."""
        chunks, _ = self._chunking.rows_of(block.indices)
        starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
        if not len(chunks) or len(starts) > _MAX_CHUNKS:
            return
        for chunk in [int(chunks[0]), *chunks[starts].tolist()]:
            if chunk not in self._announced:
                self._announced[chunk] = None
                self._store.prefetch(chunk)
        while len(self._announced) > 2 * _MAX_CHUNKS:
            self._announced.pop(next(iter(self._announced)), None)
