"""Values that are computed when they are first asked for.

Python 3.11 guards its `cached_property` by a lock for each class. A process that is forked while
another thread holds the lock would wait for ever, and loaders fork while readers are at work. Here
two threads may compute a value twice instead; it is the same value.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["lazy"]

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy(cached_property):
        """A property that is computed once."""

        def __init__(self, func: Any) -> None:
            super().__init__(func)
            self.lock = nullcontext()
