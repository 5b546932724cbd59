"""What the kinds of data in a config have in common: settings, sources and paths."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from feedline.errors import InvalidValueError
from feedline.plan import Plan
from feedline.plan.permutation import MAX_SIZE
from feedline.plan.seeds import Seed
from feedline.runs.run_config_keys import Keys
from feedline.store import FolderStore

__all__ = ["PlannedData", "Settings", "SourceInfo", "path_of", "sources_of"]


class SourceInfo(NamedTuple):
    """A part of the data that has a name: its indices are `first_index` and those after it."""

    name: str
    num_samples: int
    first_index: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What stands beside `data` in a config."""

    seed: Seed
    tail: str
    shuffle: bool
    batch_size: int | None
    folder: Path


@dataclass(frozen=True, kw_only=True)
class PlannedData:
    """The plan for some data, and what is known of it."""

    kind: str
    plan: Plan
    sources: tuple[SourceInfo, ...]
    store: FolderStore | None = None
    bytes_per_sample: int | None = None
    token_budget: int | None = None


def sources_of(listed: list[Keys]) -> tuple[SourceInfo, ...]:
    """Return the sources that a list names, one after another."""
    sources: list[SourceInfo] = []
    names: set[str] = set()
    first = 0
    for keys in listed:
        name, num_samples = keys.text("name"), keys.integer("samples", 0, high=MAX_SIZE)
        if name in names:
            raise InvalidValueError(f"{keys.at('name')}={name!r:.80} comes twice; rename one")
        names.add(name)
        sources.append(SourceInfo(name, num_samples, first))
        first += num_samples
    return tuple(sources)


def path_of(keys: Keys, key: str, folder: Path) -> Path:
    """Return a path of the config, relative to the config's folder and inside it, or absolute."""
    given = Path(keys.text(key))
    if not given.is_absolute() and os.path.normpath(given).split(os.sep)[0] == os.pardir:
        raise InvalidValueError(
            f"{keys.at(key)}={str(given)!r} must not lead out of {folder}; give an absolute path"
        )
    return folder / given
