"""Working ahead in threads: jobs made in blocks, and their results in order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class MadeAhead(Iterator[Job]):
    """Jobs that are made in blocks: the next blocks are made in threads while one is used.

    Args:
        blocks: Functions that make the blocks, each independent of the others.
        num_threads: The number of threads; with 0, a block is made when it is needed.
    """

    def __init__(self, blocks: Iterator[Callable[[], list[Job]]], *, num_threads: int) -> None:
        self._blocks = blocks
        self._num_threads = num_threads
        self._ready: deque[Job] = deque()
        self._coming: deque[Future[list[Job]]] = deque()
        self._making: Callable[[], list[Job]] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._has_begun = False

    @property
    def is_ready(self) -> bool:
        """Whether the next job need not be waited for."""
        return bool(self._ready)

    def __next__(self) -> Job:
        if self._has_begun:
            self._submit()
        while not self._ready:
            if self._coming:
                block = self._coming[0].result()
                self._coming.popleft()
            else:
                # The first block, which is small, is made at once. An interrupt, or an error, must
                # not pass over a block.
                self._making = self._making or next(self._blocks, None)
                if self._making is None:
                    raise StopIteration
                block = self._making()
                self._making = None
            self._ready.extend(block)
            self._has_begun = True
        return self._ready.popleft()

    def _submit(self) -> None:
        while len(self._coming) < self._num_threads:
            make = next(self._blocks, None)
            if make is None:
                return
            if self._threads is None:
                self._threads = _threads_of(self, self._num_threads, "feedline-reader-order")
            self._coming.append(self._threads.submit(make))


class ReadAhead(Generic[Job, Result]):
    """Results of `work` for each job, in order; up to `num_ahead` are running or waiting.

    The caller runs the first job at once, so that nothing delays it. If there is one thread only,
    the caller runs jobs that this has not begun instead of waiting; several threads would run out
    of jobs meanwhile.

    `split` cuts a job that fails into parts, which run when they are asked for: so an error appears
    at the part that caused it, after all parts before it.
    """

    def __init__(
        self,
        jobs: Iterator[Job],
        work: Callable[[Job], Result],
        split: Callable[[Job], list[Job]],
        *,
        num_threads: int,
        num_ahead: int,
    ) -> None:
        self._jobs = jobs
        self._work = work
        self._split = split
        self._num_ahead = num_ahead if num_threads else 0
        self._waiting: deque[tuple[Job, Future[Result] | None]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._num_threads = num_threads
        self._failed: BaseException | None = None
        self._has_begun = False
        #: The latest job that was taken on.
        self.latest: Job | None = None

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        if self._failed is not None:
            raise self._failed
        self._submit()
        is_first, self._has_begun = not self._has_begun, True
        if not self._waiting:
            self.close()
            raise StopIteration
        self._help()
        # A job is taken off when it is done: an interrupt must not pass over it.
        job, future = self._waiting[0]
        try:
            result = self._work(job) if future is None else future.result()
        except Exception as error:
            self._waiting.popleft()
            parts = self._split(job)
            if len(parts) < 2:
                self.close()
                self._failed = error
                raise
            self._waiting.extendleft((part, None) for part in reversed(parts))
            return next(self)
        self._waiting.popleft()
        if self._num_ahead:
            # The first result does not wait for jobs that are still being made.
            self._submit(only_ready=is_first)
        return result

    def _help(self) -> None:
        """Run jobs that the only thread has not begun until the next result is ready."""
        if self._num_threads > 1:
            return
        for number, (job, future) in enumerate(self._waiting):
            head = self._waiting[0][1]
            if head is None or head.done():
                return
            if future is not None and future.cancel():
                # An interrupt leaves the job to be done later.
                self._waiting[number] = (job, None)
                done: Future[Result] = Future()
                try:
                    done.set_result(self._work(job))
                except Exception as error:
                    done.set_exception(error)
                self._waiting[number] = (job, done)

    def finish(self) -> None:
        """Take on no more jobs; the results of the others still come."""
        self._jobs = iter(())

    def close(self, *, wait: bool = False) -> None:
        """End the threads; running jobs finish in the background, or before this returns."""
        self._jobs = iter(())
        for _, future in self._waiting:
            if future is not None:
                future.cancel()
        self._waiting.clear()
        if self._threads is not None:
            # Kept, so that a later call can wait.
            self._threads.shutdown(wait=wait, cancel_futures=True)

    def _submit(self, *, only_ready: bool = False) -> None:
        num_wanted = max(self._num_ahead, 1) if self._has_begun else 1
        while len(self._waiting) < num_wanted:
            if only_ready and not getattr(self._jobs, "is_ready", True):
                return
            job = next(self._jobs, None)
            if job is None:
                return
            self.latest = job
            self._waiting.append((job, self._start(job)))

    def _start(self, job: Job) -> Future[Result] | None:
        if not self._num_ahead or not self._has_begun:
            return None
        if self._threads is None:
            self._threads = _threads_of(self, self._num_threads, "feedline-reader")
        return self._threads.submit(self._work, job)


def _threads_of(owner: object, num_threads: int, name: str) -> ThreadPoolExecutor:
    """Return threads that end when their owner is dropped."""
    threads = ThreadPoolExecutor(num_threads, name)
    # Not `__del__`: that may come when the interpreter has begun to take itself apart.
    weakref.finalize(owner, threads.shutdown, wait=False, cancel_futures=True)
    return threads
