"""`verify`: whether every chunk of a folder is as it was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import InvalidValueError, StoreError, check_integer
from feedline.store.checksums import check_file
from feedline.store.folder import FolderStore
from feedline.store.manifest import MANIFEST_NAME, ChunkFile, Manifest
from feedline.store.progress import open_progress
from feedline.store.remote.urls import is_url
from feedline.words import one_line


@one_line
class Fault(NamedTuple):
    """A file that is not as it should be, and in what way.

    Args:
        path: The file.
        text: What is wrong with it.
    """

    path: Path
    text: str


@one_line
@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """What `verify` found.

    `num_unchecked` counts the chunks for which no checksum was recorded and that hold none
    themselves: of those only size, types and number of samples are known to be right.

    Args:
        folder: What was verified.
        num_samples: The number of samples.
        num_chunks: The number of chunks.
        num_bytes: The bytes on disk.
        num_unchecked: The number of chunks without a checksum.
        faults: What is not as it should be.
    """

    folder: Path
    num_samples: int
    num_chunks: int
    num_bytes: int
    num_unchecked: int
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


def verify(
    folder: str | os.PathLike[str],
    *,
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
        progress: Show progress on stderr; by default if that is a terminal.
        num_threads: The number of threads; by default the number of cores.
        storage_options: For a URL: how to get at it; see `feedline.open`.

    Raises:
        StoreError: If a `metadata.json` is missing or malformed.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from feedline.store import pack
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     result = pack({"x": np.arange(10)}, f"{parent}/data", chunk_samples=4)
        ...     _ = (result.folder / "chunk-000001.safetensors").write_bytes(b"altered")
        ...     found = verify(result.folder)
        >>> found.ok, [fault.path.name for fault in found.faults]
        (False, ['chunk-000001.safetensors'])
    """
    if num_threads is None:
        num_threads = os.cpu_count() or 1
    num_threads = check_integer("num_threads", num_threads, 1, 1024)
    if is_url(folder):
        # Imported here because few use it.
        from feedline.store.remote.verifying import opened_to_verify

        with opened_to_verify(os.fspath(folder), storage_options, num_threads) as (store, unknown):
            return _verified(store.folder, [store], unknown, progress, num_threads)
    if storage_options is not None:
        raise InvalidValueError(f"storage_options cannot be used: {folder} is not a URL; omit it")
    root = Path(folder)
    stores = [FolderStore(part) for part in _parts_of(root)]
    unknown = list(_list_unknown(root, [store.manifest for store in stores]))
    return _verified(root, stores, unknown, progress, num_threads)


def _verified(
    root: Path,
    stores: Sequence[FolderStore],
    unknown: Iterable[Path],
    progress: bool | None,
    num_threads: int,
) -> VerifyResult:
    """Check all chunks of some stores; `unknown` are files that belong to none of them."""
    manifests = [store.manifest for store in stores]
    # Entries are checked before anything is read: a malformed one is not a fault of a chunk.
    files = [
        (store, number, store.manifest.file(number))
        for store in stores
        for number in range(len(store.manifest))
    ]
    with open_progress(progress) as bars, ThreadPoolExecutor(num_threads) as pool:
        bars.begin("verifying", sum(file.num_bytes or 0 for *_, file in files), unit="bytes")
        try:
            found = list(pool.map(lambda at: _check_chunk(bars.advance, *at), files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    faults = {fault.text: fault for _, fault in found if fault is not None}
    extra = [
        Fault(path, f"{path}: is not in {MANIFEST_NAME}; remove it, or pack again")
        for path in unknown
    ]
    return VerifyResult(
        folder=root,
        num_samples=sum(manifest.num_samples for manifest in manifests),
        num_chunks=len(files),
        num_bytes=sum(file.num_bytes or 0 for *_, file in files),
        num_unchecked=sum(not was_compared for was_compared, _ in found),
        faults=(*faults.values(), *extra),
    )


def _check_chunk(
    on_bytes: Callable[[int], None], store: FolderStore, number: int, file: ChunkFile
) -> tuple[bool, Fault | None]:
    """Return whether a chunk has a checksum, and its fault, if any."""
    was_compared = True
    try:
        path = store.path_of(number)
        was_compared = check_file(path, file, on_bytes)
        store.check_chunk(number)
    except StoreError as error:
        return was_compared, Fault(store.folder / file.path, str(error))
    return was_compared, None


def _parts_of(root: Path) -> list[Path]:
    """Return the folders that have a `metadata.json`: this one, or its splits."""
    if (root / MANIFEST_NAME).exists() or not root.is_dir():
        return [root]
    parts = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    # If one is a split, all must be: a split without metadata is as bad as a folder without.
    return parts if any((part / MANIFEST_NAME).exists() for part in parts) else [root]


def _list_unknown(root: Path, manifests: list[Manifest]) -> Iterator[Path]:
    """Yield the files that no metadata lists, except hidden ones."""
    known = {manifest.folder / MANIFEST_NAME for manifest in manifests}
    known |= {m.folder / os.path.normpath(entry["path"]) for m in manifests for entry in m.entries}
    for parent, folders, files in os.walk(root):
        at = Path(parent)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and at / f not in known)
        for name in sorted(files):
            if not name.startswith(".") and at / name not in known:
                yield at / name
