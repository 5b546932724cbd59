"""The files of a zarr store, opened only if they are plain files and decode to their size.

Everything that zarr reads of a store goes through here. What reads files by itself asks first, with
`check_chunk`.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, UnsafeDataError
from feedline.plain_file import read_plain
from feedline.store.decoded_size import SLACK, check_decoded, decode
from feedline.store.mapped import open_without_waiting
from feedline.store.zarr_layout import ZarrLayout, layouts_in

HEADERS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_MAX_HEADER_BYTES = 2**26
_MAX_TEXT_BYTES = 2**28
_NOTHING = 2**64 - 1


@cache
def _folder_class() -> Any:
    """Return the kind of store that zarr reads from; zarr is imported when it is needed."""
    from zarr.storage import LocalStore

    class PlainFolder(LocalStore):
        """A folder that zarr reads from, without links, pipes, unknown codecs or bombs."""

        def __init__(self, root: Path, *, read_only: bool = True) -> None:
            super().__init__(root, read_only=read_only)
            self.checks = FileChecks(root)

        def __reduce__(self) -> tuple[Any, ...]:
            return plain_folder, (self.root, self.checks)

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            """Return the bytes of a file, or None if there is none; raise if it is not safe."""
            if self.checks.status_of(key) is None:
                return None
            found = await super().get(key, prototype, byte_range)
            if found is not None:
                content = found.as_numpy_array()
                await asyncio.to_thread(self.checks.check_content, key, content, byte_range)
            return found

        def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
            """Return what `get` returns."""
            if self.checks.status_of(key) is None:
                return None
            found = super().get_sync(key, prototype=prototype, byte_range=byte_range)
            if found is not None:
                self.checks.check_content(key, found.as_numpy_array(), byte_range)
            return found

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> list[Any]:
            """Return what `get` returns for several parts of files."""
            wanted = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
            return list(await asyncio.gather(*wanted))

    return PlainFolder


def plain_folder(root: Path, checks: FileChecks | None = None) -> Any:
    """Return a folder for zarr to read from, each of whose files is checked first.

    Args:
        root: The folder.
        checks: What is known of its files.
    """
    folder = _folder_class()(root)
    folder.checks = checks or folder.checks
    return folder


class FileChecks:
    """What is known of the files of a zarr store.

    Args:
        root: The folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layouts: dict[str, ZarrLayout] = {}
        self._plain: set[str] = set()

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a header, or None if there is none."""
        if self.status_of(key) is None:
            return None
        return read_plain(self.root / key, _MAX_HEADER_BYTES)

    def check_chunk(self, key: str, inner: Callable[[], NDArray[np.int64]]) -> bool:
        """Check a file that others will decode; return whether it is there.

        Args:
            key: The file.
            inner: Returns the numbers of the chunks in a shard that will be decoded.
        """
        status = self.status_of(key)
        if status is None:
            return False
        layout = self._layout_of(key)
        if layout is None:
            raise DamagedDataError(f"{self.root / key}: belongs to no array")
        with open(self.root / key, "rb", buffering=0, opener=open_without_waiting) as file:
            if not status.st_size:
                raise self._unreadable(key, "it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    self._check_payloads(key, layout, view, inner)
                finally:
                    view.release()
        return True

    def status_of(self, key: str) -> os.stat_result | None:
        """Return the status of a plain file, or None if there is none; raise if it is another."""
        parts = key.split("/")
        if key.startswith("/") or ".." in parts:
            raise UnsafeDataError(f"{self.root}: {key!r:.200} must be a path inside the store")
        folder = self.root
        for end, part in enumerate(parts[:-1], 1):
            folder = folder / part
            name = "/".join(parts[:end])
            if name not in self._plain:
                status = _lstat(folder)
                if status is None:
                    return None
                if not stat.S_ISDIR(status.st_mode):
                    if stat.S_ISREG(status.st_mode):
                        return None
                    raise _not_plain(folder, "folder")
                self._plain.add(name)
        path = self.root / key
        status = _lstat(path)
        if status is None or stat.S_ISDIR(status.st_mode):
            return None
        if not stat.S_ISREG(status.st_mode):
            raise _not_plain(path, "file")
        self._check_size(key, status.st_size)
        return status

    def _check_size(self, key: str, size: int) -> None:
        most = _MAX_HEADER_BYTES
        if key.rpartition("/")[2] not in HEADERS:
            layout = self._layout_of(key)
            if layout is None:
                return
            chunk_bytes = _MAX_TEXT_BYTES if layout.chunk_bytes is None else layout.chunk_bytes
            # What does not compress grows a little.
            most = (chunk_bytes + chunk_bytes // 64 + 256) * (layout.num_inner or 1)
            most += layout.index_bytes + SLACK
        if size > most:
            raise DamagedDataError(
                f"{self.root / key}: has {size} bytes, which must be at most {most}; restore it"
            )

    def _layout_of(self, key: str) -> ZarrLayout | None:
        folder = key
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self._layouts:
                return self._layouts[folder]
        return None

    def check_content(self, key: str, found: NDArray[Any], byte_range: Any) -> None:
        """Raise if what was read of a file is not safe to decode."""
        folder, _, name = key.rpartition("/")
        if name in HEADERS:
            where = str(self.root / key)
            try:
                document = json.loads(found.tobytes())
            except (ValueError, RecursionError) as error:
                raise DamagedDataError(f"{where}: is not JSON ({error!s:.200})") from None
            for below, described in layouts_in(document, name, where):
                self._layouts[f"{folder}/{below}".strip("/")] = described
            return
        layout = self._layout_of(key)
        if layout is None:
            raise DamagedDataError(f"{self.root / key}: belongs to no array")
        view = np.ascontiguousarray(found).data.cast("B")
        if layout.num_inner is None:
            self._check_payload(key, layout, view)
        elif byte_range is None:
            self._check_payloads(key, layout, view, lambda: np.arange(layout.num_inner or 0))
        elif hasattr(byte_range, "end") and not (layout.is_index_first and byte_range.start == 0):
            self._check_payload(key, layout, view)

    def _check_payloads(
        self,
        key: str,
        layout: ZarrLayout,
        view: memoryview,
        inner: Callable[[], NDArray[np.int64]],
    ) -> None:
        """Check a chunk, or chunks of a shard by its index."""
        if layout.num_inner is None:
            self._check_payload(key, layout, view)
            return
        if len(view) < layout.index_bytes:
            raise self._unreadable(key, "it is shorter than the index of a shard")
        start = 0 if layout.is_index_first else len(view) - layout.index_bytes
        index = np.frombuffer(view[start : start + 16 * layout.num_inner], "<u8").reshape(-1, 2)
        for offset, size in index[inner()].tolist():
            if (offset, size) == (_NOTHING, _NOTHING):
                continue
            if offset + size > len(view):
                raise self._unreadable(key, "its index leads beyond its end")
            self._check_payload(key, layout, view[offset : offset + size])

    def _check_payload(self, key: str, layout: ZarrLayout, view: memoryview) -> None:
        if layout.num_checksums:
            view = view[: max(0, len(view) - 4 * layout.num_checksums)]
        try:
            if layout.chunk_bytes is None:
                _check_texts(view, layout)
            elif layout.compressor is not None:
                check_decoded(view, layout.compressor, layout.chunk_bytes)
            elif len(view) > layout.chunk_bytes + SLACK:
                raise ValueError(f"it has more than {layout.chunk_bytes} bytes")
        except (ValueError, RuntimeError) as error:
            raise self._unreadable(key, str(error)) from None

    def _unreadable(self, key: str, reason: str) -> DamagedDataError:
        return DamagedDataError(
            f"{self.root / key}: cannot be read ({reason:.200}); restore it or write it again"
        )


def _check_texts(view: memoryview, layout: ZarrLayout) -> None:
    """Raise unless texts are as many as a chunk has: a decoder allocates what their count says."""
    data = view if layout.compressor is None else decode(view, layout.compressor, _MAX_TEXT_BYTES)
    count = int.from_bytes(data[:4], "little")
    if len(data) < 4 or count > min(layout.num_values, len(data) // 4):
        raise ValueError(f"it has {count} texts instead of {layout.num_values}")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DamagedDataError(f"{path!s:.200}: cannot be accessed ({error!s:.200})") from None


def _not_plain(path: Path, kind: str) -> UnsafeDataError:
    return UnsafeDataError(
        f"{path}: must be a plain {kind}, not a link, a pipe or a device; copy the data into the "
        "store"
    )
