"""Rows gathered at random into memory, as the threads of a loader do; and chunks decoded."""

from __future__ import annotations

from itertools import cycle
from threading import Lock
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from feedline.feed.gathering import Workplace, arrays_in, bytes_for, chunking_of, gather
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Block
from feedline.runs.bench.timing import Done, repeated
from feedline.store import Store

# As large as the slabs of a loader.
_SLAB_BYTES, _SLAB_ROWS = 2**23, 2**15
# A few rows, because each may have to wait for a disk.
_COLD_ROWS = 64
_NUM_JOBS = 8


class Gathering:
    """Rows of some chunks, spread over the data, gathered in threads.

    Args:
        store: Where the samples are.
        most_bytes: The bytes of the samples to gather from.
    """

    def __init__(self, store: Store, most_bytes: int) -> None:
        self._store = store
        self._chunking = chunking_of(store)
        self._row_bytes = max(1, sum(column.sample_bytes for column in store.columns.values()))
        self._chunks, self._sizes = _spread(store, max(1, most_bytes // self._row_bytes))
        self._rng = np.random.default_rng(0)

    @property
    def chunks(self) -> list[int]:
        """The chunks."""
        return [int(chunk) for chunk in self._chunks]

    def warm_up(self, seconds: float) -> None:
        """Read the chunks until a time is over; only what was read is gathered later."""
        start = perf_counter()
        step = max(1, _SLAB_BYTES // self._row_bytes)
        for number, (chunk, size) in enumerate(zip(self._chunks, self._sizes, strict=True)):
            for first in range(0, int(size), step):
                end = min(first + step, int(size))
                self._store.read(int(chunk), np.arange(first, end))
                if perf_counter() - start >= seconds:
                    self._chunks = self._chunks[: number + 1]
                    self._sizes = np.append(self._sizes[:number], end)
                    return

    def cold_rows(self, num_threads: int) -> Done:
        """Return how long threads take for a few rows each."""
        return self._gathered(num_threads, 0.0, _COLD_ROWS)

    def rate(self, num_threads: int, seconds: float) -> Done:
        """Return how many rows threads gather into memory of their own."""
        most = max(1, min(_SLAB_ROWS, _SLAB_BYTES // self._row_bytes))
        return self._gathered(num_threads, seconds, most)

    def _gathered(self, num_threads: int, seconds: float, num_rows: int) -> Done:
        workplace, columns = Workplace(), self._store.columns
        memories = [np.zeros(bytes_for(columns, num_rows), np.uint8) for _ in range(num_threads)]
        count = _NUM_JOBS if seconds else 1
        jobs = [cycle([self._job(num_rows) for _ in range(count)]) for _ in range(num_threads)]

        def work(thread: int) -> int:
            arrays = arrays_in(memories[thread], columns, num_rows)
            gather(self._store, next(jobs[thread]), arrays, workplace)
            return num_rows

        return repeated(work, num_threads, seconds)

    def _job(self, num_rows: int) -> SlabJob:
        ends = np.cumsum(self._sizes)
        places = self._rng.integers(0, ends[-1], num_rows)
        chosen = np.searchsorted(ends, places, side="right")
        starts = self._store.edges[self._chunks] - (ends - self._sizes)
        indices = places + starts[chosen]
        bounds = np.array([0, num_rows])
        (job,) = cut(Block(first=0, indices=indices, bounds=bounds), self._chunking, 1)
        return job

    def decoding(self, num_threads: int, seconds: float) -> Done:
        """Return how many rows threads decode, reading whole chunks that are not kept."""
        done = Done(0, 0.0)
        while done.seconds < seconds:
            self._store.close()
            left, lock = list(range(len(self._chunks))), Lock()

            def work(_: int, left: list[int] = left, lock: Lock = lock) -> int:
                with lock:
                    number = left.pop() if left else None
                return 0 if number is None else self._read_whole(number)

            done += repeated(work, num_threads, seconds - done.seconds)
        return done

    def _read_whole(self, number: int) -> int:
        chunk, size = int(self._chunks[number]), int(self._sizes[number])
        step = max(1, _SLAB_BYTES // self._row_bytes)
        for first in range(0, size, step):
            self._store.read(chunk, np.arange(first, min(first + step, size)))
        return size


def _spread(store: Store, most_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunks spread over the data, and how many rows of each are used."""
    filled = np.flatnonzero(store.chunk_sizes)
    mean = store.num_samples / len(filled)
    count = int(np.clip(most_rows / mean, 1, len(filled)))
    chunks = filled[np.linspace(0, len(filled) - 1, count).astype(np.int64)]
    return chunks, np.minimum(store.chunk_sizes[chunks], most_rows)
