"""The processes of a run in a torch.distributed group."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions

from feedline.errors import DesyncError
from feedline.torch.shield import prepare as prepare

_gloo_groups: weakref.WeakKeyDictionary[Any, dict[float, Any]] = weakref.WeakKeyDictionary()


class TorchPeers:
    """The processes of a process group.

    Args:
        process_group: The group; by default all processes.
    """

    def __init__(self, process_group: Any | None = None) -> None:
        # Not the default group itself: kept beyond its destruction, it can abort the process at its
        # exit.
        self._group = process_group
        self.rank = dist.get_rank(process_group)
        self.world_size = dist.get_world_size(process_group)
        self._told: torch.Tensor | None = None
        self._options = AllreduceOptions()
        largest: Any = dist.ReduceOp.MAX
        self._options.reduceOp = largest

    def __repr__(self) -> str:
        return f"<TorchPeers: rank {self.rank} of {self.world_size}>"

    def maximum(self, value: int) -> int:
        """Return the largest value of all processes."""
        if self._told is None:
            # Collectives of NCCL take what is on the device only.
            device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
            self._told = torch.zeros(1, dtype=torch.int64, device=device)
        self._told.fill_(value)
        # What `dist.all_reduce` does, less the checks of its arguments, at every step.
        group: Any = self._group or dist.group.WORLD
        group.allreduce([self._told], self._options).wait()
        return int(self._told.item())

    def gather(self, value: Any, timeout: float) -> list[Any]:
        """Return the values of all processes, by rank.

        This uses a separate gloo group with its own timeout, so it works with any backend and never
        waits for long.
        """
        values: list[Any] = [None] * self.world_size
        if self.world_size == 1:
            return [value]
        try:
            group = _gloo_group(self._group or dist.group.WORLD, timeout)
            dist.all_gather_object(values, value, group=group)
        except RuntimeError as error:
            raise DesyncError(
                f"rank {self.rank} waited {timeout} s, but not all of the {self.world_size} ranks "
                f"began the epoch; look for an error on another rank ({error})"
            ) from error
        return values


def _gloo_group(group: Any, timeout: float) -> Any:
    by_timeout = _gloo_groups.setdefault(group, {})
    if timeout not in by_timeout:
        by_timeout[timeout] = dist.new_group(
            ranks=dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=True,
        )
    return by_timeout[timeout]


def find(process_group: Any | None) -> TorchPeers | None:
    """Return the processes of a group, or None if torch.distributed is not in use."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return TorchPeers(process_group)
