"""INFO messages of a loader through `logging`: where each pass begins, and its cost."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from feedline.feed.passes import Pass
from feedline.feed.waits import PARTS
from feedline.words import several, shown

_MAX_CHARACTERS = 200

#: The logger of the library.
logger = logging.getLogger("feedline")


def is_heard() -> bool:
    """Whether INFO messages are shown; nothing is measured otherwise."""
    return logger.isEnabledFor(logging.INFO)


class NarratedBatches(Iterator[Any]):
    """The batches of a pass; their beginning and their end are logged."""

    def __init__(self, batches: Iterator[Any], running: Pass, name: str) -> None:
        self._batches = batches
        self._running = running
        self._name = f"{name}, epoch {running.segment.epoch}"
        self._num_batches = 0
        self._waits = dict.fromkeys(PARTS, 0.0)
        self._began = perf_counter()
        logger.info("%s: %s", self._name, _where(running))

    def __next__(self) -> Any:
        waits = self._running.waits
        before, start = waits.now(), perf_counter()
        batch = next(self._batches)
        wait = waits.since(before, perf_counter() - start)
        for part in PARTS:
            self._waits[part] += getattr(wait, part)
        self._num_batches += 1
        if self._num_batches == self._running.num_batches:
            # A loop that counts the batches does not ask for one more.
            self._end()
        return batch

    def _end(self) -> None:
        took = perf_counter() - self._began
        waited = sum(self._waits.values())
        parts = [f"{spent:.3g} s {part.replace('_', ' ')}" for part, spent in self._waits.items()]
        logger.info(
            "%s: ended after %s in %.3g s, %.3g s of it (%.0f%%) waiting for data: %s",
            self._name,
            several(self._num_batches, "batch", "batches"),
            took,
            waited,
            100 * waited / max(took, 1e-9),
            ", ".join(parts),
        )

    def __len__(self) -> int:
        return self._running.num_batches

    def close(self) -> None:
        """End the threads that read ahead, if any."""
        if close := getattr(self._batches, "close", None):
            close()


def _where(running: Pass) -> str:
    """Return a text with the plan, the ranks, the batches, the tail and the starting point."""
    segment = running.segment
    plan = shown(getattr(segment.plan, "plan", segment.plan), _MAX_CHARACTERS)
    size = segment.batch_size * running.batching.num_entries
    begun = "starts at its beginning"
    history = segment.history_after(segment.num_done)
    if history:
        num_samples = sum(math.prod(past[:3]) for past in history)
        begun = f"resumes after {several(num_samples, 'sample')} of all ranks"
    if num_skipped := sum(past.num_skipped for past in history):
        begun += f", skipping {several(num_skipped, 'batch', 'batches')} of the epoch"
    return (
        f"rank {running.rank} of {segment.world_size}, "
        f"{several(running.num_batches, 'batch', 'batches')} of {several(size, 'sample')}, "
        f"tail {segment.plan.tail or 'of its own'!r}, {begun}; {plan}"
    )
