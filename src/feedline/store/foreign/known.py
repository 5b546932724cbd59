"""The formats of others that can be opened in place.

Each has a module here with two functions: `matches(path)` says whether the data at a path looks
like it, by names and a few bytes; `open_shards(path)` returns what is in it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from feedline.errors import StoreError
from feedline.store.plain_files import has_tables
from feedline.store.shards import Shards

#: The modules, in the order in which they are asked.
MODULES = ("megatron", "mds", "litdata", "webdataset", "tfrecord")
# Those whose files are known by their names alone, and listed nowhere.
_UNLISTED = ("webdataset", "tfrecord")


def is_foreign(path: Path) -> bool:
    """Whether the data at `path` is of a known format of others, or a folder of tables."""
    if has_tables(path):
        return True
    return any(module_of(name).matches(path) for name in ("huggingface", *MODULES))


#: Formats with an index in the folder of each split, such as `train/index.json`.
_WITH_SPLITS = ("mds", "litdata")


def splits_of_others(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that are datasets, if it is none itself."""
    modules: list[Any] = [module_of(name) for name in _WITH_SPLITS]
    if any(module.matches(folder) for module in modules):
        return []
    inside = [found.parent for found in folder.glob("[!.]*/index.json")]
    return [path.name for path in inside if any(module.matches(path) for module in modules)]


def shards_at(path: Path) -> Shards | None:
    """Return what is in the data at `path`; None if it is of no known format."""
    for name in MODULES:
        module = module_of(name)
        if module.matches(path):
            _check_one_kind(path, name)
            found: Shards = module.open_shards(path)
            return found
    return None


def _check_one_kind(path: Path, name: str) -> None:
    """Raise if a folder has files of two formats, of which one would be left out silently."""
    if name not in _UNLISTED or not path.is_dir():
        return
    for other in _UNLISTED:
        if other != name and module_of(other).matches(path):
            raise StoreError(
                f"{path}: has files of {name} and of {other}, which must be in folders of their "
                "own; move one kind to another folder"
            )


def module_of(name: str) -> Any:
    """Return the module of a format; it is imported when it is needed."""
    return importlib.import_module(f"feedline.store.foreign.{name}")
