"""Verifying packed data at a URL: what the bucket has, not what a cache has kept of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from feedline.store.cache import default_folder
from feedline.store.folder import FolderStore
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.remote.paths import RemoteTree
from feedline.store.remote.places import Remote
from feedline.store.remote.stores import RemoteFolderStore
from feedline.store.remote.urls import Url
from feedline.store.verifying import parts_of

# Files that each thread may have in the temporary cache, where one is checked at a time.
_FILES_PER_THREAD = 4
_SHARE_OF_DISK = 2


@contextmanager
def opened_to_verify(
    url: str, storage_options: Mapping[str, Any] | None, num_threads: int
) -> Iterator[list[RemoteFolderStore]]:
    """Open packed data, or its splits, with a cache of its own, which is empty.

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
        parts = _parts_of(remote)
        manifests = [_opened(remote.at(part)).manifest for part in parts]
        sizes = [entry.get("bytes") or 0 for found in manifests for entry in found.entries]
        largest = max((size for size in sizes if type(size) is int), default=1)
        needed = _FILES_PER_THREAD * num_threads * largest
        remote = Remote.of(
            url,
            storage_options=storage_options,
            cache_folder=cache,
            cache_limit=max(1, min(most, max(needed, 2**26))),
        )
        with ExitStack() as opened:
            stores = [_opened(remote.at(part)) for part in parts]
            for store in stores:
                opened.callback(store.close)
            yield stores


def _parts_of(remote: Remote) -> list[Url]:
    # A web server cannot list its files.
    if remote.url.scheme.startswith("http"):
        return [remote.url]
    tree = RemoteTree(remote)
    return [tree.url_of(part.relative) for part in parts_of(tree.path())]


def _opened(remote: Remote) -> RemoteFolderStore:
    return RemoteFolderStore(remote, verify=True)


def folder_of(stores: Sequence[FolderStore]) -> Path:
    """Return the folder of a store, or that of all splits."""
    first = stores[0]
    assert isinstance(first, RemoteFolderStore)
    remote = first.tree.remote
    return first.folder if len(stores) == 1 else RemoteTree(remote.at(remote.url.parent)).path()


def unknown_of(store: FolderStore) -> list[Path]:
    """Return the files at a store's URL that its manifest does not list, except hidden ones."""
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
