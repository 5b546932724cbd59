"""Values that are computed, and names that are imported, when they are first used.

Python 3.11 guards its `cached_property` by a lock for each class. A process that is forked while
another thread holds the lock would wait forever, and loaders fork while readers are at work. Here
two threads may compute a value twice instead; it is the same value.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy(cached_property):
        """A property that is computed once."""

        def __init__(self, func: Any) -> None:
            super().__init__(func)
            self.lock = nullcontext()


def moved(module: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: `table` maps each name to its module."""

    def find(name: str) -> Any:
        if name in table:
            return getattr(importlib.import_module(table[name]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
