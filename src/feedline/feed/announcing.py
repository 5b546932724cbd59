"""Which chunks come next and which are needed no more, told to the store ahead of reading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any

from feedline.errors import FeedlineError
from feedline.feed.slab_jobs import SlabJob
from feedline.store import Store

# Jobs that touch more chunks than this are spread over the data: reading ahead does not help.
_MAX_CHUNKS = 64
# Blocks that are looked at beyond the one that is read next; of these, the jobs of the nearest are
# kept, which are made once so.
_MOST_BLOCKS, _MOST_KEPT = 64, 8

#: The logger of the library.
logger = logging.getLogger("feedline")

Make = Callable[[], list[SlabJob]]


def announcer_for(
    store: Store, walk: Callable[[], Iterator[Make]], window: int, *, has_threads: bool = False
) -> LocalAnnouncer | DistantAnnouncer:
    """Return what tells a store about the chunks of a pass.

    Args:
        store: Where the samples are.
        walk: Returns functions that make the jobs of the pass, block by block.
        window: The number of chunks in a window of the plan; 0 if it has none.
        has_threads: Blocks after the first are made in threads, ahead of their use.
    """
    if getattr(store, "num_ahead", 0):
        return DistantAnnouncer(store, walk(), window, has_threads=has_threads)
    return LocalAnnouncer(store)


def end_later(announcer: LocalAnnouncer | DistantAnnouncer) -> None:
    """Release all chunks in a thread of its own: the garbage collector must not wait for locks.

    Args:
        announcer: What announced them.
    """
    if isinstance(announcer, DistantAnnouncer):
        # At the end of the process nothing needs to be released.
        with suppress(RuntimeError):
            Thread(target=announcer.end, name="feedline-release", daemon=True).start()


class LocalAnnouncer:
    """Tells a store which chunks a block of jobs needs, if they were not needed recently.

    Args:
        store: Where the samples are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._announced: dict[int, None] = {}

    def around(self, blocks: Iterator[Make]) -> Iterator[Make]:
        """Yield functions that announce the chunks of a block, except the first's."""
        for number, make in enumerate(blocks):
            # Nothing may delay the first block.
            yield partial(self._made, make) if number else make

    def _made(self, make: Make) -> list[SlabJob]:
        block = make()
        if any(len(job.needed) > _MAX_CHUNKS for job in block):
            return block
        needed = dict.fromkeys(chunk for job in block for chunk in job.needed)
        if len(needed) <= _MAX_CHUNKS:
            recent = self._announced
            # Other threads read the dict meanwhile, so it is replaced, never changed.
            self._announced = dict.fromkeys([*recent, *needed][-2 * _MAX_CHUNKS :])
            for chunk in needed.keys() - recent.keys():
                # What is wrong with a chunk comes up at its batch.
                with suppress(FeedlineError, OSError):
                    self._store.prefetch(chunk)
        return block

    def finished(self, job: SlabJob) -> None:
        """Do nothing: the kernel decides what of a local file it keeps."""


class DistantAnnouncer:
    """Announces chunks of a distant store in the order of their first use, and releases them.

    It looks far enough ahead to hide the time that fetching takes: one window, and the number of
    chunks that the store asks for, within the bytes that it allows. A chunk is released after its
    last use among the batches that were looked at.

    Args:
        store: Where the samples are; it has `num_ahead`, `bytes_ahead` and `chunk_bytes`.
        walk: Functions that make the jobs of the pass, block by block.
        window: The number of chunks in a window of the plan.
        has_threads: Blocks after the first are made in threads. So the first does not wait until
            this has looked ahead: the second does.
    """

    def __init__(
        self, store: Any, walk: Iterator[Make], window: int, *, has_threads: bool = False
    ) -> None:
        self._store = store
        self._walk = enumerate(walk)
        self._window = window
        self._has_threads = has_threads
        self._lock, self._walking = Lock(), Lock()
        self._num_walked = self._num_made = 0
        # The jobs of blocks that were looked at and not asked for yet.
        self._kept: dict[int, list[SlabJob]] = {}
        self._is_at_end = self._has_ended = False
        # Chunks by number; jobs by the number of their first batch.
        self._first_use: dict[int, int] = {}
        self._last_use: dict[int, int] = {}
        self._pending: dict[int, None] = {}
        self._announced: dict[int, int] = {}
        self._now = -1
        self._meters = store.meters
        if window:
            store.check_window(window)

    def around(self, blocks: Iterator[Make]) -> Iterator[Make]:
        """Yield functions that make a block, and announce its chunks and those after it."""
        for number, make in enumerate(blocks):
            yield partial(self._made, number, make)

    def _made(self, number: int, make: Make) -> list[SlabJob]:
        with self._lock:
            self._num_made = max(self._num_made, number + 1)
            kept = self._kept.pop(number, None)
        block = make() if kept is None else kept
        with self._walking:
            while self._num_walked <= number and not self._is_at_end:
                self._look_at_next(block if self._num_walked == number else None)
            self._announce()
            if number or not self._has_threads:
                while self._wants_more(number):
                    self._look_at_next()
                self._announce()
        return block

    def finished(self, job: SlabJob) -> None:
        """Release the chunks that no job after this one is known to need; announce others."""
        # A thread that copies samples waits for no other that does this: the next one does it then.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if job.block.first <= self._now:
                return
            self._now = job.block.first
            self._release([c for c in self._announced if self._last_use[c] < self._now])
        finally:
            self._lock.release()
        self._announce(wait=False)

    def end(self) -> None:
        """Release all chunks, and log what was fetched meanwhile."""
        with self._lock:
            self._has_ended = True
            self._kept.clear()
            self._release(list(self._announced))
        # Cheap, and only where somebody listens.
        if logger.isEnabledFor(logging.INFO):
            logger.info("remote data: %s", (self._store.meters - self._meters).in_words())

    def _look_at_next(self, made: list[SlabJob] | None = None) -> None:
        """Note which chunks the jobs of the next block need."""
        number, make = next(self._walk, (0, None))
        if make is None:
            self._is_at_end = True
            return
        jobs = make() if made is None else made
        self._num_walked = number + 1
        with self._lock:
            if made is None and number >= self._num_made and len(self._kept) < _MOST_KEPT:
                self._kept[number] = jobs
            for job in jobs:
                self._note(job.block.first, job.needed)

    def _note(self, first_batch: int, needed: Iterable[int]) -> None:
        for chunk in needed:
            self._last_use[chunk] = first_batch
            if chunk not in self._announced and chunk not in self._pending:
                self._pending[chunk] = None
                self._first_use[chunk] = first_batch

    def _wants_more(self, number: int) -> bool:
        if self._is_at_end or self._num_walked - number > _MOST_BLOCKS:
            return False
        with self._lock:
            return len(self._pending) + self._num_unused() < self._depth

    @property
    def _depth(self) -> int:
        return self._window + int(self._store.num_ahead)

    def _num_unused(self) -> int:
        return sum(self._first_use[chunk] > self._now for chunk in self._announced)

    def _announce(self, *, wait: bool = True) -> None:
        if not self._pending:
            return
        store, depth = self._store, self._depth
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if self._has_ended:
                return
            room = store.bytes_ahead - sum(self._announced.values())
            num_unused = self._num_unused()
            for chunk in list(self._pending):
                if self._last_use[chunk] < self._now:
                    # It was read without having been announced.
                    del self._pending[chunk]
                    continue
                num_bytes = store.chunk_bytes(chunk)
                is_later = self._first_use[chunk] > self._now
                if num_bytes > room or (is_later and num_unused >= depth):
                    return
                del self._pending[chunk]
                self._announced[chunk] = num_bytes
                room -= num_bytes
                num_unused += is_later
                # What is wrong with a chunk comes up at its batch.
                with suppress(FeedlineError, OSError):
                    store.prefetch(chunk)
        finally:
            self._lock.release()

    def _release(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            del self._announced[chunk]
            with suppress(FeedlineError, OSError):
                self._store.release(chunk)
