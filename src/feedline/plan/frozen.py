"""How a frozen dataclass stores what it has checked."""

from __future__ import annotations

from typing import Any

__all__ = ["store"]


def store(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass from within its own `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)
