"""Who takes part in a run: arguments win, else the process group, else rank 0 of 1."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from feedline.errors import InvalidValueError, check_integer

__all__ = ["Peers"]


class Peers:
    """The rank and the world size of this process, looked up each time they are asked for.

    Args:
        num_replicas: The number of data-parallel ranks; by default that of the process group.
        rank: The rank of this process; by default that in the process group.
        process_group: The group of ranks that get different data, where that is not the whole
            world: ranks that share data, as in tensor parallelism, each pass their own group.

    Examples:
        >>> Peers(num_replicas=4, rank=1).world_size
        4
    """

    def __init__(
        self,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
    ) -> None:
        if num_replicas is not None:
            num_replicas = check_integer("num_replicas", num_replicas, 1, 2**31)
        if rank is not None:
            high = None if num_replicas is None else num_replicas - 1
            rank = check_integer("rank", rank, 0, high, remedy="ranks count from 0")
        self._num_replicas = num_replicas
        self._rank = rank
        self._process_group = process_group

    @property
    def world_size(self) -> int:
        """The number of ranks that share the data."""
        if self._num_replicas is not None:
            return self._num_replicas
        if not _is_initialized():
            return self._alone("rank", self._rank)
        return int(dist.get_world_size(self._process_group))

    @property
    def rank(self) -> int:
        """The rank of this process among them."""
        if self._rank is not None:
            return check_integer("rank", self._rank, 0, self.world_size - 1)
        if not _is_initialized():
            return self._alone("num_replicas", self._num_replicas) - 1
        rank = int(dist.get_rank(self._process_group))
        return check_integer(
            "rank", rank, 0, self.world_size - 1, remedy="this process is not in the process group"
        )

    @property
    def group(self) -> Any | None:
        """The process group that rank and world size came from, or None if they did not."""
        if self._num_replicas is not None or self._rank is not None or not _is_initialized():
            return None
        return self._process_group or dist.group.WORLD

    def _alone(self, name: str, value: int | None) -> int:
        if value not in (None, 0 if name == "rank" else 1):
            other = "num_replicas" if name == "rank" else "rank"
            raise InvalidValueError(
                f"{name}={value} needs {other} as well, because torch.distributed is not "
                "initialized; give both, or call torch.distributed.init_process_group first"
            )
        return 1


def _is_initialized() -> bool:
    return bool(dist.is_available() and dist.is_initialized())
