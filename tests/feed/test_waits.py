"""What a loop waits for: each part of it is counted where it arises, and the parts make the whole.

`FakeClock` stands still except where a test says how long something takes, so all is exact.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest

import feedline
from clock_loaders import MemoryStore
from fake_clock import FakeClock
from feedline.chunks import RandomSampler
from feedline.feed import (
    ChunkLoader,
    Feed,
    Loader,
    LoaderWrapper,
    Wait,
    WaitCounter,
    as_loader,
)
from feedline.feed.waits import PARTS, TimedReads
from feedline.plan import SamplePlan, Sequential
from feedline.runs import ConsumptionLog, LoggedLoader, read_log
from feedline.runs.log_records import LoggedBatch
from feedline.store import FolderStore, MemoryMatrix
from feedline.torch import DataLoader as TorchLoader

READ, MADE = 4.0, 0.5


class SlowStore(MemoryStore):
    """Samples in memory; each call to read them takes its time."""

    def __init__(self, spend: Callable[[], object]) -> None:
        super().__init__(24)
        self.num_reads = 0
        self._spend = spend

    def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
        self.num_reads += 1
        self._spend()
        return super().read(chunk, rows, out)


def walk(loader: Any, clock: FakeClock) -> tuple[list[Wait], float]:
    """What a loop waited for each batch, and how long it was in `next` as its own clock says."""
    waits, seconds = [], 0.0
    batches = iter(loader)
    while True:
        before, start = loader.waits.now(), clock.now
        if next(batches, None) is None:
            return waits, seconds
        seconds += clock.now - start
        waits.append(loader.waits.since(before, clock.now - start))


def parts(waits: list[Wait]) -> dict[str, float]:
    return {part: sum(getattr(wait, part) for wait in waits) for part in PARTS}


def test_a_wait_is_a_number_with_parts_that_make_it_up() -> None:
    wait = Wait(2.0, reading=1.5, copying=0.25)
    assert (wait, wait.handing_over, f"{wait:.1f}") == (2.0, 0.25, "2.0")
    assert wait.reading + wait.copying + wait.handing_over == wait
    for other in (copy.deepcopy(wait), pickle.loads(pickle.dumps(wait))):
        assert (other, other.reading, other.copying) == (2.0, 1.5, 0.25)


def test_slow_reading_of_a_store_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    store = SlowStore(lambda: clock.spend(READ))
    plan = SamplePlan(order=Sequential(num_samples=24))
    feed = Feed(store, plan, batch_size=4, num_threads=0)  # type: ignore[arg-type]
    waits, seconds = walk(feed, clock)
    assert store.num_reads
    assert parts(waits) == {"reading": READ * store.num_reads, "copying": 0.0, "handing_over": 0.0}
    assert sum(waits) == seconds == feed.waits.reading


@pytest.mark.parametrize("make", [feedline.DataLoader, TorchLoader])
def test_a_slow_look_at_all_files_is_reading(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock(monkeypatch)

    class Store(FolderStore):
        @property
        def fingerprint(self) -> str:
            clock.spend(READ)
            return "the same"

    feedline.pack({"x": np.arange(24)}, tmp_path / "data")
    loader = make(Store(tmp_path / "data"), 4, num_threads=0, memory_budget=32)
    batches = iter(loader)
    next(batches)
    (reading, *_), start = loader.waits.now(), clock.now
    next(batches)
    assert loader.waits.reading - reading == clock.now - start == READ


def test_a_slow_transform_is_handing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    store: Any = SlowStore(lambda: clock.spend(READ))

    def transform(batch: Any) -> Any:
        clock.spend(MADE)
        return batch

    loader = feedline.DataLoader(store, 4, transform=transform, num_threads=0)
    waits, seconds = walk(loader, clock)
    expected = {"reading": READ * store.num_reads, "copying": 0.0, "handing_over": MADE * 6}
    assert parts(waits) == expected
    assert sum(waits) == seconds


def test_slow_reading_of_a_matrix_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)

    class Slow(MemoryMatrix):
        def fetch(self, requests: Any) -> Any:
            clock.spend(READ)
            return super().fetch(requests)

    def output(batch: Any) -> Any:
        clock.spend(MADE)
        return batch

    sampler = RandomSampler(chunk_size=4, preload_nchunks=2, batch_size=4)
    loader = ChunkLoader(Slow(np.zeros((32, 2))), sampler, output=output, num_ahead=0)
    waits, seconds = walk(loader, clock)
    assert parts(waits) == {"reading": READ * 4, "copying": 0.0, "handing_over": MADE * 8}
    assert sum(waits) == seconds


def test_a_thread_that_reads_too_slowly_is_waited_for_as_reading() -> None:
    store: Any = SlowStore(lambda: sleep(0.02))
    plan = SamplePlan(order=Sequential(num_samples=24))
    with Feed(store, plan, batch_size=4, num_threads=2, memory_budget=200) as feed:
        batches = iter(feed)
        next(batches)
        (reading, copying, _), num_before = feed.waits.now(), store.num_reads
        assert len(list(batches)) == 5
        assert store.num_reads > num_before
        assert feed.waits.reading > reading
        assert feed.waits.copying == copying == 0


class Slow:
    """A loader of another library that takes its time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(3):
            self._clock.spend(READ)
            yield [number]


def test_all_that_a_loader_of_another_library_does_is_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    waits, seconds = walk(as_loader(Slow(clock)), clock)
    assert parts(waits) == {"reading": 3 * READ, "copying": 0.0, "handing_over": 0.0}
    assert sum(waits) == seconds


def test_a_loader_that_counts_nothing_is_all_reading_in_a_wrapper_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    own: Any = LoaderWrapper(as_loader(Slow(clock)))
    del own.waits
    wrapper = LoaderWrapper(own)
    assert isinstance(own, Loader)
    waits, _ = walk(wrapper, clock)
    assert parts(waits) == {"reading": 3 * READ, "copying": 0.0, "handing_over": 0.0}


def test_wrappers_pass_on_what_the_loader_counts() -> None:
    feed: Any = Feed(
        SlowStore(lambda: None),  # type: ignore[arg-type]
        SamplePlan(order=Sequential(num_samples=24)),
        batch_size=4,
    )
    assert LoaderWrapper(LoaderWrapper(feed)).waits is feed.waits


def test_counts_go_on_from_pass_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    store: Any = SlowStore(lambda: clock.spend(READ))
    loader = feedline.DataLoader(store, 4, num_threads=0)
    list(loader)
    list(islice(iter(loader), 2))
    assert loader.waits.reading == READ * store.num_reads
    again = pickle.loads(pickle.dumps(loader.waits))
    assert again.now() == loader.waits.now()


def test_an_error_while_reading_leaves_the_parts_below_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)

    def found() -> Iterator[int]:
        clock.spend(READ)
        yield 1
        clock.spend(READ)
        raise OSError("gone")

    waits = WaitCounter()
    timed = TimedReads(found(), waits)
    assert next(timed) == 1
    with suppress(OSError):
        next(timed)
    assert waits.reading == READ


@pytest.mark.parametrize(
    ("copied", "copying"),
    [
        ([], 0.0),
        ([(0.0, 9.0)], 0.0),
        ([(9.0, 12.0)], 2.0),
        ([(11.0, 12.0), (13.0, 13.5)], 1.5),
        ([(13.0, 99.0)], 1.0),
        ([(0.0, 99.0)], 4.0),
    ],
)
def test_reading_is_copying_while_a_thread_copies_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, copied: list[tuple[float, float]], copying: float
) -> None:
    FakeClock(monkeypatch).spend(14.0)
    waits = WaitCounter()
    waits.add_reading(10.0, copied=copied)
    assert (waits.reading, waits.copying) == (4.0 - copying, copying)


def test_a_device_that_waits_while_the_loop_goes_on_adds_to_copying() -> None:
    waits = WaitCounter()
    before = waits.now()
    waits.add_copying(perf_counter(), hidden=3.0)
    wait = waits.since(before, 2.0)
    assert wait == 5.0
    assert wait.copying == pytest.approx(3.0, abs=1.0)
    assert wait.handing_over == pytest.approx(2.0, abs=1.0)


class SlowRecorder:
    """A recorder that takes its time."""

    def __init__(self, clock: FakeClock) -> None:
        self.waits: list[Any] = []
        self._clock = clock

    def record(self, *, wait: float = 0.0, **_: Any) -> None:
        self.waits.append(wait)
        self._clock.spend(MADE)

    def event(self, name: str, /, **fields: Any) -> None:
        pass


def test_a_slow_log_is_handing_over_and_not_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    store: Any = SlowStore(lambda: clock.spend(READ))
    recorder = SlowRecorder(clock)
    loader = feedline.DataLoader(store, 4, num_threads=0, log=recorder)
    waits, _ = walk(loader, clock)
    assert parts(waits)["handing_over"] == 6 * MADE
    assert parts(waits)["reading"] == READ * store.num_reads
    logged = {"reading": READ * store.num_reads, "copying": 0.0, "handing_over": 0.0}
    assert parts(recorder.waits) == logged


def test_logs_have_the_parts_of_each_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = FakeClock(monkeypatch)
    store: Any = SlowStore(lambda: clock.spend(READ))
    loader = feedline.DataLoader(store, 4, num_threads=0)
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1) as log:
        assert len(list(LoggedLoader(loader, log))) == 6
    entries = read_log(tmp_path / "a.log").entries
    waits: Any = [entry.wait for entry in entries if isinstance(entry, LoggedBatch)]
    assert len(waits) == 6
    expected = {"reading": READ * store.num_reads, "copying": 0.0, "handing_over": 0.0}
    assert parts(waits) == expected
