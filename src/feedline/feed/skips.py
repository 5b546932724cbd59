"""Samples that failed and were skipped: what stands in their place, and who is told."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block

# Beyond this, a sample that was named may be named again.
_MOST_NAMED = 2**16

logger = logging.getLogger("feedline")


class Skipped(NamedTuple):
    """A sample that failed, in whose place another sample of the batch stands.

    Args:
        slot: Its place in the batch.
        sample: Its number in the store.
        by: The number of the sample in its place.
        is_real: Whether it was real and not padding.
        reason: What went wrong.
    """

    slot: int
    sample: int
    by: int
    is_real: bool
    reason: str


#: What was skipped in a batch; None where an error is raised instead.
Skips = tuple[Skipped, ...] | None


def ids_in(block: Block, skips: Skips) -> NDArray[np.int64]:
    """Return the samples of a batch, with those that stand in the place of others."""
    if not skips:
        return block.indices
    ids = block.indices.copy()
    ids[[skipped.slot for skipped in skips]] = [skipped.by for skipped in skips]
    return ids


def marks_in(block: Block, skips: Skips) -> NDArray[np.bool_]:
    """Return which samples of a batch are real: neither padding nor in the place of another."""
    is_real = block.is_real
    marks = np.ones(len(block.indices), np.bool_) if is_real is None else is_real
    if skips:
        marks = marks.copy()
        marks[[skipped.slot for skipped in skips]] = False
    return marks


class SkipCount:
    """Counts the samples that were skipped in delivered batches, and logs each once by its id."""

    def __init__(self) -> None:
        self.num_skipped = 0
        self._named: set[int] = set()

    def note(self, skips: Skips) -> None:
        """Count what was skipped in a batch that the training loop receives."""
        for skipped in skips or ():
            self.num_skipped += skipped.is_real
            if skipped.sample in self._named:
                continue
            if len(self._named) < _MOST_NAMED:
                self._named.add(skipped.sample)
            logger.warning("sample %d is skipped: %s", skipped.sample, skipped.reason)
