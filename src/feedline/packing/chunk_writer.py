"""Cuts rows into chunks, writes them in threads, and enters each in the journal once on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.formats import chunk_name, write_chunk
from feedline.packing.journal import Entry, Journal
from feedline.store.checksums import checksum_files
from feedline.store.columns import Column
from feedline.store.manifest import ChunkFile
from feedline.store.paths import files_of
from feedline.store.writing import remove, reported, sync, sync_chunk

_Arrays = Mapping[str, Any]

# Many small chunks share the cost of waiting for the disk.
_COMMIT_BYTES = 2**26
_COMMIT_SECONDS = 0.25


class Cutter:
    """Collects the rows of one folder, from `position` on, and hands over each chunk when full."""

    def __init__(
        self,
        *,
        columns: list[Column],
        chunk_samples: int,
        position: int,
        finished: Collection[int],
        on_chunk: Callable[[int, _Arrays], None],
    ) -> None:
        self._columns = columns
        self._chunk_samples = chunk_samples
        self._finished = finished
        self._on_chunk = on_chunk
        self._open: dict[str, NDArray[Any]] | None = None
        self.position = position

    def add(self, arrays: _Arrays) -> None:
        """Take the next rows."""
        num_rows = len(next(iter(arrays.values())))
        done = 0
        while done < num_rows:
            number, offset = divmod(self.position, self._chunk_samples)
            count = min(num_rows - done, self._chunk_samples - offset)
            if number not in self._finished:
                self._copy(arrays, done, offset, count)
            done += count
            self.position += count
            if offset + count == self._chunk_samples:
                self._hand_over(number)

    def skip(self, num_rows: int) -> None:
        """Pass over rows, all of finished chunks."""
        assert self._open is None
        self.position += num_rows

    def finish(self) -> None:
        """Hand over the last chunk, which may be short."""
        self._hand_over(self.position // self._chunk_samples)

    def _copy(self, arrays: _Arrays, start: int, offset: int, count: int) -> None:
        if self._open is None:
            assert offset == 0, "the rows of an unfinished chunk come from its first one on"
            self._open = {
                column.name: np.empty((self._chunk_samples, *column.shape), column.dtype)
                for column in self._columns
            }
        for name, values in self._open.items():
            values[offset : offset + count] = arrays[name][start : start + count]

    def _hand_over(self, number: int) -> None:
        if self._open is None:
            return
        size = self.position - number * self._chunk_samples
        chunk = {name: values[:size] for name, values in self._open.items()}
        self._open = None
        self._on_chunk(number, chunk)


class ChunkWriter:
    """Writes the chunks of one or several folders.

    Args:
        folders: The folder of each split.
        format_: The format of the chunks.
        chunk_samples: The number of samples of every chunk but the last.
        journal: Where finished chunks are entered.
        entries: What the journal of an interrupted run holds.
        num_threads: The number of chunks that are written at once.
        num_waiting: The number of chunks that may be in memory.
    """

    def __init__(
        self,
        *,
        folders: list[Path],
        format_: str,
        chunk_samples: int,
        journal: Journal,
        entries: list[Entry],
        num_threads: int,
        num_waiting: int,
    ) -> None:
        self._folders = folders
        self._format = format_
        self._chunk_samples = chunk_samples
        self._journal = journal
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="feedline-pack")
        self._room = threading.BoundedSemaphore(num_waiting)
        self._guard = threading.Lock()
        self._pending: list[tuple[int, int, ChunkFile]] = []
        self._pending_bytes = 0
        self._last_commit = time.monotonic()
        self._error: BaseException | None = None
        self.finished: list[dict[int, ChunkFile]] = [{} for _ in folders]
        with reported(folders[0]):
            self._take_over(entries)
        self.num_resumed = sum(len(chunks) for chunks in self.finished)

    def submit(self, split: int, number: int, arrays: _Arrays) -> None:
        """Have a chunk written; wait if too many are in memory."""
        self._room.acquire()
        if self._error is not None:
            raise self._error
        self._pool.submit(self._run, split, number, arrays)

    def finish(self) -> None:
        """Wait until all chunks are written and in the journal, or raise what went wrong."""
        self._pool.shutdown(wait=True)
        if self._error is not None:
            raise self._error
        self._commit(self._take_pending())

    def abandon(self) -> None:
        """Give up what is not written, and keep what is."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with suppress(PackError):
            self._commit(self._take_pending())

    def path(self, split: int, number: int) -> Path:
        """Return where a chunk is written."""
        return self._folders[split] / chunk_name(self._format, number)

    def _run(self, split: int, number: int, arrays: _Arrays) -> None:
        try:
            if self._error is None:
                self._write(split, number, arrays)
        except BaseException as error:
            # The first error is the cause; later ones follow from it.
            self._error = self._error or error
        finally:
            del arrays
            self._room.release()

    def _write(self, split: int, number: int, arrays: _Arrays) -> None:
        path = self.path(split, number)
        num_samples = len(next(iter(arrays.values())))
        with reported(path):
            write_chunk(self._format, path, arrays, number * self._chunk_samples)
            checksum, num_bytes = checksum_files(files_of(path))
        file = ChunkFile(
            path=path.name,
            num_samples=num_samples,
            num_bytes=num_bytes,
            checksum=checksum,
            groups=(num_samples,) if self._format == "parquet" else None,
        )
        with self._guard:
            self._pending.append((split, number, file))
            self._pending_bytes += num_bytes
            is_due = (
                self._pending_bytes >= _COMMIT_BYTES
                or time.monotonic() - self._last_commit >= _COMMIT_SECONDS
            )
        if is_due:
            self._commit(self._take_pending())

    def _take_pending(self) -> list[tuple[int, int, ChunkFile]]:
        with self._guard:
            taken, self._pending, self._pending_bytes = self._pending, [], 0
            self._last_commit = time.monotonic()
        return taken

    def _commit(self, chunks: list[tuple[int, int, ChunkFile]]) -> None:
        if not chunks:
            return
        for split, number, _ in chunks:
            path = self.path(split, number)
            with reported(path):
                sync_chunk(path)
        with reported(self._folders[0]):
            sync({self._folders[split] for split, _, _ in chunks})
        self._journal.append(
            *(
                {"chunk": number, "split": split, **file.describe()}
                for split, number, file in chunks
            )
        )
        for split, number, file in chunks:
            self.finished[split][number] = file

    def _take_over(self, entries: list[Entry]) -> None:
        """Accept the finished chunks that are still there, and remove everything else."""
        for entry in entries:
            if "chunk" not in entry or not 0 <= entry["split"] < len(self._folders):
                continue
            path = self.path(entry["split"], entry["chunk"])
            if not path.exists() or _size_of(path) != entry["bytes"]:
                continue
            self.finished[entry["split"]][entry["chunk"]] = ChunkFile.from_entry(entry)
        for folder, finished in zip(self._folders, self.finished, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            known = {file.path for file in finished.values()}
            for path in folder.iterdir():
                if path.name not in known and path not in self._folders:
                    remove(path)


def _size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))
