"""Where remote data is, and how it is read: its URL, the requests, and the local cache."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import check_integer
from feedline.store.cache import FileCache, default_folder
from feedline.store.remote.objects import Objects
from feedline.store.remote.urls import Url, local_folder

# By default the cache takes at most this, and at most half of what its disk has left.
_DEFAULT_LIMIT = 2**36
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Remote:
    """Remote data, and how it is read.

    Args:
        url: The object, or the folder of objects.
        objects: Reads them.
        cache: Keeps files of them.
    """

    url: Url
    objects: Objects
    cache: FileCache

    @classmethod
    def of(
        cls,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
    ) -> Remote:
        """Return the data at a URL, with the default cache unless another one is given."""
        folder = (
            default_folder() if cache_folder is None else local_folder("cache_folder", cache_folder)
        )
        limit = (
            default_limit(folder)
            if cache_limit is None
            else check_integer("cache_limit", cache_limit, 1)
        )
        # Readers make room in between, so that the cache itself need not wait for long.
        cache = FileCache(folder, limit, wait_seconds=_WAIT_SECONDS)
        return cls(Url.of(url), Objects(storage_options), cache)

    def at(self, url: Url) -> Remote:
        """Return other data that is read in the same way."""
        return Remote(url, self.objects, self.cache)


def default_limit(folder: Path) -> int:
    """Return the bytes that a cache in `folder` may take if nobody says: half of its free disk."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if there is None:
        return _DEFAULT_LIMIT
    used = _bytes_in(folder) if folder.is_dir() else 0
    return max(1, min(_DEFAULT_LIMIT, (shutil.disk_usage(there).free + used) // 2))


def _bytes_in(folder: Path) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            # Other processes evict files meanwhile.
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
