"""Cuts rows into chunks, writes them in threads, and records each in the journal once it is on
disk."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from feedline.errors import PackError
from feedline.packing.chunk_files import Filling, Finished, write_whole_chunk
from feedline.packing.formats import chunk_name
from feedline.packing.rows import Rows, part_of_rows, row_sizes
from feedline.packing.settings import Cut
from feedline.packing.workshop import Entry, Journal
from feedline.store.columns import Column
from feedline.store.writing import reported, sync, sync_chunk

# Many small chunks share the cost of waiting for the disk.
_COMMIT_BYTES = 2**26
_COMMIT_SECONDS = 0.25


class ChunkWriter:
    """Cuts the rows of one or several folders into chunks, and writes those that are missing.

    Args:
        folders: The folder of each split.
        format_: The format of the chunks.
        columns: The columns of the rows.
        cut: Where chunks end.
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
        cut: Cut,
        journal: Journal,
        entries: list[Entry],
        num_threads: int,
        num_waiting: int,
    ) -> None:
        self._folders = folders
        self._format = format_
        self._columns = columns
        self._cut = cut
        self._type_names = {column.name: column.type_name for column in columns}
        self._journal = journal
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="feedline-pack")
        self._open: list[Filling | None] = [None] * len(folders)
        # Where each chunk of a folder begins, up to the one that is being filled.
        self._edges: list[list[int]] = [[0] for _ in folders]
        self._room = threading.BoundedSemaphore(num_waiting)
        self._error: BaseException | None = None
        self._guard = threading.Lock()
        self._pending: list[Entry] = []
        self._last_commit = time.monotonic()
        #: The number of rows that each folder has got.
        self.positions = [0] * len(folders)
        self.finished = Finished.taken_over(folders, format_, entries)
        self.num_resumed = len(self.finished)

    def go_to(self, positions: list[int]) -> None:
        """Begin behind these rows of each folder, which are in finished chunks."""
        for split, position in enumerate(positions):
            self.skip(split, position)

    def add(self, split: int, rows: Rows) -> None:
        """Take the next rows of a folder."""
        # A shuffle has its keys beside the columns.
        sizes = row_sizes({column.name: rows[column.name] for column in self._columns})
        done = 0
        while done < len(sizes):
            number, offset = self._place(split)
            finished = self.finished.files[split].get(number)
            if finished is not None:
                count = min(len(sizes) - done, finished.num_samples - offset)
            else:
                filling = self._open[split] or Filling(self._columns, self._cut.num_samples)
                self._open[split] = filling
                assert filling.num_rows == offset, "a chunk that is not finished is filled whole"
                count = self._cut.num_that_fit(sizes[done:], offset, filling.num_bytes)
                num_bytes = int(sizes[done : done + count].sum())
                self._cut.check_bytes(filling.num_bytes + num_bytes)
                filling.add(part_of_rows(rows, done, done + count), count, num_bytes)
            done += count
            self.positions[split] += count
            is_full = offset + count == (
                finished.num_samples if finished else self._cut.num_samples
            )
            # Where bytes decide, a chunk is full when the next row does not fit.
            if is_full or (finished is None and done < len(sizes)):
                self._hand_over(split)

    def skip(self, split: int, num_rows: int) -> None:
        """Skip rows of finished chunks."""
        assert self._open[split] is None
        edges, finished = self._edges[split], self.finished.files[split]
        self.positions[split] += num_rows
        while (file := finished.get(len(edges) - 1)) is not None:
            if edges[-1] + file.num_samples > self.positions[split]:
                break
            edges.append(edges[-1] + file.num_samples)

    def end(self, split: int) -> None:
        """Write the last chunk of a folder, which may be short."""
        self._hand_over(split)

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
        edges, finished = self._edges[split], self.finished.files[split]
        number = bisect_right(edges, start) - 1
        end = edges[number]
        while end < stop:
            file = finished.get(number)
            if file is None:
                return False
            end += file.num_samples
            number += 1
        return True

    def _place(self, split: int) -> tuple[int, int]:
        """Return the number of the chunk that the next row goes to, and its place there."""
        edges = self._edges[split]
        return len(edges) - 1, self.positions[split] - edges[-1]

    def _path(self, split: int, number: int) -> Path:
        return self._folders[split] / chunk_name(self._format, number)

    def _hand_over(self, split: int) -> None:
        """Write the chunk that is being filled, and begin the next one."""
        number, size = self._place(split)
        first = self._edges[split][-1]
        if size:
            self._edges[split].append(self.positions[split])
        filling, self._open[split] = self._open[split], None
        if filling is None:
            return
        self._room.acquire()
        if self._error is not None:
            raise self._error
        writing = self._pool.submit(self._write, split, number, first, filling)
        writing.add_done_callback(self._make_room)

    def _make_room(self, writing: Future[None]) -> None:
        if not writing.cancelled():
            # The first error is the cause; later ones follow from it.
            self._error = self._error or writing.exception()
        self._room.release()

    def _write(self, split: int, number: int, first: int, filling: Filling) -> None:
        path = self._path(split, number)
        written = write_whole_chunk(self._format, path, filling.rows(), first, self._type_names)
        with self._guard:
            self._pending.append({"chunk": number, "split": split, **written})
            pending_bytes = sum(entry["bytes"] for entry in self._pending)
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
        paths = [self._path(entry["split"], entry["chunk"]) for entry in chunks]
        for path in paths:
            with reported(path):
                sync_chunk(path)
        with reported(self._folders[0]):
            sync({path.parent for path in paths})
        self._journal.append(*chunks)
        for entry in chunks:
            self.finished.add(entry)
