"""Packing to a URL: packed on disk first, then written object by object, the manifest last."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from feedline.errors import MissingDataError, PackError, check_flag
from feedline.packing.replacing import PackedBefore
from feedline.store.cache import default_folder
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.progress import Progress, open_progress
from feedline.store.remote.objects import Objects
from feedline.store.remote.paths import RemoteTree
from feedline.store.remote.places import Remote
from feedline.store.remote.requests import Head
from feedline.store.remote.urls import Url
from feedline.store.writing import open_whole

if TYPE_CHECKING:
    from feedline.packing.packer import PackResult

_NUM_THREADS = 8


def pack_to_url(
    url: str,
    pack: Callable[[Path, KeptFolder], PackResult],
    *,
    splits: Collection[str],
    storage_options: Mapping[str, Any] | None,
    overwrite: bool,
    progress: bool | None,
) -> PackResult:
    """Pack to a folder on disk, write it to a URL, and remove it.

    The folder is beside the cache, under a name that the URL determines: if packing or writing was
    interrupted, the same call resumes there. `metadata.json` is written last, so that no one opens
    data that is not complete.

    Args:
        url: The folder to write.
        pack: Packs to a folder on disk.
        splits: The names of the splits; none without splits.
        storage_options: How to get at the URL.
        overwrite: Whether data may be there already.
        progress: Whether to show progress.
    """
    target, objects = Url.of(url), Objects(storage_options)
    name = hashlib.blake2b(str(target).encode(), digest_size=16).hexdigest()
    folder = default_folder().parent / "packing" / name
    kept = KeptFolder(folder)
    before = PackedBefore(objects, target, splits)
    if not check_flag("overwrite", overwrite) and _is_there(objects, target, kept, before):
        raise PackError(f"{target}: exists; use another URL, or overwrite=True")
    before.refuse_others()
    folder.parent.mkdir(parents=True, exist_ok=True)
    result = pack(folder, kept)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    with open_progress(progress) as bars:
        bars.begin("uploading", sum(path.stat().st_size for path in files), unit="bytes")
        for is_last in (False, True):
            part = [path for path in files if (path.name == MANIFEST_NAME) == is_last]
            _upload(objects, target, kept, part, bars)
    for name in before.left({kept.name_of(path) for path in files}):
        objects.remove(target / name)
    kept.remove()
    remote = Remote.of(str(target), storage_options=storage_options)
    return replace(result, folder=RemoteTree(remote).path())


def _is_there(objects: Objects, target: Url, kept: KeptFolder, before: PackedBefore) -> bool:
    """Whether packed data is there, and not only splits that an interrupted run has written."""
    written = kept.written
    heads = {name: _head_of(objects, target / name) for name in before.manifests}
    are_ours = all(head is None or head.etag == written.get(name) for name, head in heads.items())
    return before.is_whole or not are_ours


def _head_of(objects: Objects, url: Url) -> Head | None:
    try:
        return objects.head(url)
    except MissingDataError:
        return None


class KeptFolder:
    """A packed folder that is kept until all of it is written to its URL.

    Beside it are a note of what was asked for, and the names of files that were written, with the
    ETags that they got: by these, what others have written since is told apart.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._note = folder.with_name(f"{folder.name}.json")
        self._written = folder.with_name(f"{folder.name}.written")
        self._lock = Lock()

    def is_of(self, request: Any) -> bool:
        """Whether the folder is whole, and what this request asks for."""
        try:
            return self.folder.is_dir() and json.loads(self._note.read_bytes()) == _as_json(request)
        except (OSError, ValueError, RecursionError):
            return False

    def forget(self) -> None:
        """Note that the folder is about to be packed anew."""
        for path in (self._note, self._written):
            path.unlink(missing_ok=True)

    def keep(self, request: Any) -> None:
        """Note that the folder is whole."""
        with open_whole(self._note) as file:
            file.write(json.dumps(request).encode())

    def note_written(self, path: Path, etag: str | None) -> None:
        """Note that a file was written to the URL, and the ETag that it has there."""
        with self._lock, open(self._written, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.name_of(path), etag]) + "\n")

    @property
    def written(self) -> dict[str, str]:
        """The ETags of files that were written to the URL, by name."""
        found = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in self._written.read_text(encoding="utf-8").splitlines():
                # The last one may not be whole.
                with suppress(ValueError, TypeError):
                    name, etag = json.loads(line)
                    found[name] = etag
        return found

    def name_of(self, path: Path) -> str:
        """Return the name of a file in the folder."""
        return path.relative_to(self.folder).as_posix()

    def remove(self) -> None:
        """Remove all of it."""
        self.forget()
        shutil.rmtree(self.folder)


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _upload(
    objects: Objects, target: Url, kept: KeptFolder, files: list[Path], bars: Progress
) -> None:
    written = kept.written

    def upload(path: Path) -> int:
        url, num_bytes = target / kept.name_of(path), path.stat().st_size
        etag = written.get(kept.name_of(path))
        if etag is None or _head_of(objects, url) != Head(num_bytes, etag):
            kept.note_written(path, objects.write(url, path))
        return num_bytes

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        try:
            for num_bytes in threads.map(upload, files):
                bars.advance(num_bytes)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
