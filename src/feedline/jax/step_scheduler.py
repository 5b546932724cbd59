"""The clock of a run, wired to the processes of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from feedline.steps import Peers
from feedline.steps import StepScheduler as PlainScheduler

__all__ = ["JaxPeers", "StepScheduler"]


class JaxPeers:
    """All processes of a JAX run; `jax.distributed.initialize` comes first."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.world_size = jax.process_count()

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the largest of each value over all processes."""
        if self.world_size == 1:
            return list(values)
        # Arrays of JAX have 32 bits by default, so a value travels in two halves.
        told = np.array(values, dtype=np.int64)
        halves = np.stack([told >> 31, told & (2**31 - 1)]).astype(np.int32)
        gathered = np.asarray(multihost_utils.process_allgather(halves)).astype(np.int64)
        largest: list[int] = ((gathered[:, 0] << 31) | gathered[:, 1]).max(axis=0).tolist()
        return largest


class StepScheduler(PlainScheduler):
    """`feedline.steps.StepScheduler` for the processes of JAX.

    Args:
        **options: What `feedline.steps.StepScheduler` takes.

    Examples:
        >>> scheduler = StepScheduler(4, 2, 1, range(6), num_epochs=1, preemption_signal=None)
        >>> [batches for batches in scheduler]
        [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(self, *args: Any, peers: Peers | None = None, **options: Any) -> None:
        super().__init__(*args, peers=JaxPeers() if peers is None else peers, **options)
