"""`feedline.open`: a store for the data at a path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, MissingDataError
from feedline.store.anndata_store import open_anndata
from feedline.store.folder import FolderStore
from feedline.store.foreign import huggingface, megatron
from feedline.store.foreign.known import shards_at, splits_of_others
from feedline.store.formats import FILE_ENDINGS
from feedline.store.live_dataset import is_live_dataset, open_live
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.matrix_samples import MatrixSamples
from feedline.store.plain_files import tables_in
from feedline.store.protocol import Store
from feedline.store.remote.urls import is_url
from feedline.store.shards import ShardStore
from feedline.store.tokens import TokenStore
from feedline.words import several

_ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")


def open(
    path: str | os.PathLike[str] | Any,
    *,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    verify: bool | None = None,
    window: int | None = None,
    stride: int | None = None,
    dtype: str | None = None,
    element: str | None = None,
    obs: Iterable[str] | None = None,
    lists: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    cache_limit: int | None = None,
) -> Store:
    """Open the data at `path` as a store: samples by number, each a dict.

    A store has `len(store)`, `store[i]`, `store[10:20]`, iteration, and a `repr` that shows its
    contents. Pass it to a `DataLoader`. No code from a file is run.

    Args:
        path: A folder that `feedline pack` has written, or a folder of splits; a `.parquet`,
            `.arrow`, `.feather`, `.safetensors`, `.pt` or `.npy` file; a folder of parquet or Arrow
            files; a `.bin` file of tokens; or a zarr array, AnnData group or CSR group. Of data
            that others wrote: WebDataset's `.tar` files, MosaicML's and litdata's folders,
            TFRecord files, Megatron's `.bin` and `.idx`; and of Hugging Face `datasets`, a folder
            that `save_to_disk` wrote, or a `Dataset`. Or a URL that begins with `s3://`, `gs://`,
            `az://`, `http://` or `https://`: of a packed folder, or of a file or folder of others;
            braces name several files, as in `https://host/shard-{000..009}.tar`.
        split: The split to open in a folder of splits, such as `"train"`.
        columns: The columns to read; by default all.
        verify: Compare each file with its checksum when it is first read.
        window: For a list of tokens (`.bin`, or `.npy` with one axis): the number of tokens in a
            sample.
        stride: For tokens: the distance between the starts of samples; by default `window`.
        dtype: For a `.bin` file: the type of its tokens, by default `"uint16"`.
        element: For an AnnData group: the matrix, by default `"X"`.
        obs: For an AnnData group: the columns of `obs` to add to each sample.
        lists: For parquet and Arrow: columns to read as lists of any length, even if all lists that
            were looked at have one length.
        storage_options: For a URL: keys of obstore's stores, such as `endpoint`, `region` and
            `access_key_id`; by default from the usual environment variables.
        cache_folder: For a URL: the folder in which its files are kept; by default `objects` in
            `$FEEDLINE_CACHE` or `~/.cache/feedline`. All processes of a machine share it.
        cache_limit: For a URL: the bytes that the folder may take; by default 64 GiB, or half of
            the free disk if that is less.

    Raises:
        MissingDataError: If `path` does not exist.
        InvalidValueError: If the type of the data is unknown, or an option does not fit it.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import feedline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = feedline.pack({"x": np.arange(10)}, f"{folder}/data", chunk_samples=4)
        ...     store = feedline.open(f"{folder}/data")
        ...     len(store), store[7], store[:3]["x"].tolist()
        (10, {'x': np.int64(7)}, [0, 1, 2])
    """
    given: dict[str, Any] = {
        **{"columns": columns, "verify": verify, "window": window, "stride": stride},
        **{"dtype": dtype, "element": element, "obs": obs, "lists": lists},
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not isinstance(path, str | os.PathLike):
        if not is_live_dataset(path):
            raise InvalidValueError(f"path={path!r:.80} must be the path of a file or folder")
        options = only(given, ("columns", "lists"), "this", "a datasets.Dataset")
        return open_live(path, split=split, **options)
    access: dict[str, Any] = {"storage_options": storage_options}
    access |= {"cache_folder": cache_folder, "cache_limit": cache_limit}
    if is_url(path):
        # Imported here because few use it.
        from feedline.store.remote.opening import open_remote

        return open_remote(os.fspath(path), split, given, access)
    only({k: v for k, v in access.items() if v is not None}, (), os.fspath(path), "local data")
    found = Path(path)
    if not found.exists():
        raise MissingDataError(f"{found}: does not exist; check the path")
    if split is not None or _splits_in(found):
        found = _split_of(found, split)
    is_tokens = found.suffix == ".bin" and (window is not None or not megatron.matches(found))
    if is_tokens or (found.suffix == ".npy" and window is not None):
        return _open_tokens(found, only(given, ("window", "stride", "dtype"), found, "tokens"))
    if any((found / mark).is_file() for mark in _ZARR_MARKS):
        options = only(given, ("element", "obs"), found, "a zarr matrix")
        name = str(options.get("element", "X")).rpartition("/")[2]
        return MatrixSamples(open_anndata(found, **options), name)
    if (found / MANIFEST_NAME).exists():
        options = only(given, ("columns", "verify", "lists"), found, "a folder")
        return FolderStore(found, **options)
    if found.is_file() and found.suffix in FILE_ENDINGS:
        options = only(given, ("columns", "lists"), found, "one file")
        return _looked_at(FolderStore.of_file(found, **options))
    if huggingface.matches(found):
        options = only(given, ("columns", "lists"), found, "a dataset of Hugging Face")
        files = huggingface.files_in(found)
        return _looked_at(FolderStore.of_files(found, found, files, **options))
    shards = shards_at(found)
    if shards is not None:
        options = only(given, ("columns", "verify"), found, "data that others wrote")
        shards = shards.verified() if options.pop("verify", False) else shards
        return ShardStore(shards, **options)
    if tables := tables_in(found):
        options = only(given, ("columns", "lists"), found, "a folder of tables")
        return _looked_at(FolderStore.of_files(found, found, tables, **options))
    raise InvalidValueError(
        f"{found}: is not data that can be opened; it must be a folder with {MANIFEST_NAME} or "
        "with parquet or Arrow files, a zarr folder, or a file that ends with "
        f"{', '.join(FILE_ENDINGS)} or .bin. Use "
        "`feedline pack` to convert CSV, JSONL and others"
    )


def _looked_at(store: FolderStore) -> FolderStore:
    """Return a store whose columns are known, if it has samples.

    What no store can hold comes up now, not at the first batch.
    """
    _ = store.columns if len(store) else None
    return store


def _splits_in(folder: Path) -> list[str]:
    """Return the sorted names of the splits in a folder of splits; none for other folders."""
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return []
    if splits := huggingface.splits_in(folder):
        return splits
    ours = [found.parent.name for found in folder.glob(f"[!.]*/{MANIFEST_NAME}")]
    return sorted(ours) or sorted(splits_of_others(folder))


def _split_of(folder: Path, split: str | None) -> Path:
    splits = _splits_in(folder)
    if not splits:
        raise InvalidValueError(f"split={split!r} cannot be used: {folder} has no splits; omit it")
    listed = ", ".join(splits)
    if split is None:
        raise InvalidValueError(
            f"{folder}: has {several(len(splits), 'split')} ({listed}); open one of them with "
            f"split={splits[0]!r}"
        )
    if split not in splits:
        raise InvalidValueError(f"split={split!r:.80} must be one of {listed}, as in {folder}")
    return folder / split


def _open_tokens(path: Path, options: dict[str, Any]) -> TokenStore:
    return TokenStore(path, **check_token_type(path, options))


def check_token_type(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return options for tokens, with the type that an index beside them tells, or raise."""
    if "window" not in options:
        raise InvalidValueError(
            f"{path}: holds tokens, so window is required; pass the number of tokens in a sample, "
            "such as window=2048"
        )
    known = megatron.token_type(path) if path.suffix == ".bin" else None
    if known is not None and options.setdefault("dtype", known) != known:
        raise InvalidValueError(
            f"dtype={options['dtype']!r:.80} must be {known!r}, as the index beside {path} says; "
            "omit it"
        )
    return options


def only(
    given: dict[str, Any], names: tuple[str, ...], path: Path | str, what: str
) -> dict[str, Any]:
    """Return the given options, or raise if one does not fit the data at `path`."""
    for name, value in given.items():
        if name not in names:
            takes = f"only {', '.join(names)}" if names else "no such option"
            shown = "…" if name == "storage_options" else f"{value!r:.80}"
            raise InvalidValueError(
                f"{name}={shown} cannot be used: {path} is opened as {what}, which takes {takes}"
            )
    return given
