"""Checks of a Ray cluster: tasks that read some files each, and indexes that tasks build.

Each task is a function of files, and may be done again. Results come in the order of the files, and
so does the first error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from feedline.errors import MissingDataError, StoreError
from feedline.packing.engines.cluster import Cluster, connected
from feedline.store.folder import FolderStore
from feedline.store.foreign.indexed import IndexedShards
from feedline.store.foreign.kept_index import Index
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.paths import announced
from feedline.store.progress import Progress
from feedline.store.verifying import Checked, Place, Target, check_chunk

# What a task reads at most, unless one file has more.
_TASK_BYTES = 2**27


def check_all(
    target: Target,
    stores: Sequence[FolderStore],
    places: Sequence[Place],
    num_tasks: int | None,
    progress: Progress,
) -> list[Checked]:
    """Return what is found of all files, in order."""
    with connected() as ray:
        cluster = _cluster(ray, num_tasks, "verify again")
        # A task opens a URL by itself, with a cache of its own.
        shared = cluster.put(target if target.is_url else list(stores))
        total = sum(place.num_bytes for place in places)
        groups = _grouped(places, min(_TASK_BYTES, total // (4 * cluster.max_waiting)))
        found: list[Checked] = []
        calls = (cluster.submit(check_some, shared, group) for group in groups)
        for some in cluster.in_order(calls):
            progress.advance(sum(p.num_bytes for p in places[len(found) : len(found) + len(some)]))
            found += some
        return found


def check_some(given: Target | Sequence[FolderStore], places: Sequence[Place]) -> list[Checked]:
    """Return what is found of some files."""
    if isinstance(given, Target):
        with given.opened(1) as stores:
            return [check_chunk(stores, place) for place in places]
    for folder in {given[place.store].folder for place in places}:
        _refuse_unseen(folder / MANIFEST_NAME)
    return [check_chunk(given, place) for place in places]


def build_all(
    shards: IndexedShards, numbers: Sequence[int], progress: Progress, num_tasks: int | None = None
) -> Iterator[Index]:
    """Yield the indexes of some shards, in order."""
    with connected() as ray:
        cluster = _cluster(ray, num_tasks, "build them again")
        shared = cluster.put(shards)
        calls = (cluster.submit(build_one, shared, number) for number in numbers)
        for index in cluster.in_order(calls):
            progress.advance(index.told["num_bytes"])
            yield index


def build_one(shards: IndexedShards, number: int) -> Index:
    """Return the index of a shard, built from all of it."""
    file = shards.file_of(number)
    if not hasattr(file, "identity"):
        _refuse_unseen(file)
    with announced([file]):
        return shards.built(number, Progress())


def _refuse_unseen(path: Path) -> None:
    if not path.exists():
        raise MissingDataError(
            f"{path}: does not exist on {os.uname().nodename}; every node must see the data: use "
            "shared storage"
        )


def _cluster(ray: Any, num_tasks: int | None, again: str) -> Cluster:
    remedy = f"see to the nodes, and {again}"
    return Cluster(ray, task_bytes=0, num_tasks=num_tasks, error=StoreError, remedy=remedy)


def _grouped(places: Sequence[Place], num_bytes: int) -> Iterator[Sequence[Place]]:
    """Yield neighbouring files, about so many bytes at a time."""
    first = 0
    ends = list(accumulate(place.num_bytes for place in places))
    for number, end in enumerate(ends):
        if number + 1 == len(ends) or end - (ends[first - 1] if first else 0) >= num_bytes:
            yield places[first : number + 1]
            first = number + 1
