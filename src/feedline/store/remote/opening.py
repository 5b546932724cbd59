"""`feedline.open` for URLs."""

from __future__ import annotations

from typing import Any

from feedline.errors import InvalidValueError, MissingDataError
from feedline.store.foreign.known import module_of
from feedline.store.formats import FILE_ENDINGS
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.opening import check_token_type, only
from feedline.store.plain_files import tables_in
from feedline.store.protocol import Store
from feedline.store.remote.paths import RemotePath, RemoteTree
from feedline.store.remote.patterns import expand, has_braces
from feedline.store.remote.places import Remote
from feedline.store.remote.stores import RemoteFolderStore, RemoteShardStore

# Formats of others that list their files in an index, and those that need a listing.
_INDEXED = ("mds", "litdata")
_LISTED = ("webdataset", "tfrecord")
_ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")


def open_remote(
    url: str, split: str | None, given: dict[str, Any], access: dict[str, Any]
) -> Store:
    """Return a store for the data at a URL.

    Args:
        url: The URL of a file or folder, or of several files by a pattern with braces.
        split: The split to open in a folder of splits.
        given: The options that say how to read the data.
        access: The options that say how to get at it.
    """
    remote = Remote.of(url, **access)
    if split is not None:
        if "/" in split or split in ("", ".", ".."):
            raise InvalidValueError(f"split={split!r:.80} must be the name of a folder")
        remote = remote.at(remote.url / split)
    if has_braces(url):
        names = expand(remote.url.name)
        tree = RemoteTree(remote.at(remote.url.parent), names=names)
        tree.look_at(names)
        return _open_listed(tree, given, "files of one kind")
    name = remote.url.name
    beside = RemoteTree(remote.at(remote.url.parent))
    has_window = "window" in given
    megatron = module_of("megatron")
    is_bin = name.endswith(".bin") and (has_window or not megatron.matches(beside.path(name)))
    if is_bin or (name.endswith(".npy") and has_window):
        return _open_tokens(beside.path(name), given)
    if name.endswith((".bin", ".idx")):
        return _open_shards(megatron, beside.path(name), given)
    if name.endswith(FILE_ENDINGS):
        options = only(given, ("columns", "lists"), url, "one file")
        return RemoteFolderStore.of_files(beside.path(name), beside.path(), [name], **options)
    if "." in name:
        for module in map(module_of, _LISTED):
            if module.is_named_like_shard(name):
                return _open_shards(module, beside.path(name), given)
    try:
        # Tried first, so that packed data takes one request.
        options = only(given, ("columns", "verify", "lists"), url, "a folder")
        return RemoteFolderStore(remote, **options)
    except MissingDataError as error:
        if MANIFEST_NAME not in str(error):
            raise
    return _open_other(remote, given)


def _open_other(remote: Remote, given: dict[str, Any]) -> Store:
    tree = RemoteTree(remote)
    folder = tree.path()
    huggingface, megatron = map(module_of, ("huggingface", "megatron"))
    if huggingface.matches(folder):
        options = only(given, ("columns", "lists"), str(folder), "a dataset of Hugging Face")
        files = huggingface.files_in(folder)
        return RemoteFolderStore.of_files(folder, folder, files, **options)
    for module in map(module_of, _INDEXED):
        if module.matches(folder):
            return _open_shards(module, folder, given)
    splits = huggingface.splits_in(folder)
    if splits:
        raise _has_splits(folder, splits)
    if any(tree.has(mark) for mark in _ZARR_MARKS):
        raise InvalidValueError(
            f"{folder}: is a zarr folder, which cannot be opened by a URL; copy it to a disk, or "
            "write it as one .npy or .parquet file"
        )
    if remote.url.key:
        prefix = RemoteTree(remote.at(remote.url.parent)).path(remote.url.name)
        if megatron.matches(prefix):
            return _open_shards(megatron, prefix, given)
    if remote.url.scheme.startswith("http"):
        raise MissingDataError(
            f"{folder}: has no {MANIFEST_NAME}, and no index of MosaicML, litdata or Hugging Face; "
            "use the URL of such a folder, of a file, or of several files, as in "
            f"{folder}/shard-{{000..009}}.tar"
        )
    return _open_listed(tree, given, "a folder")


def _open_listed(tree: RemoteTree, given: dict[str, Any], what: str) -> Store:
    """Return a store for files whose names are known."""
    folder = tree.path()
    names = tree.names()
    for module in map(module_of, _LISTED):
        if module.matches(folder):
            return _open_shards(module, folder, given)
    if tables := tables_in(folder):
        options = only(given, ("columns", "lists"), str(folder), "a folder of tables")
        return RemoteFolderStore.of_files(folder, folder, tables, **options)
    marks = (MANIFEST_NAME, "index.json")
    parts = [name.split("/") for name in names]
    splits = sorted({found[0] for found in parts if len(found) == 2 and found[1] in marks})
    if splits:
        raise _has_splits(folder, splits)
    raise MissingDataError(
        f"{folder}: has no {MANIFEST_NAME}, no index of MosaicML, litdata or Hugging Face, and no "
        ".tar, TFRecord, parquet or Arrow files; use the URL of such data, or of a file that ends "
        f"with {', '.join(FILE_ENDINGS)}"
    )


def _open_shards(module: Any, path: RemotePath, given: dict[str, Any]) -> Store:
    options = only(given, ("columns", "verify"), str(path), "data that others wrote")
    shards: Any = module.open_shards(path)
    shards = shards.verified() if options.pop("verify", False) else shards
    return RemoteShardStore(shards, **options)


def _open_tokens(path: RemotePath, given: dict[str, Any]) -> Store:
    from feedline.store.remote.tokens import RemoteTokenStore, TokenShards

    options = only(given, ("window", "stride", "dtype"), str(path), "tokens")
    return RemoteTokenStore(TokenShards(path, **check_token_type(path, options)))


def _has_splits(folder: RemotePath, splits: list[str]) -> InvalidValueError:
    return InvalidValueError(
        f"{folder}: has splits ({', '.join(splits):.200}); open one of them with "
        f"split={splits[0]!r}"
    )
