"""What users may import: the names of every room, each object once."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

__all__ = ["ROOMS", "callables", "classes", "is_protocol"]

#: Without `feedline.jax`: once jax is imported, forking is a warning, which others must not see.
ROOMS = (
    *("feedline", "feedline.plan", "feedline.store", "feedline.packing", "feedline.feed"),
    *("feedline.steps", "feedline.chunks", "feedline.runs", "feedline.torch", "feedline.report"),
    "feedline.errors",
)


def callables() -> dict[str, Any]:
    """Return every public class and function, by the name under which it is first met."""
    found: dict[str, Any] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not any(value is known for known in found.values()):
                found[f"{room}.{name}"] = value
    return found


def classes() -> dict[str, Any]:
    """Return every public class that has objects of its own: no protocols, and no typed dicts."""
    return {
        name: kind
        for name, kind in callables().items()
        if isinstance(kind, type) and not is_protocol(kind) and not issubclass(kind, dict)
    }


def is_protocol(kind: Any) -> bool:
    """Whether a class only says what others must have."""
    return inspect.isclass(kind) and bool(getattr(kind, "_is_protocol", False))
