"""What a loop waits for on its way to a device: copying is told from reading and handing over.

The device is the CPU, or what FEEDLINE_TEST_DEVICE names. Streams and events, which a machine
without a GPU does not have, are played by `Stream` and `Event`; real ones are tested on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event as Flag
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from contract_loaders import DEVICE
from fake_clock import FakeClock
from feedline.feed import Wait
from feedline.runs import read_log
from feedline.runs.log_records import LoggedBatch
from feedline.steps import Alone, StepScheduler
from feedline.store import FolderStore
from feedline.torch import DataLoader, to_device
from feedline.torch.device import moving, stream_waits
from feedline.torch.device.link import Link, in_reader
from feedline.torch.device.stream_waits import StreamWaits

needs_gpu = pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="no GPU to test with")
NUM_BATCHES = 8
READ, COPIED, MADE = 4.0, 2.0, 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waits") / "data"
    feedline.pack({"x": np.arange(8 * NUM_BATCHES)}, path, chunk_samples=16, format="npy")
    return path


class SlowStore(FolderStore):
    """A folder whose chunks take their time."""

    clock: FakeClock

    def read(self, *args: Any, **options: Any) -> Any:
        self.clock.spend(READ)
        return super().read(*args, **options)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that stands still, except for copies to the device."""
    clock = FakeClock(monkeypatch)
    allocate, move = Link.device_memory, moving.move

    def allocate_slowly(link: Link, num_bytes: int) -> torch.Tensor:
        clock.spend(COPIED)
        return allocate(link, num_bytes)

    def move_slowly(value: Any, link: Link, moved: list[torch.Tensor]) -> Any:
        clock.spend(COPIED if isinstance(value, dict) else 0.0)
        return move(value, link, moved)

    monkeypatch.setattr(Link, "device_memory", allocate_slowly)
    monkeypatch.setattr(moving, "move", move_slowly)
    monkeypatch.setattr(SlowStore, "clock", clock, raising=False)
    return clock


def walk(loader: Any, clock: FakeClock) -> Wait:
    """What a loop waited for in one pass; the parts that its own clock saw make its time in it."""
    before, start = loader.waits.now(), clock.now
    for _ in loader:
        pass
    wait: Wait = loader.waits.since(before, clock.now - start)
    hidden = loader.waits.hidden - before[2]
    assert wait == clock.now - start + hidden
    assert wait.reading + wait.copying + wait.handing_over == pytest.approx(wait)
    return wait


def about(seconds: float) -> Any:
    # On a GPU, the time that its stream waited is real.
    return pytest.approx(seconds, abs=0.2)


def test_a_slow_copy_of_a_slab_is_copying_and_slow_reading_is_not(
    folder: Path, clock: FakeClock
) -> None:
    def transform(batch: Any) -> Any:
        clock.spend(MADE)
        return batch

    # A slab of one batch, which is read and copied when it is asked for.
    options: dict[str, Any] = {"num_threads": 0, "memory_budget": 64, "transform": transform}
    loader = DataLoader(SlowStore(folder), batch_size=8, device=DEVICE, **options)
    wait = walk(loader, clock)
    assert wait.copying == about(NUM_BATCHES * COPIED)
    assert wait.reading == about(NUM_BATCHES * READ)
    assert wait.handing_over == about(NUM_BATCHES * MADE)


def test_a_slow_copy_of_a_batch_is_copying(folder: Path, clock: FakeClock) -> None:
    plain = feedline.DataLoader(SlowStore(folder), 8, num_threads=0, memory_budget=64)
    wait = walk(to_device(plain, DEVICE), clock)
    assert wait.copying == about(NUM_BATCHES * COPIED)
    assert wait.reading == about(NUM_BATCHES * READ)
    assert wait.handing_over == about(0.0)


def test_a_slow_copy_is_copying_for_datasets_and_loaders_of_others(clock: FakeClock) -> None:
    class Slow:
        def __len__(self) -> int:
            return NUM_BATCHES

        def __getitem__(self, index: int) -> dict[str, int]:
            clock.spend(READ)
            return {"x": index}

    slow: Any = Slow()
    mapped = DataLoader(slow, batch_size=1, device=DEVICE)
    foreign = to_device(torch.utils.data.DataLoader(slow, batch_size=1), DEVICE)
    for loader in (mapped, foreign):
        wait = walk(loader, clock)
        assert wait.copying == about(NUM_BATCHES * COPIED)
        assert wait.reading == about(NUM_BATCHES * READ)
        assert wait.handing_over == about(0.0)


def test_what_workers_take_is_reading(folder: Path) -> None:
    loader = DataLoader(FolderStore(folder), batch_size=8, num_workers=1)
    assert loader.waits.reading == 0.0
    assert len(list(loader)) == NUM_BATCHES
    assert loader.waits.reading > 0.0
    assert loader.waits.copying == 0.0


def test_the_clock_and_the_log_have_the_same_parts(
    folder: Path, clock: FakeClock, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"num_threads": 0, "memory_budget": 64, "log": tmp_path / "logs"}
    loader = DataLoader(SlowStore(folder), batch_size=8, device=DEVICE, **options)
    clocks: dict[str, Any] = {"num_epochs": 1, "preemption_signal": None, "peers": Alone()}
    with StepScheduler(16, dataloader=loader, **clocks) as scheduler:
        for _ in scheduler:
            clock.spend(1.0)
        waited, worked = scheduler.waiting.latest or (Wait(0.0), 0.0)
        total = (READ + COPIED) * NUM_BATCHES + NUM_BATCHES / 2
        assert scheduler.waiting.shares["copying"] == about(COPIED * NUM_BATCHES / total)
    assert (waited, worked) == (about(2 * (READ + COPIED)), about(1.0))
    assert (waited.reading, waited.copying) == (about(2 * READ), about(2 * COPIED))
    (path,) = (tmp_path / "logs").rglob("rank0.log")
    waits = [entry.wait for entry in read_log(path).entries if isinstance(entry, LoggedBatch)]
    assert len(waits) == NUM_BATCHES
    for wait in waits:
        assert isinstance(wait, Wait)
        assert (wait.reading, wait.copying) == (about(READ), about(COPIED))


def test_a_thread_that_copies_is_waited_for_as_copying(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, is_asked = Link.device_memory, Flag()

    def allocate_slowly(link: Link, num_bytes: int) -> torch.Tensor:
        if in_reader():
            assert is_asked.wait(60)
            sleep(0.2)
        return allocate(link, num_bytes)

    monkeypatch.setattr(Link, "device_memory", allocate_slowly)
    loader = DataLoader(FolderStore(folder), 8, device=DEVICE, num_threads=2, memory_budget=512)
    batches = iter(loader)
    # The loop's own thread does the first slab.
    next(batches)
    before = loader.waits.copying
    is_asked.set()
    assert len(list(batches)) == NUM_BATCHES - 1
    assert loader.waits.copying > before


class Event:
    """An event of a GPU: nobody may wait for it, and it comes when the test says so."""

    def __init__(self, enable_timing: bool = True) -> None:
        assert enable_timing, "the time of others cannot be asked"
        self.milliseconds: float | None = None

    def query(self) -> bool:
        return self.milliseconds is not None

    def record(self, stream: Stream) -> None:
        stream.events.append(self)

    def elapsed_time(self, end: Event) -> float:
        assert self.milliseconds is not None
        assert end.milliseconds is not None
        return end.milliseconds - self.milliseconds

    def synchronize(self) -> None:
        raise AssertionError("the loop waits for the device")


class Stream:
    """A stream of a GPU, which is told what to wait for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.awaited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.awaited.append(event)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Stream()


def test_streams_wait_for_copies_and_say_later_for_how_long(stream: Stream) -> None:
    link = Link("cpu")
    first, second, third = Event(), Event(), Event()
    assert link.hand_over(stream, first, []) == 0.0
    # The stream comes to the first copy at 5 ms, which arrives at 8 ms.
    stream.events[0].milliseconds = 5.0
    assert link.hand_over(stream, second, []) == 0.0, "it has not arrived"
    first.milliseconds = 8.0
    # The second arrived before the stream came to it.
    second.milliseconds, stream.events[1].milliseconds = 9.0, 11.0
    assert link.hand_over(stream, third, []) == pytest.approx(0.003)
    assert stream.awaited == [first, second, third]
    third.milliseconds = stream.events[2].milliseconds = 12.0
    assert link.hand_over(stream, third, []) == 0.0, "each is counted once"


def test_a_copy_that_has_arrived_costs_the_stream_no_event(stream: Stream) -> None:
    arrived = Event()
    arrived.milliseconds = 1.0
    assert Link("cpu").hand_over(stream, arrived, []) == 0.0
    assert stream.events == []
    assert stream.awaited == [arrived]


def test_few_events_are_kept_of_a_device_that_is_far_behind(stream: Stream) -> None:
    waits = StreamWaits()
    for _ in range(1000):
        waits.before(stream, Event())
    assert len(stream.events) == stream_waits.MOST_OPEN
    assert waits.collected() == 0.0


@needs_gpu
def test_a_stream_that_waits_for_a_slow_copy_on_a_gpu_is_copying(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = Link.device_memory

    def allocate_slowly(link: Link, num_bytes: int) -> torch.Tensor:
        # Some milliseconds of the stream of copies, before the copy begins.
        torch.cuda._sleep(20_000_000)
        return allocate(link, num_bytes)

    monkeypatch.setattr(Link, "device_memory", allocate_slowly)
    loader = DataLoader(FolderStore(folder), 8, device=DEVICE, num_threads=0, memory_budget=64)
    sums = []
    for batch in loader:
        sums.append(batch["x"].sum())
        # What was waited for becomes known when the next batch is handed over.
        torch.cuda.synchronize()
    assert torch.stack(sums).sum().item() == sum(range(8 * NUM_BATCHES))
    assert loader.waits.hidden > 0.001
    assert loader.waits.copying >= loader.waits.hidden


@needs_gpu
def test_a_stream_that_comes_late_to_a_copy_on_a_gpu_waits_for_nothing(folder: Path) -> None:
    loader = DataLoader(FolderStore(folder), 8, device=DEVICE, num_threads=0, memory_budget=64)
    for _ in loader:
        # The loop is ahead of its stream, which gets to each copy long after it has arrived.
        torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
    assert loader.waits.hidden < 0.001 * NUM_BATCHES
