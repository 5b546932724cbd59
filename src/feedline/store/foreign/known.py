"""The formats of others that can be opened in place.

Each has a module here with two functions: `matches(path)` says whether the data at a path looks
like it, by names and a few bytes; `open_shards(path)` returns what is in it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from feedline.store.shards import Shards

#: The modules, in the order in which they are asked.
MODULES: tuple[str, ...] = ("mds", "litdata")


def shards_at(path: Path) -> Shards | None:
    """Return what is in the data at `path`; None if it is of no known format."""
    for name in MODULES:
        module: Any = importlib.import_module(f"feedline.store.foreign.{name}")
        if module.matches(path):
            found: Shards = module.open_shards(path)
            return found
    return None
