"""Checks of this machine: each file in one of several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from feedline.store.folder import FolderStore
from feedline.store.progress import Progress
from feedline.store.verifying import Checked, Place, Target, check_chunk


def check_all(
    target: Target,
    stores: Sequence[FolderStore],
    places: Sequence[Place],
    num_threads: int | None,
    progress: Progress,
) -> list[Checked]:
    """Return what is found of all files, in order."""
    with ThreadPoolExecutor(num_threads or os.cpu_count() or 1) as pool:
        try:
            return list(
                pool.map(lambda place: check_chunk(stores, place, progress.advance), places)
            )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
