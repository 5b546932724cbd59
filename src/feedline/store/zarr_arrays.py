"""Zarr groups and arrays: opening them, choosing what decodes them, and reading many runs at once.

The zarrs pipeline decodes in its own threads, which do not survive a fork: a process forked after
its parent used them would wait forever. So small arrays are read by zarr's own pipeline, zarrs is
used for the matrix only, and not where a parent may have used it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, FeedlineError, MissingDataError
from feedline.store.extras import import_extra
from feedline.store.runs import Runs

_PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_FAST = "zarrs.ZarrsCodecPipeline"

#: The bytes that a list may have in any case, and for each byte of its files.
_SMALL, _BYTES_PER_STORED = 2**26, 1024

_HEADERS = {2: ".zarray", 3: "zarr.json"}

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "zarrs" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


@contextmanager
def plain_codecs() -> Iterator[None]:
    """Decode arrays opened in this context without threads."""
    with _import_zarr().config.set({"codec_pipeline.path": _PLAIN}):
        yield


def open_zarr(path: Path) -> Any:
    """Return the zarr group or array in a folder, opened for reading."""
    zarr = _import_zarr()
    from feedline.store.zarr_files import plain_folder

    if not path.exists():
        raise MissingDataError(f"{path}: does not exist; check the path")
    with damage_in(path, "is not a zarr group or array"), plain_codecs():
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is a file")
        return zarr.open(plain_folder(path.absolute()), mode="r")


def with_fast_codecs(array: Any) -> Any:
    """Return the same array, decoded by zarrs if that is installed and can be used here."""
    zarr = _import_zarr()
    is_fast = importlib.util.find_spec("zarrs") is not None and not _is_forked
    with zarr.config.set({"codec_pipeline.path": _FAST if is_fast else _PLAIN}):
        place = array.store_path
        if is_fast:
            # It knows zarr's own stores only, by their names.
            place = zarr.storage.StorePath(
                zarr.storage.LocalStore(array.store.root, read_only=True), array.path
            )
        # The header that was checked, and not the one that may be there by now.
        inner = type(array._async_array)(
            metadata=array.metadata, store_path=place, config=array._async_array.config
        )
        return zarr.Array(inner)


def read_whole(array: Any) -> NDArray[Any]:
    """Return all values of a small array, or raise if its files are too small for them."""
    num_bytes = array.size * max(np.dtype(array.dtype).itemsize, 1)
    if num_bytes > _SMALL:
        root = Path(array.store.root) / array.path
        stored = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file())
        if num_bytes > stored * _BYTES_PER_STORED:
            raise DamagedDataError(
                f"{root}: should have {num_bytes} bytes but its files have only {stored}; restore "
                "it"
            )
    return np.asarray(array[:])


@contextmanager
def damage_in(where: object, what: str = "cannot be read") -> Iterator[None]:
    """Turn what zarr and its codecs raise for damaged files into `DamagedDataError`."""
    try:
        yield
    except FeedlineError:
        raise
    except BaseException as error:
        # A codec that is written in Rust may panic, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DamagedDataError(f"{where}: {what} ({error!r:.200})") from error


class ZarrArray:
    """An array whose entries are read in runs.

    Args:
        array: An open zarr array.
        may_lack: Returns whether entries `[start, end)` may lack a file: zarr does not write chunks
            of fill values only. Otherwise a missing file is an error.
    """

    def __init__(self, array: Any, *, may_lack: Callable[[int, int], bool]) -> None:
        self.array = array
        self.shape: tuple[int, ...] = tuple(int(size) for size in array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunk_size = int(array.chunks[0])
        #: The shape of what is stored as one; the inner chunks of a shard are its own affair.
        self.stored_shape: tuple[int, ...] = tuple(array.shards or array.chunks)
        self._may_lack = may_lack
        self._decoder: tuple[int, Any] | None = None
        self._checked: dict[int, NDArray[np.bool_]] = {}
        name = f"{array.path}/{_HEADERS[array.metadata.zarr_format]}".lstrip("/")
        self._header = Path(array.store.root) / name
        self._header_stamp, self._header_bytes = self._stamp(), array.store.checks.read(name)

    def decoder(self) -> Any:
        """Return the array as this process decodes it."""
        if self._decoder is None or self._decoder[0] != os.getpid():
            self._decoder = os.getpid(), with_fast_codecs(self.array)
        return self._decoder[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def is_as_opened(self) -> bool:
        """Return whether the header is the one that was opened; a copy of it counts as another."""
        return self._header_stamp == self._stamp()

    def reopen(self) -> bool:
        """Accept a header that was written again, and forget which files were checked.

        Return whether it says the same.
        """
        self._header_stamp = self._stamp()
        self._checked.clear()
        root = Path(self.array.store.root)
        found = self.array.store.checks.read(self._header.relative_to(root).as_posix())
        return bool(found == self._header_bytes)

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = os.lstat(self._header)
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def check_files(self, runs: Runs) -> None:
        """Raise if a file is not safe to decode, or a required one is missing; each is checked
        once."""
        size = self.stored_shape[0]
        spans: dict[int, list[tuple[int, int]]] = {}
        for start, end, _ in runs:
            for number in range(start // size, -(-end // size)):
                first = number * size
                spans.setdefault(number, []).append((max(start - first, 0), min(end - first, size)))
        for number, inside in sorted(spans.items()):
            self._check_band(number, inside)

    def _check_band(self, number: int, spans: Sequence[tuple[int, int]]) -> None:
        """Check the files of the entries from `number` times the size of a file on."""
        # One flag for each chunk of a file along the first axis.
        step = self.chunk_size
        is_checked = self._checked.get(number)
        if is_checked is None:
            is_checked = np.zeros(-(-self.stored_shape[0] // step), np.bool_)
            self._checked[number] = is_checked
        wanted = np.zeros_like(is_checked)
        for start, end in spans:
            wanted[start // step : -(-end // step)] = True
        wanted &= ~is_checked
        if not wanted.any():
            return
        rows = np.flatnonzero(wanted)
        trailing = math.prod(
            stored // chunk
            for stored, chunk in zip(self.stored_shape[1:], self.array.chunks[1:], strict=True)
        )
        first = number * self.stored_shape[0]
        end = min(first + self.stored_shape[0], self.shape[0])
        columns = (
            range(-(-size // stored))
            for size, stored in zip(self.shape[1:], self.stored_shape[1:], strict=True)
        )
        for others in product(*columns):
            key = self.array.metadata.encode_chunk_key((number, *others))
            key = f"{self.array.path}/{key}".lstrip("/")
            is_there = self.array.store.checks.check_chunk(
                key, lambda: (rows[:, None] * trailing + np.arange(trailing)).ravel()
            )
            if not is_there and not self._may_lack(first, end):
                raise MissingDataError(
                    f"{self.array.store.root / key}: is missing; restore the file"
                )
        is_checked |= wanted


def read_runs(parts: Sequence[tuple[ZarrArray, Runs, NDArray[Any]]]) -> None:
    """Decode runs of entries of several arrays, each into its own buffer, all at once."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    prototype = default_buffer_prototype()
    names = ", ".join(sorted({str(array.array.store_path) for array, _, _ in parts}))
    with damage_in(names):
        reads = []
        for array, runs, out in parts:
            array.check_files(runs)
            if runs.num_entries:
                target = prototype.nd_buffer.from_numpy_array(out)
                reads.append((array.decoder()._async_array, _RunsIndexer(array, runs), target))

        async def read_all() -> None:
            await asyncio.gather(
                *(
                    array._get_selection(indexer, prototype=prototype, out=target)
                    for array, indexer, target in reads
                )
            )

        sync(read_all())


class _RunsIndexer:
    """The parts of stored chunks that zarr iterates over, and their places in the output."""

    def __init__(self, array: ZarrArray, runs: Runs) -> None:
        self._array = array
        self._runs = runs
        self.shape = (runs.num_entries, *array.shape[1:])
        self.drop_axes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        from zarr.core.indexing import ChunkProjection

        size, *trailing = self._array.stored_shape
        columns = [
            [
                (number, slice(0, min(step, length - number * step)), number * step)
                for number in range(-(-length // step))
            ]
            for step, length in zip(trailing, self._array.shape[1:], strict=True)
        ]
        for start, end, offset in self._runs:
            for number in range(start // size, -(-end // size)):
                first, stop = max(start, number * size), min(end, (number + 1) * size)
                inside = slice(first - number * size, stop - number * size)
                into = slice(offset + first - start, offset + stop - start)
                is_whole = stop - first == min(size, self._array.shape[0] - number * size)
                for others in product(*columns):
                    yield ChunkProjection(
                        (number, *(n for n, _, _ in others)),
                        (inside, *(part for _, part, _ in others)),
                        (into, *(slice(at, at + part.stop) for _, part, at in others)),
                        is_whole,
                    )


def _import_zarr() -> Any:
    return import_extra("zarr", extra="zarr", what="zarr stores")
