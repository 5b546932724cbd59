"""Stores over remote files: they come through a local cache, and are read like local ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError
from feedline.lazy import lazy
from feedline.store.checksums import digest_texts
from feedline.store.chunk import OpenChunk
from feedline.store.file_digests import FileDigests
from feedline.store.folder import FolderStore
from feedline.store.formats import FILE_ENDINGS
from feedline.store.lists import LIST_PARTS
from feedline.store.manifest import MANIFEST_NAME, Manifest, parse_manifest
from feedline.store.remote.files import MAX_OPENS, num_local_ranks
from feedline.store.remote.meters import FetchMeters
from feedline.store.remote.paths import FolderPath, RemoteTree
from feedline.store.remote.places import Remote
from feedline.store.remote.remote_file import RemoteFile
from feedline.store.row_tables import RowTables
from feedline.store.shards import Shards, ShardStore

_LARGEST_MANIFEST = 2**30

if TYPE_CHECKING:
    from feedline.store.file_store import FileStore as _Base
else:
    _Base = object


class Remotely(_Base):
    """What stores over remote files have in common; stands before their other base.

    `_begin_remotely` is called once the store is ready otherwise.
    """

    tree: RemoteTree

    def _names_of(self, chunk: int) -> Sequence[str]:
        """Return the names of the files that a chunk is read from."""
        raise NotImplementedError

    def _begin_remotely(self, num_files: int, described: Callable[[int], str]) -> None:
        self._digests = _ServedDigests(num_files, self._path_of, self._name_of, described)

    def _open(self, chunk: int) -> OpenChunk:
        """Open a chunk; again, if the cache evicted its files before they were open."""
        base: Any = super()
        files, names = self.tree.files, self._names_of(chunk)
        if not all(map(files.is_announced, names)):
            files.keep_open(self._open_chunks, chunk, self.chunk_bytes(chunk), is_read=True)
        for _ in range(MAX_OPENS - 1):
            # An object that is lost is an error here.
            for name in names:
                files.path(name)
            with suppress(MissingDataError, FileNotFoundError):
                return base._open(chunk)  # type: ignore[no-any-return]
        return base._open(chunk)  # type: ignore[no-any-return]

    @property
    def meters(self) -> FetchMeters:
        """What this process has read of the data so far."""
        return self.tree.files.meters

    def chunk_bytes(self, chunk: int) -> int:
        """Return the bytes that a chunk's files take in the cache.

        Args:
            chunk: The number of the chunk.
        """
        return sum(self.tree.file_of(name).num_bytes for name in self._names_of(chunk))

    @property
    def num_ahead(self) -> int:
        """The number of chunks to announce ahead, by the time that fetching one has taken."""
        return self.tree.files.num_ahead

    @property
    def bytes_ahead(self) -> int:
        """The bytes of chunks that may be announced at the same time, by this rank."""
        # The rest is for files that come unannounced.
        return self.tree.remote.cache.limit_bytes * 3 // 4 // num_local_ranks()

    def check_window(self, num_chunks: int) -> None:
        """Raise if the cache cannot hold the chunks of one window for each rank of this machine.

        Args:
            num_chunks: The number of chunks in a window.
        """
        if num_chunks in self._windows_checked:
            return
        chunks = range(len(self.chunk_sizes))
        self.tree.look_at([name for chunk in chunks for name in self._names_of(chunk)])
        sizes = sorted(map(self.chunk_bytes, chunks))
        num_ranks = num_local_ranks()
        what = "one window" if num_ranks == 1 else f"one window for each of {num_ranks} local ranks"
        self.tree.remote.cache.check_room(num_ranks * sum(sizes[-num_chunks:]), what=what)
        self._windows_checked.add(num_chunks)

    @lazy
    def _windows_checked(self) -> set[int]:
        return set()

    def prefetch(self, chunk: int) -> None:
        """Fetch a chunk's files in the background, and hold them in the cache until released."""
        is_open = self.tree.files.use(self._open_chunks, chunk)
        for name in self._names_of(chunk):
            self.tree.files.announce(name, chunk, is_open=is_open)

    def release(self, chunk: int) -> None:
        """Let the cache evict a chunk's files if no other chunk needs them."""
        found = [self.tree.files.release(name, chunk) for name in self._names_of(chunk)]
        if all(found):
            self.tree.files.keep_open(self._open_chunks, chunk, self.chunk_bytes(chunk))

    @lazy
    def _tables(self) -> RowTables | None:
        # A chunk may be all that is here of its file.
        return None

    def close(self) -> None:
        """Close open files, and let the cache evict them; a later read opens them again."""
        super().close()
        self.tree.files.close()


class RemoteFolderStore(Remotely, FolderStore):
    """The samples of a packed folder in object storage; its files come through a local cache.

    Opening reads `metadata.json` and nothing else. A file is fetched whole when it is announced or
    first read, compared with its checksum, and kept in the cache for all processes of the node.

    Args:
        remote: The folder, and how it is read.
        columns: The columns to read; by default all.
        cache_bytes: Bytes of decoded parquet and Arrow data to keep.
        lists: Columns of parquet and Arrow files to read as lists of any length.
        verify: Compare checksums, not only CRC-32s, when files arrive.
    """

    def __init__(
        self,
        remote: Remote,
        *,
        columns: Iterable[str] | None = None,
        verify: bool = False,
        cache_bytes: int = 2**28,
        lists: Iterable[str] = (),
    ) -> None:
        self._lists = tuple(lists)
        self.tree = RemoteTree(remote)
        manifest = read_remote_manifest(self.tree)
        self.tree = RemoteTree(remote, recorded_files(remote, manifest, verify))
        # Files are compared when they arrive, but a folder has one checksum for all its files.
        verify = verify and any(_is_folder(entry["path"]) for entry in manifest.entries)
        self._open_manifest(manifest, columns, None, verify=verify, cache_bytes=cache_bytes)
        self._begin_remotely(len(manifest), self._described)

    @classmethod
    def of_files(
        cls,
        path: Any,
        folder: Path,
        names: Sequence[str],
        *,
        columns: Any = None,
        cache_bytes: Any = 2**28,
        lists: Any = (),
    ) -> RemoteFolderStore:
        """Return the samples of some files, which are all fetched to see what is in them."""
        tree: RemoteTree = folder.tree  # type: ignore[attr-defined]
        whole = [name for name in names if not tree.is_ranged(name)]
        for name in whole:
            tree.files.announce(name, -1)
        try:
            given = {"columns": columns, "cache_bytes": cache_bytes, "lists": lists}
            store: Any = super().of_files(path, folder, names, **given)
        finally:
            for name in whole:
                tree.files.release(name, -1)
        store.tree = tree
        store._begin_remotely(len(names), store._described)
        return store  # type: ignore[no-any-return]

    def _names_of(self, chunk: int) -> Sequence[str]:
        number, group = int(self._layout[0][chunk]), int(self._layout[2][chunk])
        name = self.manifest.entries[number]["path"]
        if _is_folder(name):
            return [f"{name}/{inside}" for inside in self._names_in(number)]
        if self.tree.is_ranged(name):
            return (self._groups_of(name)[group],)
        return (name,)

    def _groups_of(self, name: str) -> list[str]:
        """Return the names of the row groups or record batches of a file."""
        if name not in self._groups:
            path: Any = self.tree.path(name)
            self._groups[name] = path.group_names()
        return self._groups[name]

    @lazy
    def _groups(self) -> dict[str, list[str]]:
        return {}

    def _names_in(self, number: int) -> list[str]:
        """Return the names of the files in a chunk that is a folder of `.npy` files."""
        files = self.manifest.file(number).files
        if files is not None:
            return sorted(files)
        if self.manifest.columns is None:
            raise InvalidValueError(
                f"{self._name_of(number)}: is a folder, whose files metadata.json does not name; "
                "pack the data again"
            )
        # Packed by an earlier release.
        names: list[str] = []
        for column in self.manifest.columns.values():
            parts = [f"{column.name}/{part}" for part in LIST_PARTS] if column.has_lists else []
            names += parts or [column.name]
        return sorted(f"{name}.npy" for name in names)

    def _table_path(self, number: int) -> Path:
        # It is opened again after all others were, and the cache may have evicted it by then.
        return self.tree.path(self.manifest.file(number).path)

    def _path_of(self, number: int) -> Path:
        name = self.manifest.file(number).path
        if _is_folder(name):
            return FolderPath.holding(self.tree, name, self._names_in(number))
        # The file in the cache: formats tell by it whether mappings can be shared.
        return self.tree.path(name) if self.tree.is_ranged(name) else self.tree.files.path(name)

    def _described(self, number: int) -> str:
        """Return what the fingerprint is made of: the record, and the ETag without a checksum."""
        file = self.manifest.file(number)
        if _is_folder(file.path):
            names = [f"{file.path}/{name}" for name in self._names_in(number)]
        else:
            names = [file.path]
        found = [] if file.checksum is not None else list(map(self.tree.file_of, names))
        return json.dumps(file.describe()) + "".join(f" {f.num_bytes} {f.etag}" for f in found)


class RemoteShardStore(Remotely, ShardStore):
    """The samples of files that others wrote, in object storage.

    Args:
        shards: What is in the files.
        columns: The columns to read; by default all.
        cache_bytes: Bytes of decoded shards to keep.
    """

    def __init__(
        self, shards: Shards, *, columns: Iterable[str] | None = None, cache_bytes: int = 2**28
    ) -> None:
        self.tree = shards.path.tree  # type: ignore[attr-defined]
        super().__init__(shards, columns=columns, cache_bytes=cache_bytes)
        self._begin_remotely(len(shards.files), self._described)

    def _names_of(self, chunk: int) -> Sequence[str]:
        paths: Sequence[Any] = self.shards.files_of(chunk)
        return [path.relative for path in paths]

    def _check_unchanged(self, chunk: int) -> None:
        """Do nothing: a file in the cache has the ETag that was recorded."""

    def _described(self, number: int) -> str:
        path: Any = self.shards.files[number]
        found = self.tree.file_of(path.relative)
        return f"{path.relative} {found.num_bytes} {found.etag}"


class _ServedDigests(FileDigests):
    """Digests of what is recorded of files, or what the server says: none of them is read."""

    def _digest(self, part: int) -> tuple[str, list[int]]:
        numbers = self._files_in(part)
        return self._joined([digest_texts([self._described(n)]) for n in numbers]), []

    def check_unchanged(self, number: int) -> None:
        """Do nothing: a file in the cache has the digest or the ETag that was recorded."""


def _is_folder(name: str) -> bool:
    return not name.endswith(FILE_ENDINGS)


def recorded_files(remote: Remote, manifest: Manifest, verify: bool) -> dict[str, RemoteFile]:
    """Return the files of which the size and the checksum are recorded."""
    found = {}
    for number, entry in enumerate(manifest.entries):
        if "bytes" in entry and "checksum" in entry:
            file = manifest.file(number)
            url = remote.url / file.path
            for name, (num_bytes, crc32) in (file.files or {}).items():
                record = RemoteFile(url / name, num_bytes, digest=file.checksum, crc32=crc32)
                found[f"{file.path}/{name}"] = record
            if _is_folder(file.path):
                continue
            if file.num_bytes is not None and file.checksum is not None:
                faster = None if verify else file.crc32
                record = RemoteFile(url, file.num_bytes, digest=file.checksum, crc32=faster)
                found[file.path] = record
    return found


def read_remote_manifest(tree: RemoteTree) -> Manifest:
    """Read and check the `metadata.json` of a folder."""
    url = tree.url_of(MANIFEST_NAME)
    data, _ = tree.remote.objects.read(url, _LARGEST_MANIFEST)
    try:
        found: Any = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DamagedDataError(f"{url}: is not JSON ({error}); pack again") from None
    return parse_manifest(tree.path(), found)
