"""Rank and world size from a framework, which is imported only when it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from feedline.errors import FeedlineError, InvalidValueError, check_integer

__all__ = ["DistInfo", "resolve"]

DistInfo = Literal["torch", "jax"] | Callable[[], tuple[int, int]]


def resolve(dist_info: DistInfo) -> tuple[int, int]:
    """Return the rank and the world size of this process.

    Examples:
        >>> resolve(lambda: (1, 4))
        (1, 4)
    """
    if callable(dist_info):
        found: Any = dist_info()
    elif dist_info == "torch":
        found = _from_torch()
    elif dist_info == "jax":
        found = _from_jax()
    else:
        raise InvalidValueError(
            f"dist_info={dist_info!r:.80} must be 'torch', 'jax' or a function that returns "
            "(rank, world_size)"
        )
    try:
        rank, world_size = found
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"dist_info returned {found!r:.80} but must return (rank, world_size)"
        ) from None
    world_size = check_integer("world_size", world_size, 1, 2**31)
    return check_integer("rank", rank, 0, world_size - 1), world_size


def _from_torch() -> tuple[int, int]:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise FeedlineError(
            "dist_info='torch' needs torch.distributed to be initialized; call "
            "torch.distributed.init_process_group before making this sampler"
        )
    return dist.get_rank(), dist.get_world_size()


def _from_jax() -> tuple[int, int]:
    import jax

    if not jax.distributed.is_initialized():
        raise FeedlineError(
            "dist_info='jax' needs jax.distributed to be initialized; call "
            "jax.distributed.initialize before making this sampler"
        )
    return jax.process_index(), jax.process_count()
