"""One pass through a loader, cut into the groups of batches that make a step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from feedline.steps.loaders import has_state

__all__ = ["BatchGroups"]


class BatchGroups:
    """The groups of a pass.

    The last group may be shorter. A loader that knows how many batches it has left is asked for no
    more than these. Of any other, one batch is taken ahead to see whether it is the last; then its
    state is kept as it was before.

    Args:
        loader: What yields batches.
        size: The number of batches of a group.
        num_batches: How many batches the pass has, or `None` if that is not known.
        num_skipped: How many of them were used before; they are taken and dropped.
    """

    def __init__(
        self, loader: Any, *, size: int, num_batches: int | None, num_skipped: int
    ) -> None:
        self._loader = loader
        self._size = size
        self._batches: Iterator[Any] = iter(loader)
        self._num_left = num_batches
        self._ahead: list[Any] = []
        self._state_before: dict[str, Any] | None = None
        #: Whether the latest group is the last one.
        self.is_last = False
        for _ in islice(self._batches, num_skipped):
            pass
        if self._num_left is not None:
            self._num_left = max(self._num_left - num_skipped, 0)

    def next_group(self) -> list[Any]:
        """Return the next group; it is empty when there is none."""
        if self.is_last:
            return []
        if self._num_left is None:
            return self._next_of_unknown()
        wanted = min(self._size, self._num_left)
        group = list(islice(self._batches, wanted))
        self._num_left -= len(group)
        # A loader may have less than it said; then this was the end of it.
        self.is_last = self._num_left == 0 or len(group) < wanted
        return group

    def loader_state(self) -> dict[str, Any]:
        """Return the state of the loader after the latest group."""
        if self._state_before is not None:
            return self._state_before
        state: dict[str, Any] = self._loader.state_dict()
        return state

    def _next_of_unknown(self) -> list[Any]:
        group = [*self._ahead, *islice(self._batches, self._size - len(self._ahead))]
        if has_state(self._loader):
            self._state_before = self._loader.state_dict()
        self._ahead = list(islice(self._batches, 1))
        self.is_last = not self._ahead
        return group
