"""`build_index`: the indexes of data that others wrote, before anyone waits for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.errors import check_choice, check_integer
from feedline.packing.engines import ray_checks
from feedline.packing.settings import ENGINES
from feedline.store.extras import import_ray
from feedline.store.foreign.indexed import IndexedShards, building_by
from feedline.store.foreign.kept_index import Index
from feedline.store.opening import open as open_store
from feedline.store.progress import Progress
from feedline.words import one_line


@one_line
@dataclass(frozen=True, kw_only=True)
class IndexResult:
    """What `build_index` did.

    Args:
        num_samples: The number of samples in all shards.
        num_built: The number of indexes that were built; the others were there.
    """

    num_samples: int
    num_built: int


def build_index(
    path: str | os.PathLike[str],
    *,
    engine: str = "local",
    num_threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
) -> IndexResult:
    """Build the indexes that `feedline.open` would build: of WebDataset and TFRecord files.

    They are kept beside the files, in `.feedline-index`, or else in `$FEEDLINE_CACHE` or
    `~/.cache/feedline`, where the next `open` finds them. Other data needs none.

    Args:
        path: What `feedline.open` opens: a file, a folder or a URL.
        engine: "local" for one file after another, or "ray" for tasks on a Ray cluster, every
            process of which must see the files. The indexes are the same. Connects as `ray.init()`
            does, unless that was called.
        num_threads: On a cluster the number of tasks at once, by default all cores.
        storage_options: For a URL: how to get at it; see `feedline.open`.
        cache_folder: For a URL: the folder in which its files are kept; see `feedline.open`.

    Raises:
        InvalidValueError: If an argument is outside its bounds.
        StoreError: If a file is damaged: the first of all.

    Examples:
        >>> import io, tarfile, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with tarfile.open(f"{folder}/0.tar", "w") as file:
        ...         member = tarfile.TarInfo("a.txt")
        ...         file.addfile(member, io.BytesIO())
        ...     first, second = build_index(folder), build_index(folder)
        >>> first.num_built, second.num_built, second.num_samples
        (1, 0, 1)
    """
    if check_choice("engine", engine, ENGINES) == "ray":
        import_ray()
    if num_threads is not None:
        num_threads = check_integer("num_threads", num_threads, 1, 1024)
    num_built = 0

    def build(shards: IndexedShards, numbers: Sequence[int], progress: Progress) -> Iterator[Index]:
        nonlocal num_built
        if engine == "ray":
            found = ray_checks.build_all(shards, numbers, progress, num_threads)
        else:
            found = shards.build_in_turn(numbers, progress)
        for index in found:
            num_built += 1
            yield index

    with building_by(build):
        store = open_store(path, storage_options=storage_options, cache_folder=cache_folder)
    try:
        return IndexResult(num_samples=store.num_samples, num_built=num_built)
    finally:
        if hasattr(store, "close"):
            store.close()
