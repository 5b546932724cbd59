"""Rank and world size from a framework, which is imported only when it is named."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from feedline.errors import InvalidValueError, NotInitializedError, check_integer
from feedline.feed import FoundPeers, Peers

DistInfo = Literal["torch", "jax"] | Callable[[], tuple[int, int]]

_CALLS = {"torch": "torch.distributed.init_process_group", "jax": "jax.distributed.initialize"}


def peers_of(dist_info: DistInfo) -> Peers:
    """Return the ranks of `dist_info`, as they are now.

    Examples:
        >>> peers_of(lambda: (1, 4)).world_size
        4
    """
    if not callable(dist_info):
        return _Joined.of(dist_info)
    found: Any = dist_info()
    try:
        rank, world_size = found
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"dist_info returned {found!r:.80} but must return (rank, world_size)"
        ) from None
    world_size = check_integer("world_size", world_size, 1, 2**31)
    return FoundPeers(world_size, check_integer("rank", rank, 0, world_size - 1))


class _Joined(FoundPeers):
    """The processes of a framework; in other processes only rank and world size are known."""

    def __init__(self, joined: Peers) -> None:
        super().__init__(joined.world_size, joined.rank)
        self._joined = joined

    @classmethod
    def of(cls, framework: Any) -> _Joined:
        """Return the processes of a framework by its name, or raise if it is not initialized."""
        if not isinstance(framework, str) or framework not in _CALLS:
            raise InvalidValueError(
                f"dist_info={framework!r:.80} must be 'torch', 'jax' or a function that returns "
                "(rank, world_size)"
            )
        found: Peers | None = import_module(f"feedline.{framework}.peers").find(None)
        if found is None:
            raise NotInitializedError(
                f"dist_info={framework!r} needs {framework}.distributed to be initialized; call "
                f"{_CALLS[framework]} before making this sampler"
            )
        return cls(found)

    @property
    def reached(self) -> Peers:
        """The processes that this one can communicate with."""
        return self._joined
