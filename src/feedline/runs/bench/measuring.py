"""Measures storage, gather, link and batches of one store, for a few seconds each."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from feedline.errors import InvalidValueError, check_integer, check_positive
from feedline.feed import DataLoader, PlannedLoader, Reading
from feedline.feed.reading import auto_threads
from feedline.runs.bench import figures as named
from feedline.runs.bench.figures import DataFigures, Figure
from feedline.runs.bench.gathers import Gathering
from feedline.runs.bench.page_cache import cached_share, drop_from_cache
from feedline.runs.bench.storage import Storage, data_files, files_of_chunks, sum_of_sizes
from feedline.runs.bench.timing import Done
from feedline.store import FolderStore, Store, TokenStore
from feedline.store.formats import is_grouped
from feedline.store.progress import Progress
from feedline.store.shards import ShardStore
from feedline.words import several

_MOST_SECONDS = 60.0
_MOST_BYTES = 2**30


class BenchDevice(Protocol):
    """A device that batches are delivered on; the rooms of frameworks implement it."""

    @property
    def name(self) -> str:
        """The name of the device."""

    def copied(self, seconds: float) -> Done:
        """Return the bytes of pinned memory that are copied in a loop."""

    def loader(self, store: Store, batch_size: int, **options: Any) -> PlannedLoader:
        """Return a loader whose batches are on the device."""

    def wait(self) -> None:
        """Wait until everything has arrived."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is measured, and for how long.

    Args:
        batch_size: The number of samples in a batch.
        seconds: The time of each measurement.
        num_threads: The number of threads of a loader, or `"auto"`.
        window: The window of the loader in windows.
        memory_budget: The `memory_budget` of the loaders.
        row_share: The share of a sample's bytes that is read, if some columns are left out.
    """

    batch_size: int = 256
    seconds: float = 2.0
    num_threads: int | str = "auto"
    window: int | str = "8 chunks"
    memory_budget: int | None = None
    row_share: float = 1.0

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, 1)
        if check_positive("seconds", self.seconds) > _MOST_SECONDS:
            raise InvalidValueError(
                f"seconds={self.seconds:g} must be in (0, {_MOST_SECONDS:g}]; measure for less time"
            )
        Reading(num_threads=self.num_threads, memory_budget=self.memory_budget)


def measure_data(
    store: Store,
    path: str | os.PathLike[str],
    options: BenchOptions,
    *,
    device: BenchDevice | None = None,
    progress: Progress | None = None,
) -> DataFigures:
    """Return how fast each stage is on the way from the files of a store to a training loop.

    Some files are dropped from the page cache, where that is possible, and read again.

    Args:
        store: The samples.
        path: Where they lie.
        options: What is measured.
        device: The device, if batches go to one.
        progress: Is told of each measurement.
    """
    row_bytes = sum(column.sample_bytes for column in store.columns.values())
    if not store.num_samples or not row_bytes:
        raise InvalidValueError(
            f"{path}: has {several(store.num_samples, 'sample')} of {several(row_bytes, 'byte')}, "
            "and must have at least 1 of each; pack again with samples"
        )
    return _Measuring(store, Path(path), options, device, progress or Progress()).run(row_bytes)


@dataclass
class _Measuring:
    store: Store
    path: Path
    options: BenchOptions
    device: BenchDevice | None
    progress: Progress
    found: list[Figure] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def run(self, row_bytes: int) -> DataFigures:
        self.row_bytes = row_bytes
        self.num_threads = Reading(num_threads=self.options.num_threads).count
        self.auto_threads = auto_threads()
        loaders = {
            named.SHUFFLE: self._loader(None),
            named.WINDOWS: self._loader(self.options.window),
        }
        # What is wrong, as a budget below one batch, is told before anything is measured.
        for loader in loaders.values():
            with closing(loader), closing(_epochs(loader)) as batches:
                next(batches)
        meters: Any = getattr(self.store, "meters", None)
        is_here = meters is None
        files = data_files(self.store, self.path) if is_here else []
        self.file_bytes = sum_of_sizes(files) if is_here else _remote_bytes(self.store)
        memory = free_memory()
        most = _MOST_BYTES if memory is None else min(_MOST_BYTES, memory // 8)
        gathering = Gathering(self.store, most)
        # Others stay in the page cache, if they are there.
        some = files_of_chunks(self.store, gathering.chunks, files)
        if is_here:
            self._measure_storage(Storage(some, max(1, self.num_threads), 2 * most))
        else:
            self.missing[named.STORAGE] = "the data is at a URL; its files come through a cache"
        self._measure_gather(gathering, some)
        if self.device is not None:
            self.progress.begin("link", 1, unit="figures")
            self._add_bytes(named.LINK, named.COPIES, self.device.copied(self.options.seconds))
        share = cached_share(files) if is_here else None
        self.progress.begin("batches", len(loaders), unit="figures")
        for name, loader in loaders.items():
            done = _batches(loader, self.options.seconds, self.device)
            self._add_rows(named.BATCHES, name, done, self.num_threads)
        fetched = None if is_here else (self.store_meters() - meters).in_words()
        self.store.close()
        return DataFigures(
            num_samples=self.store.num_samples,
            num_chunks=len(self.store.chunk_sizes),
            row_bytes=row_bytes,
            file_bytes=self.file_bytes,
            memory_bytes=memory,
            cached_share=share,
            is_decoded=is_decoded(self.store),
            batch_size=self.options.batch_size,
            num_threads=self.num_threads,
            auto_threads=self.auto_threads,
            window=_window_shown(self.options.window),
            device=None if self.device is None else self.device.name,
            figures=tuple(self.found),
            missing=self.missing,
            fetched=fetched,
        )

    def store_meters(self) -> Any:
        """Return what was fetched so far of data at a URL."""
        store: Any = self.store
        return store.meters

    def _loader(self, window: int | str | None) -> PlannedLoader:
        options: dict[str, Any] = {
            "shuffle": True,
            "window": window,
            "num_threads": self.options.num_threads,
            "memory_budget": self.options.memory_budget,
            # One process alone, whatever started it.
            "num_replicas": 1,
            "rank": 0,
        }
        make = DataLoader if self.device is None else self.device.loader
        return make(self.store, self.options.batch_size, **options)

    def _measure_storage(self, storage: Storage) -> None:
        seconds = self.options.seconds
        self.progress.begin("storage", 3, unit="figures")
        self._let_go()
        self._add_read(named.COLD, storage.cold(seconds))
        self._add_read(named.WARM, storage.warm(seconds))
        self._add_read(named.DIRECT, storage.direct(seconds))

    def _measure_gather(self, gathering: Gathering, files: list[Path]) -> None:
        seconds, most_threads = self.options.seconds, max(1, self.num_threads)
        counts = thread_counts(max(most_threads, self.auto_threads), most_threads)
        self.progress.begin("gather", len(counts) + 1 + is_decoded(self.store), unit="figures")
        if files:
            self._measure_cold_rows(gathering, files)
        gathering.warm_up(2 * seconds)
        if is_decoded(self.store):
            done = gathering.decoding(most_threads, seconds)
            self._add_rows(named.DECODE, "whole chunks", done)
        for count in counts:
            name = f"{count} thread" + "s" * (count > 1)
            self._add_rows(named.GATHER, name, gathering.rate(count, seconds / 2), count)

    def _measure_cold_rows(self, gathering: Gathering, files: list[Path]) -> None:
        done, start = Done(0, 0.0), perf_counter()
        while not done.amount or perf_counter() - start < self.options.seconds:
            self._let_go()
            reason = drop_from_cache(files)
            if reason is not None and not done.amount:
                self._miss(named.COLD_ROWS, reason)
                return
            if reason is not None:
                break
            # Only a few: with each row its neighbours are read, and soon nothing is cold.
            done += gathering.cold_rows(max(1, self.num_threads))
        self._add_rows(named.GATHER, named.COLD_ROWS, done)

    def _let_go(self) -> None:
        """Unmap all files: what is mapped stays in the page cache."""
        self.store.close()
        gc.collect()

    def _add_read(self, name: str, done: Done | str) -> None:
        if isinstance(done, str):
            self._miss(name, done)
            return
        stored = self.file_bytes * self.options.row_share / self.store.num_samples
        self._add(named.STORAGE, name, done.rate / stored, done.rate)

    def _add_bytes(self, stage: str, name: str, done: Done) -> None:
        self._add(stage, name, done.rate / self.row_bytes, done.rate)

    def _add_rows(self, stage: str, name: str, done: Done, num_threads: int | None = None) -> None:
        self._add(stage, name, done.rate, done.rate * self.row_bytes, num_threads)

    def _add(
        self, stage: str, name: str, rows: float, num_bytes: float, num_threads: int | None = None
    ) -> None:
        made = Figure(
            stage=stage,
            name=name,
            rows_per_second=rows,
            bytes_per_second=num_bytes,
            num_threads=num_threads,
        )
        self.found.append(made)
        self.progress.advance(1)

    def _miss(self, name: str, reason: str) -> None:
        self.missing[name] = reason
        self.progress.advance(1)


def thread_counts(most: int, chosen: int) -> list[int]:
    """Return the numbers of threads to try: powers of two up to the most, it, and the chosen one.

    Examples:
        >>> thread_counts(12, 12), thread_counts(12, 3), thread_counts(1, 1)
        ([1, 2, 4, 8, 12], [1, 2, 3, 4, 8, 12], [1])
    """
    powers = (2**power for power in range(most.bit_length()))
    return sorted({*powers, chosen, most})


def is_decoded(store: Store) -> bool:
    """Whether chunks of a store are decoded, and not read in place from a mapped file."""
    if isinstance(store, FolderStore):
        return any(is_grouped(entry["path"]) for entry in store.manifest.entries)
    if isinstance(store, ShardStore):
        return store.shards.compression is not None
    return not isinstance(store, TokenStore)


def _remote_bytes(store: Any) -> int:
    """Return the bytes of all chunks of a store at a URL."""
    return sum(store.chunk_bytes(chunk) for chunk in range(len(store.chunk_sizes)))


def free_memory() -> int | None:
    """Return the bytes that the page cache may take; None if unknown."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        limits.append(int(text.split("MemAvailable:")[1].split()[0]) * 1024)
    with suppress(OSError, ValueError):
        # The limit of a container; "max" where there is none.
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return min(limits, default=None)


def _batches(loader: PlannedLoader, seconds: float, device: BenchDevice | None) -> Done:
    """Return how many samples a loader delivers after its first batch, epoch after epoch."""
    # Closed in the end: pinned memory of one loader must not be in the way of the next.
    with closing(loader), closing(_epochs(loader)) as batches:
        next(batches)
        num_rows, start = 0, perf_counter()
        for batch in batches:
            num_rows += len(next(iter(batch.values())))
            if perf_counter() - start >= seconds:
                break
        if device is not None:
            device.wait()
        return Done(num_rows, perf_counter() - start)


def _epochs(loader: Iterable[Any]) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _window_shown(window: int | str) -> str:
    return f"{window:,} samples" if isinstance(window, int) else window
