"""The clock of a run, wired to the processes of JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from feedline.steps import Peers
from feedline.steps import StepScheduler as PlainScheduler
from feedline.steps import StepSchedulerConfig as PlainConfig
from feedline.steps.peers import check_alone

__all__ = ["JaxPeers", "StepScheduler", "StepSchedulerConfig"]

_LOW = 2**21 - 1


class JaxPeers:
    """All processes of a JAX run; `jax.distributed.initialize` comes first."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.world_size = jax.process_count()

    def maximum(self, value: int) -> int:
        """Return the largest value of all processes."""
        # Arrays of JAX have 32 bits by default, so a value travels in three parts.
        parts = np.array([value >> 42, value >> 21 & _LOW, value & _LOW], dtype=np.int32)
        gathered = np.asarray(multihost_utils.process_allgather(parts)).tolist()
        return max(int(high << 42 | middle << 21 | low) for high, middle, low in gathered)


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
        super().__init__(*args, peers=_peers() if peers is None else peers, **options)


class StepSchedulerConfig(PlainConfig):
    """`feedline.steps.StepSchedulerConfig` whose schedulers know the processes of JAX."""

    _made = StepScheduler


def _peers() -> Peers:
    # A process that has not joined the others is alone for JAX; a launcher may know better.
    return JaxPeers() if jax.process_count() > 1 else check_alone()
