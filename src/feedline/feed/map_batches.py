"""Batches of a user's map-style dataset as numpy arrays, fetched ahead by threads or processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from threading import Thread
from time import perf_counter
from typing import Any

from feedline.errors import InvalidValueError, WorkerError
from feedline.feed.called import called
from feedline.feed.passes import Pass
from feedline.feed.stacking import stack_samples
from feedline.words import several

#: Enough that the next batch is there while a slow one is fetched.
_AHEAD_PER_READER = 2


def num_samples_of(dataset: Any) -> int:
    """Return the number of samples of a map-style dataset, or raise an error that says what to do.

    Examples:
        >>> num_samples_of([3, 1, 2])
        3
    """
    kind = type(dataset)
    has_numbers = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
    # A mapping of numbers to samples is a dataset; one of columns is not.
    is_columns = isinstance(dataset, dict) and len(dataset) > 0 and 0 not in dataset
    is_text = isinstance(dataset, str | bytes | os.PathLike)
    if has_numbers and hasattr(kind, "__len__") and not is_columns and not is_text:
        return len(dataset)
    remedy = "give it __len__ and __getitem__"
    if is_text:
        remedy = f"open it with feedline.open({dataset!r:.80})"
    elif is_columns:
        remedy = "pack the columns with feedline.pack, and open them with feedline.open"
    raise InvalidValueError(
        f"dataset={dataset!r:.80} must be a store, which feedline.open returns, or a map-style "
        f"dataset, with __len__ and __getitem__; {remedy}"
    )


def check_length(dataset: Any, num_samples: int) -> None:
    """Raise if a dataset has another length than when the order of its samples was made."""
    if len(dataset) != num_samples:
        raise InvalidValueError(
            f"dataset={type(dataset).__name__} has {several(len(dataset), 'sample')}, but had "
            f"{num_samples} when the loader was made, which its order is for; make a new loader"
        )


@dataclass(frozen=True)
class Fetching:
    """How a batch is made of samples of a dataset.

    Args:
        dataset: The dataset. If it has `__getitems__`, a whole batch is fetched at once; if that
            returns one thing instead of a list, this is taken as the batch.
        collate_fn: Makes a batch of a list of samples; by default they are stacked.

    Examples:
        >>> Fetching([{"x": 3}, {"x": 1}, {"x": 2}])([2, 0])
        {'x': array([2, 3])}
    """

    dataset: Any
    collate_fn: Callable[[Any], Any] | None = None

    def __call__(self, indices: Sequence[int]) -> Any:
        """Return the batch of these samples."""
        return called("the dataset or collate_fn", self._made, indices)

    def _made(self, indices: Sequence[int]) -> Any:
        if hasattr(self.dataset, "__getitems__"):
            found = self.dataset.__getitems__(indices)
        else:
            found = [self.dataset[index] for index in indices]
        if self.collate_fn is not None:
            return self.collate_fn(found)
        if not isinstance(found, list):
            return found
        if len(found) != len(indices):
            raise InvalidValueError(
                f"__getitems__ of {type(self.dataset).__name__} returned "
                f"{several(len(found), 'sample')} for {several(len(indices), 'index', 'indices')}; "
                "return one for each"
            )
        return stack_samples(found, indices)


class Readers:
    """The threads or processes that fetch batches; processes live from one pass to the next.

    Args:
        fetching: How a batch is made.
        num_threads: The number of threads.
        num_workers: The number of processes, instead of threads. They are spawned and not forked,
            because frameworks with threads of their own do not survive a fork.
    """

    def __init__(self, fetching: Fetching, *, num_threads: int = 0, num_workers: int = 0) -> None:
        self.fetching = fetching
        self.num_threads = num_threads
        self.num_workers = num_workers
        self._processes: ProcessPoolExecutor | None = None

    def __repr__(self) -> str:
        name = type(self.fetching.dataset).__name__
        if self.num_workers:
            return f"<Readers of {name}: {several(self.num_workers, 'worker')}>"
        return f"<Readers of {name}: {several(self.num_threads, 'thread')}>"

    def batches(self, running: Pass) -> MapBatches:
        """Return the batches of a pass."""
        if self.num_workers:
            pool, submit = self._started(), _fetch_in_worker
            return MapBatches(running, pool, submit, _AHEAD_PER_READER * self.num_workers, self)
        if not self.num_threads:
            return MapBatches(running, None, self.fetching, 0, self)
        threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="feedline-reader")
        num_ahead = _AHEAD_PER_READER * self.num_threads
        batches = MapBatches(running, threads, self.fetching, num_ahead, self)
        weakref.finalize(batches, threads.shutdown, wait=False, cancel_futures=True).atexit = False
        return batches

    def _started(self) -> ProcessPoolExecutor:
        if self._processes is None:
            self._processes = ProcessPoolExecutor(
                self.num_workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin_worker,
                initargs=(self._pickled(),),
            )
        return self._processes

    def _pickled(self) -> bytes:
        try:
            return pickle.dumps(self.fetching)
        except Exception as error:
            raise InvalidValueError(
                f"dataset={type(self.fetching.dataset).__name__} or collate_fn cannot be sent to "
                f"a worker ({error}); define them at the top of a module, or use num_threads"
            ) from error

    def close(self) -> None:
        """End the processes."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.shutdown(wait=True, cancel_futures=True)

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts processes of its own.
        return {**self.__dict__, "_processes": None}


class MapBatches(Iterator[Any]):
    """The batches of a pass, in order. After an error, the next one follows.

    Args:
        running: The pass; it is read, and not moved.
        pool: Where batches are fetched; None for the caller's own thread.
        fetch: Is called there with the indices of a batch.
        num_ahead: The number of batches that are being fetched or wait.
        readers: Who to tell when a worker was killed.
    """

    def __init__(
        self,
        running: Pass,
        pool: Executor | None,
        fetch: Callable[[Sequence[int]], Any],
        num_ahead: int,
        readers: Readers,
    ) -> None:
        self._running = running
        self._pool = pool
        self._fetch = fetch
        self._num_ahead = num_ahead
        self._readers = readers
        self._coming: deque[Future[Any]] = deque()
        self._num_asked = self._num_taken = 0
        weakref.finalize(self, _cancel, self._coming).atexit = False

    def __next__(self) -> Any:
        number = self._num_taken
        if number >= self._running.num_batches:
            raise StopIteration
        start = perf_counter()
        if self._pool is None:
            self._num_taken += 1
            batch = self._fetch(self._indices(number))
        else:
            self._ask()
            try:
                batch = self._result()
            except Exception:
                self._take()
                raise
            self._take()
        self._running.waits.add_reading(start)
        return batch

    def _take(self) -> None:
        self._coming.popleft()
        self._num_taken += 1

    def _ask(self) -> None:
        assert self._pool is not None
        while len(self._coming) < self._num_ahead and self._num_asked < self._running.num_batches:
            try:
                self._coming.append(self._pool.submit(self._fetch, self._indices(self._num_asked)))
            except BrokenProcessPool as error:
                raise self._killed() from error
            self._num_asked += 1

    def _result(self) -> Any:
        try:
            # Not in a variable: with it, an error would hold this pass and its threads.
            return self._coming[0].result()
        except BrokenProcessPool as error:
            raise self._killed() from error

    def _killed(self) -> WorkerError:
        self._readers.close()
        return WorkerError(
            "a worker was killed, perhaps for memory; the state is still at the last delivered "
            "batch; use fewer workers or smaller batches, and begin a new pass"
        )

    def _indices(self, number: int) -> list[int]:
        indices: list[int] = self._running.planned(number).indices.tolist()
        return indices

    def close(self) -> None:
        """Ask for nothing more."""
        self._num_taken = self._running.num_batches
        _cancel(self._coming)


def _cancel(coming: deque[Future[Any]]) -> None:
    while coming:
        coming.pop().cancel()


_pickled = b""
_fetching: Fetching | None = None


def _begin_worker(pickled: bytes) -> None:
    """Prepare a worker: it leaves Ctrl-C to its parent, and ends with it."""
    global _pickled
    _pickled = pickled
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    # A parent that was killed cannot end its workers.
    parent.join()
    os._exit(1)


def _fetch_in_worker(indices: Sequence[int]) -> Any:
    global _fetching
    if _fetching is None:
        # Here, where an error is told to the parent.
        found: Fetching = pickle.loads(_pickled)
        _fetching = found
    return _fetching(indices)
