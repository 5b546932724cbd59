"""What the clock asks of a loader, whichever library it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedline.errors import check_integer

__all__ = [
    "agrees_with_plan",
    "has_state",
    "length_of",
    "num_batches_left",
    "set_epoch_of",
    "track_ids_of",
]


def length_of(loader: Any) -> int | None:
    """Return how many batches an epoch of a loader has, or `None` if it does not know."""
    try:
        return len(loader)
    except TypeError:
        return None


def num_batches_left(loader: Any) -> int | None:
    """Return how many batches the next pass has, for a loader that knows its place."""
    count = _method(loader, "num_batches_left")
    return None if count is None else check_integer("num_batches_left()", count(), 0)


def has_state(loader: Any) -> bool:
    """Return whether a loader saves and loads its own place."""
    return bool(_method(loader, "state_dict") and _method(loader, "load_state_dict"))


def set_epoch_of(loader: Any, epoch: int) -> None:
    """Tell a loader its epoch, or else whatever in it wants to know."""
    own = _method(loader, "set_epoch")
    if own is not None:
        own(epoch)
        return
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "sampler", None),
        getattr(loader, "dataset", None),
    ]
    told: list[Any] = []
    for part in parts:
        setter = _method(part, "set_epoch")
        if setter is not None and not any(part is other for other in told):
            setter(epoch)
            told.append(part)


def track_ids_of(loader: Any) -> None:
    """Let a loader that can compare the samples it delivers with its plan."""
    if hasattr(loader, "tracks_ids"):
        loader.tracks_ids = True


def agrees_with_plan(loader: Any) -> bool:
    """Return whether a loader has delivered what its plan says, as far as it can tell."""
    check = _method(loader, "agrees_with_plan")
    return True if check is None else bool(check())


def _method(owner: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(owner, name, None)
    return found if callable(found) and not isinstance(owner, Mapping) else None
