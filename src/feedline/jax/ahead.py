"""Batches that are copied to devices before the training loop asks for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

from feedline.feed import Pass
from feedline.feed.skips import SkipCount, Skips, marks_in
from feedline.jax.mesh import Placement
from feedline.jax.sources import Fetched


class _Coming(NamedTuple):
    """A batch on its way to the devices, or the error that comes instead."""

    number: int
    batch: Any
    skips: Skips
    error: Exception | None


class PutAhead(Iterator[Any]):
    """The batches of a pass on their devices; up to `num_ahead` are copied before they are due.

    JAX copies while the loop computes: it returns arrays whose values are still on their way. Only
    a batch that the loop receives counts as delivered. An error comes when its batch would have
    come, and the loop may continue with the next one.

    Args:
        found: The batches.
        running: The pass, which counts what the loop receives.
        placement: Where batches go.
        num_ahead: The number of batches that are copied ahead.
        with_mask: Whether `(batch, is_real)` pairs are wanted.
        count: Counts what was skipped.
    """

    def __init__(
        self,
        found: Iterator[Fetched],
        running: Pass,
        placement: Placement,
        *,
        num_ahead: int,
        with_mask: bool,
        count: SkipCount,
    ) -> None:
        self._found = found
        self._running = running
        self._placement = placement
        self._num_ahead = num_ahead
        self._with_mask = with_mask
        self._count = count
        self._coming: deque[_Coming] = deque()
        self._has_ended = False

    def __next__(self) -> Any:
        while len(self._coming) <= self._num_ahead and self._fetch():
            pass
        if not self._coming:
            raise StopIteration
        due = self._coming.popleft()
        if (error := due.error) is not None:
            try:
                raise error
            finally:
                # With them, the error would hold this pass and its threads.
                del error, due
        # Batches that failed are skipped, and so counted with the one after them.
        self._running.deliver(due.number + 1 - self._running.num_delivered, due.skips)
        self._count.note(due.skips)
        return due.batch

    def _fetch(self) -> bool:
        """Fetch a batch and begin to copy it; return whether there may be more."""
        if self._has_ended or (self._coming and self._coming[-1].error is not None):
            return False
        try:
            fetched = next(self._found)
            batch = self._put(fetched)
        except StopIteration:
            self._has_ended = True
            return False
        except Exception as error:
            self._coming.append(_Coming(-1, None, None, error))
            return False
        self._coming.append(_Coming(fetched.number, batch, fetched.skips, None))
        return True

    def _put(self, fetched: Fetched) -> Any:
        start = perf_counter()
        block = self._running.planned(fetched.number)
        batch = fetched.batch
        if self._with_mask:
            batch = (batch, marks_in(block, fetched.skips))
        put = self._placement.put(batch, len(block.indices))
        self._running.waits.add_copying(start)
        return put

    def __len__(self) -> int:
        return self._running.num_batches

    def close(self) -> None:
        """End the threads that read ahead."""
        self._has_ended = True
        self._coming.clear()
        if close := getattr(self._found, "close", None):
            close()
