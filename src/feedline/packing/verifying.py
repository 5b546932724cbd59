"""`verify`: whether every chunk of a folder is as it was written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from feedline.errors import check_choice, check_integer
from feedline.packing.engines import local_checks, ray_checks
from feedline.packing.settings import ENGINES
from feedline.store.extras import import_ray
from feedline.store.progress import open_progress
from feedline.store.verifying import Target, VerifyResult, places_of, result_of

_ENGINES = {"local": local_checks.check_all, "ray": ray_checks.check_all}


def verify(
    folder: str | os.PathLike[str],
    *,
    engine: str = "local",
    progress: bool | None = None,
    num_threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyResult:
    """Read every chunk of a folder, and return all faults: there may be many.

    A folder of splits is checked with all of them. Every chunk must exist, with the recorded bytes,
    checksum, columns and number of samples, and there must be no other files; hidden files are
    ignored. Without recorded checksums, `.pt` chunks are checked by those inside them.

    Args:
        folder: The folder with `metadata.json`, or with splits; or the URL of one without splits,
            all of which is fetched.
        engine: "local", or "ray" to check files with tasks on a Ray cluster, every process of which
            must see the folder. The result is the same. Connects as `ray.init()` does, unless that
            was called.
        progress: Show progress on stderr; by default if that is a terminal.
        num_threads: The number of threads; by default the number of cores. On a cluster the number
            of tasks at once, by default all cores.
        storage_options: For a URL: how to get at it; see `feedline.open`.

    Raises:
        InvalidValueError: If an argument is outside its bounds.
        StoreError: If a `metadata.json` is missing or malformed.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from feedline import pack, verify
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     result = pack({"x": np.arange(10)}, f"{parent}/data", chunk_samples=4)
        ...     _ = (result.folder / "chunk-000001.safetensors").write_bytes(b"altered")
        ...     found = verify(result.folder)
        >>> found.ok, [fault.path.name for fault in found.faults]
        (False, ['chunk-000001.safetensors'])
    """
    if check_choice("engine", engine, ENGINES) == "ray":
        import_ray()
    if num_threads is not None:
        num_threads = check_integer("num_threads", num_threads, 1, 1024)
    target = Target(folder, storage_options)
    threads = num_threads or os.cpu_count() or 1
    with target.opened(threads) as stores, open_progress(progress) as bars:
        places = places_of(stores)
        bars.begin("verifying", sum(place.num_bytes for place in places), unit="bytes")
        found = _ENGINES[engine](target, stores, places, num_threads, bars)
        return result_of(target, stores, places, found)
