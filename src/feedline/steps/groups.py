"""One pass through a loader, cut into the groups of batches that make a step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from feedline.steps.loaders import has_state

__all__ = ["BatchGroups"]

_END = object()


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
        self._state_at_start: dict[str, Any] | None = None
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
        group = self._taken(wanted)
        self._num_left -= len(group)
        self.is_last = self._num_left == 0 or len(group) < wanted
        if len(group) < wanted:
            warnings.warn(
                f"dataloader ended {self._num_left} batches before the end that its length says; "
                "other ranks may wait for these",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self.is_last and has_state(self._loader):
            # The loader sees the end of its pass too; its state may depend on it.
            next(self._batches, None)
        return group

    def _taken(self, wanted: int) -> list[Any]:
        """Return the next batches; of an error, those before it are kept for the next time."""
        self._state_at_start = before = self._state_if_it_cannot_rewind()
        self._state_before = None
        try:
            while len(self._ahead) < wanted:
                batch = next(self._batches, _END)
                if batch is _END:
                    break
                self._ahead.append(batch)
        except BaseException:
            self._state_before = before
            raise
        group, self._ahead = self._ahead[:wanted], self._ahead[wanted:]
        return group

    def put_back(self, group: list[Any]) -> None:
        """Take back the latest group, which nobody has used."""
        self._ahead = [*group, *self._ahead]
        if self._num_left is not None:
            self._num_left += len(group)
        self.is_last = False
        self._state_before = self._state_at_start

    def loader_state(self) -> dict[str, Any]:
        """Return the state of the loader after the latest group."""
        if self._state_before is not None:
            return self._state_before
        rewind = getattr(self._loader, "state_before", None)
        if self._ahead and callable(rewind):
            state: dict[str, Any] = rewind(len(self._ahead))
        else:
            state = self._loader.state_dict()
        return state

    def close(self) -> None:
        """Let go of the loader's iterator; its state stays as it is."""
        if has_state(self._loader):
            self._state_before = self.loader_state()
        self._batches = iter(())

    def _state_if_it_cannot_rewind(self) -> dict[str, Any] | None:
        """Return the state before a group, for a loader that could not tell it afterwards."""
        if not has_state(self._loader) or hasattr(self._loader, "state_before"):
            return None
        return self.loader_state()

    def _next_of_unknown(self) -> list[Any]:
        group = self._taken(self._size)
        if has_state(self._loader):
            self._state_before = self._loader.state_dict()
        self._ahead = list(islice(self._batches, 1))
        self.is_last = not self._ahead
        if self.is_last:
            self._state_before = None
        return group
