"""Verifying packed data at a URL: what the bucket has, not what a cache has kept of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.store.cache import default_folder
from feedline.store.folder import FolderStore
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.remote.paths import RemoteTree
from feedline.store.remote.places import Remote
from feedline.store.remote.stores import RemoteFolderStore

# Files that each thread may have in the temporary cache, where one is checked at a time.
_FILES_PER_THREAD = 4
_SHARE_OF_DISK = 2


@contextmanager
def opened_to_verify(
    url: str, storage_options: Mapping[str, Any] | None, num_threads: int
) -> Iterator[RemoteFolderStore]:
    """Open packed data with a cache of its own, which is empty.

    Args:
        url: The folder.
        storage_options: How to get at it.
        num_threads: The number of files that are checked at the same time.
    """
    parent = default_folder().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=parent) as cache:
        most = shutil.disk_usage(cache).free // _SHARE_OF_DISK
        remote = Remote.of(
            url, storage_options=storage_options, cache_folder=cache, cache_limit=max(1, most)
        )
        sizes = [entry.get("bytes") or 0 for entry in _opened(remote).manifest.entries]
        largest = max((size for size in sizes if type(size) is int), default=1)
        needed = _FILES_PER_THREAD * num_threads * largest
        remote = Remote.of(
            url,
            storage_options=storage_options,
            cache_folder=cache,
            cache_limit=max(1, min(most, max(needed, 2**26))),
        )
        store = _opened(remote)
        try:
            yield store
        finally:
            store.close()


def _opened(remote: Remote) -> RemoteFolderStore:
    return RemoteFolderStore(remote, verify=True)


def unknown_of(store: FolderStore) -> list[Path]:
    """Return the files at the URL that the manifest does not list, except hidden ones."""
    assert isinstance(store, RemoteFolderStore)
    if store.tree.remote.url.scheme.startswith("http"):
        # A web server cannot list its files.
        return []
    chunks = {entry["path"] for entry in store.manifest.entries}
    tree = RemoteTree(store.tree.remote)
    return [
        tree.path(name)
        for name in sorted(tree.names())
        if name != MANIFEST_NAME
        and not any(part.startswith(".") for part in name.split("/"))
        and name not in chunks
        and name.partition("/")[0] not in chunks
    ]
