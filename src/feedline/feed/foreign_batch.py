"""What can be found out about a batch of a foreign loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.feed.peers import Peers


class ForeignBatch:
    """The record of a batch of which nothing but the batch itself is known, or its ids too."""

    __slots__ = ("_batch", "_peers", "ids", "number")

    is_real = None
    bucket = None

    def __init__(self, number: int, batch: Any, peers: Peers, ids: Any = None) -> None:
        self.number = number
        self.ids = ids
        self._batch = batch
        self._peers = peers

    @property
    def num_real(self) -> int | None:
        """The number of samples: the length of its first array, or None."""
        return num_samples_of(self._batch)

    @property
    def num_real_of_all_ranks(self) -> int | None:
        """How many samples the batch has on all ranks; None unless there is one."""
        return self.num_real if self._peers.world_size == 1 else None


def num_samples_of(batch: Any) -> int | None:
    """Return how many samples a batch has by its first array or list, or None if it has neither.

    Examples:
        >>> num_samples_of({"x": [1, 2, 3]}), num_samples_of([{"x": 1}, {"x": 2}])
        (3, 2)
    """
    is_real = getattr(batch, "is_real", None)
    if is_real is not None:
        return int(is_real.sum())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, Mapping):
        return num_samples_of(next(iter(batch.values()), None))
    if isinstance(batch, tuple | list):
        # A list of records has a sample in each; a list of arrays has them side by side.
        if batch and isinstance(batch[0], Mapping):
            return len(batch)
        if batch and not isinstance(batch[0], int | float | str | bytes):
            inner = num_samples_of(batch[0])
            return len(batch) if inner is None else inner
        return len(batch)
    return None
