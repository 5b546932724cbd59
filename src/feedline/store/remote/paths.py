"""Paths of remote files: shown as URLs, and fetched into the cache when they are opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from feedline.errors import InvalidValueError, MissingDataError
from feedline.store.remote.files import RemoteFiles
from feedline.store.remote.places import Remote
from feedline.store.remote.remote_file import RemoteFile
from feedline.store.remote.requests import Head
from feedline.store.remote.urls import Url

_Path: Any = type(Path())
_ARROW = b"ARROW1"
# Smaller files are fetched whole, by one request.
_LARGEST_WHOLE = 2**23
_MOST_LISTED = 10**6
_NUM_THREADS = 16


class RemoteTree:
    """The files under a URL, by their names; they come through the cache.

    Args:
        remote: The folder, and how it is read.
        known: What is known of files already, by name.
        names: The names of all files, where the user has told them.
    """

    def __init__(
        self,
        remote: Remote,
        known: Mapping[str, RemoteFile] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.remote = remote
        self._known = dict(known or {})
        self._names = None if names is None else list(names)
        self._ranged: dict[str, bool] = {}
        self._lock = Lock()
        self.files = RemoteFiles(remote.objects, remote.cache, self.file_of, self._known)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {**self.__dict__, "_known": dict(self._known), "_lock": None, "files": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())
        self.files = RemoteFiles(self.remote.objects, self.remote.cache, self.file_of, self._known)

    def file_of(self, name: str) -> RemoteFile:
        """Return what is known of a file; the server is asked the first time."""
        found = self._known.get(name)
        if found is None:
            url = self.url_of(name)
            head: Head = self.remote.objects.head(url)
            found = self._told(url, head)
            with self._lock:
                # All later reads must find the same object.
                found = self._known.setdefault(name, found)
        return found

    def _told(self, url: Url, head: Head) -> RemoteFile:
        """Return what is known of an object that a server has told about."""
        server = self.remote.objects.server_of(url)
        return RemoteFile(
            url, head.num_bytes, head.etag, object_bytes=head.num_bytes, server=server
        )

    def names(self) -> list[str]:
        """Return the names of all files; the server is asked once, unless the user has told."""
        if self._names is None:
            url = self.remote.url
            if url.scheme.startswith("http"):
                raise InvalidValueError(
                    f"{url}: a web server cannot list its files; name them, as in "
                    f"{url}/shard-{{000..009}}.tar"
                )
            listed = self.remote.objects.list_heads(url, _MOST_LISTED)
            if len(listed) >= _MOST_LISTED:
                raise InvalidValueError(
                    f"{url}: has more than {_MOST_LISTED} files, which are too many to list; name "
                    f"those that you need, as in {url}/shard-{{000..009}}.tar"
                )
            for name, head in listed:
                # Some lists have ETags in another form than the objects themselves.
                if head.etag is not None and head.etag.startswith('"'):
                    self.note(name, self._told(url / name, head))
            self._names = [name for name, _ in listed]
        return self._names

    @property
    def known_names(self) -> list[str]:
        """The names of all files, if they were listed or told; else none."""
        return self._names or []

    def look_at(self, names: Sequence[str]) -> None:
        """Ask the server about several files at once, if they are not known."""
        unknown = [name for name in names if name not in self._known]
        if unknown:
            with ThreadPoolExecutor(_NUM_THREADS) as threads:
                list(threads.map(self.file_of, unknown))

    def url_of(self, name: str) -> Url:
        """Return the URL of a file."""
        return self.remote.url / name if name else self.remote.url

    def note(self, name: str, file: RemoteFile) -> str:
        """Note what is known of a file, or of a part of one; return its name."""
        with self._lock:
            self._known.setdefault(name, file)
        return name

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        try:
            self.file_of(name)
        except MissingDataError:
            return False
        return True

    def path(self, name: str = "") -> RemotePath:
        """Return the path of a file or folder; of a large table, only parts are fetched."""
        if self.is_ranged(name):
            from feedline.store.remote.arrow import ArrowPath
            from feedline.store.remote.parquet import ParquetPath

            return (ParquetPath if name.endswith(".parquet") else ArrowPath).of(self, name)
        return RemotePath.of(self, name)

    def is_ranged(self, name: str) -> bool:
        """Whether only parts of a file are fetched; one with a checksum must come whole."""
        if not name.endswith((".parquet", ".arrow", ".feather")):
            return False
        if name not in self._ranged:
            file = self.file_of(name)
            is_large = file.digest is None and file.num_bytes > _LARGEST_WHOLE
            # A stream has no footer that tells where its batches are.
            is_stream = is_large and not name.endswith(".parquet") and self._is_stream(file)
            self._ranged[name] = is_large and not is_stream
        return self._ranged[name]

    def _is_stream(self, file: RemoteFile) -> bool:
        return self.first_bytes(file, len(_ARROW)) != _ARROW

    def first_bytes(self, file: RemoteFile, count: int) -> bytes:
        """Return the first bytes of a file, without fetching the rest."""
        end = min(count, file.num_bytes)
        return self.remote.objects.read_range(file.url, 0, end, file.etag, file.object_bytes)

    def part(self, name: str, start: int, end: int) -> RemotePath:
        """Return the path of a part of a file, which is fetched alone."""
        whole = self.file_of(name)
        part = whole.part(end - start, start=start)
        return RemotePath.of(self, self.note(f"{name}#{start}-{end}", part))


class RemotePath(_Path):  # type: ignore[misc]
    """A path that is shown as its URL; opening it opens the file in the cache.

    Whoever opens it gets the whole file, which is fetched if it is not there.
    """

    tree: RemoteTree
    relative: str

    @classmethod
    def of(cls, tree: RemoteTree, relative: str) -> RemotePath:
        """Return the path of a file or folder of a tree."""
        url = tree.url_of(relative)
        # Not quoted: the name is that of the file.
        path = cls(f"{url.root}/{url.key}")
        path.tree, path.relative = tree, relative
        return path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self.tree, self.relative)

    def __str__(self) -> str:
        tree = getattr(self, "tree", None)
        return str(super().__str__()) if tree is None else str(tree.url_of(self.relative))

    def __fspath__(self) -> str:
        return str(self.tree.files.path(self.relative))

    def __truediv__(self, name: Any) -> RemotePath:
        name = str(name)
        return self.tree.path(f"{self.relative}/{name}" if self.relative else name)

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path of a file beside this one, with another ending."""
        return self.tree.path(str(PurePosixPath(self.relative).with_suffix(suffix)))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the files and folders in a folder; the server lists all files of the tree once."""
        start = f"{self.relative}/" if self.relative else ""
        inside = (name[len(start) :] for name in self.tree.names() if name.startswith(start))
        for name in dict.fromkeys(name.partition("/")[0] for name in inside):
            yield RemotePath.of(self.tree, start + name)

    def first_bytes(self, count: int) -> bytes:
        """Return the first bytes of a file, without fetching the rest."""
        return self.tree.first_bytes(self.tree.file_of(self.relative), count)

    def part(self, start: int, end: int) -> RemotePath:
        """Return the path of a part of the file, which is fetched alone."""
        return self.tree.part(self.relative, start, end)

    def announce(self) -> None:
        """Fetch the file in the background."""
        self.tree.files.announce(self.relative, -1)

    def release(self) -> None:
        """Let the cache evict a file that was announced."""
        self.tree.files.release(self.relative, -1)

    @property
    def parent(self) -> RemotePath:
        """The folder that this is in; that of the tree itself is the tree."""
        return RemotePath.of(self.tree, self.relative.rpartition("/")[0])

    def absolute(self) -> RemotePath:
        """Return the same path: a URL does not depend on the working directory."""
        return self

    def exists(self, **_: Any) -> bool:
        """Whether a file is there."""
        return self.is_file()

    def is_file(self, **_: Any) -> bool:
        """Whether a file is there; the server is asked."""
        return bool(self.relative) and self.tree.has(self.relative)

    def is_dir(self, **_: Any) -> bool:
        """Whether this is the folder that was opened, or one with files that were listed."""
        listed = self.tree.known_names
        return not self.relative or any(name.startswith(f"{self.relative}/") for name in listed)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield all files in a folder; the pattern must be `*`."""
        assert pattern == "*"
        inside = (n for n in self.tree.names() if n.startswith(f"{self.relative}/"))
        return (RemotePath.of(self.tree, name) for name in inside)

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return the same path: remote files have no links."""
        return self

    @property
    def identity(self) -> tuple[str, int, str]:
        """The URL, the size and the version of the file."""
        found = self.tree.file_of(self.relative)
        return str(self), found.num_bytes, found.version

    def stat(self, **_: Any) -> os.stat_result:
        """Return the status of the file in the cache."""
        return os.stat(os.fspath(self))


class FolderPath(RemotePath):
    """The path of a folder whose files are known, by their names in it."""

    inside: tuple[str, ...]

    @classmethod
    def holding(cls, tree: RemoteTree, relative: str, inside: Sequence[str]) -> FolderPath:
        """Return the path of a folder with these files."""
        path: Any = cls.of(tree, relative)
        path.inside = tuple(inside)
        return path  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).holding, (self.tree, self.relative, self.inside)

    def is_dir(self, **_: Any) -> bool:
        """Return True."""
        return True
