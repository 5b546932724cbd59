"""Values that are computed, and names that are imported, when they are first asked for.

Python 3.11 guards its `cached_property` by a lock for each class. A process that is forked while
another thread holds the lock would wait for ever, and loaders fork while readers are at work. Here
two threads may compute a value twice instead; it is the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["lazy", "names_elsewhere"]

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy(cached_property):
        """A property that is computed once."""

        def __init__(self, func: Any) -> None:
            super().__init__(func)
            self.lock = nullcontext()


def names_elsewhere(room: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a room where users know names that stand in another one.

    Args:
        room: The name of the room's module.
        table: For each name, the module that it stands in.
    """

    def find(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(table[name]), name)

    return find
