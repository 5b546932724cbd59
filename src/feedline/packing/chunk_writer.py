"""Cuts rows into chunks, writes them in threads, and records each in the journal once it is on
disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.formats import chunk_name, write_chunk
from feedline.packing.rows import Rows, part_of_rows
from feedline.packing.workshop import Entry, Journal
from feedline.store.checksums import checksum_files
from feedline.store.columns import Column
from feedline.store.manifest import ChunkFile
from feedline.store.paths import files_of
from feedline.store.writing import remove, reported, sync, sync_chunk

# Many small chunks share the cost of waiting for the disk.
_COMMIT_BYTES = 2**26
_COMMIT_SECONDS = 0.25


class ChunkWriter:
    """Cuts the rows of one or several folders into chunks, and writes those that are missing.

    Args:
        folders: The folder of each split.
        format_: The format of the chunks.
        columns: The columns of the rows.
        chunk_samples: The number of samples in every chunk but the last.
        journal: The record of finished chunks.
        entries: The journal entries of an interrupted run.
        num_threads: The number of chunks that are written at once.
        num_waiting: The number of full chunks that may be in memory.
    """

    def __init__(
        self,
        *,
        folders: list[Path],
        format_: str,
        columns: list[Column],
        chunk_samples: int,
        journal: Journal,
        entries: list[Entry],
        num_threads: int,
        num_waiting: int,
    ) -> None:
        self._folders = folders
        self._format = format_
        self._columns = columns
        self._chunk_samples = chunk_samples
        self._journal = journal
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="feedline-pack")
        self._open: list[dict[str, NDArray[Any]] | None] = [None] * len(folders)
        self._room = threading.BoundedSemaphore(num_waiting)
        self._error: BaseException | None = None
        self._guard = threading.Lock()
        self._pending: list[tuple[int, int, ChunkFile]] = []
        self._last_commit = time.monotonic()
        #: The number of rows that each folder has got.
        self.positions = [0] * len(folders)
        self.finished: list[dict[int, ChunkFile]] = [{} for _ in folders]
        with reported(folders[0]):
            self._take_over(entries)
        self.num_resumed = sum(len(chunks) for chunks in self.finished)

    def add(self, split: int, rows: Rows) -> None:
        """Take the next rows of a folder."""
        num_rows = len(next(iter(rows.values())))
        done = 0
        while done < num_rows:
            number, offset = divmod(self.positions[split], self._chunk_samples)
            count = min(num_rows - done, self._chunk_samples - offset)
            if number not in self.finished[split]:
                self._copy(split, part_of_rows(rows, done, done + count), offset)
            done += count
            self.positions[split] += count
            if offset + count == self._chunk_samples:
                self._hand_over(split, number)

    def skip(self, split: int, num_rows: int) -> None:
        """Skip rows of finished chunks."""
        assert self._open[split] is None
        self.positions[split] += num_rows

    def end(self, split: int) -> None:
        """Write the last chunk of a folder, which may be short."""
        self._hand_over(split, self.positions[split] // self._chunk_samples)

    def finish(self) -> None:
        """Wait until all chunks are written and in the journal, or raise their error."""
        self._pool.shutdown(wait=True)
        if self._error is not None:
            raise self._error
        self._commit()

    def abandon(self) -> None:
        """Drop what is not written, and keep what is."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with suppress(PackError):
            self._commit()

    def is_finished(self, split: int, start: int, stop: int) -> bool:
        """Whether all these rows of a folder are in finished chunks."""
        numbers = range(start // self._chunk_samples, -(-stop // self._chunk_samples))
        return all(number in self.finished[split] for number in numbers)

    def _path(self, split: int, number: int) -> Path:
        return self._folders[split] / chunk_name(self._format, number)

    def _copy(self, split: int, rows: Rows, offset: int) -> None:
        chunk = self._open[split]
        if chunk is None:
            assert offset == 0, "the rows of an unfinished chunk come from its first one on"
            size = self._chunk_samples
            chunk = {c.name: np.empty((size, *c.shape), c.dtype) for c in self._columns}
            self._open[split] = chunk
        for name, values in chunk.items():
            values[offset : offset + len(rows[name])] = rows[name]

    def _hand_over(self, split: int, number: int) -> None:
        chunk, self._open[split] = self._open[split], None
        if chunk is None:
            return
        size = self.positions[split] - number * self._chunk_samples
        arrays = {name: values[:size] for name, values in chunk.items()}
        self._room.acquire()
        if self._error is not None:
            raise self._error
        writing = self._pool.submit(self._write, split, number, arrays)
        writing.add_done_callback(self._make_room)

    def _make_room(self, writing: Future[None]) -> None:
        if not writing.cancelled():
            # The first error is the cause; later ones follow from it.
            self._error = self._error or writing.exception()
        self._room.release()

    def _write(self, split: int, number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        path = self._path(split, number)
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
            pending_bytes = sum(chunk.num_bytes or 0 for _, _, chunk in self._pending)
            is_late = time.monotonic() - self._last_commit >= _COMMIT_SECONDS
        if pending_bytes >= _COMMIT_BYTES or is_late:
            self._commit()

    def _commit(self) -> None:
        """Record written chunks in the journal, once they are on disk."""
        with self._guard:
            chunks, self._pending = self._pending, []
            self._last_commit = time.monotonic()
        if not chunks:
            return
        for split, number, _ in chunks:
            path = self._path(split, number)
            with reported(path):
                sync_chunk(path)
        with reported(self._folders[0]):
            sync({self._folders[split] for split, _, _ in chunks})
        entries = [{"chunk": n, "split": split, **file.describe()} for split, n, file in chunks]
        self._journal.append(*entries)
        for split, number, file in chunks:
            self.finished[split][number] = file

    def _take_over(self, entries: list[Entry]) -> None:
        """Keep the finished chunks that still exist, and remove everything else."""
        for entry in entries:
            if "chunk" not in entry or not 0 <= entry["split"] < len(self._folders):
                continue
            path = self._path(entry["split"], entry["chunk"])
            size = sum(file.stat().st_size for file in files_of(path)) if path.exists() else -1
            if size == entry["bytes"]:
                self.finished[entry["split"]][entry["chunk"]] = ChunkFile.from_entry(entry)
        for folder, finished in zip(self._folders, self.finished, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            known = {file.path for file in finished.values()}
            for path in folder.iterdir():
                if path.name not in known and path not in self._folders:
                    remove(path)
