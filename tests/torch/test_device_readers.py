"""Batches on a device that processes have read: the same as without, whatever becomes of those."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import feedline
from contract_loaders import DEVICE
from feedline.errors import DamagedDataError, InvalidValueError
from feedline.feed import chunking_of
from feedline.plan import Plan, SamplePlan, Shuffled, WindowPlan
from feedline.store import FolderStore
from feedline.torch import DataLoader
from feedline.torch.device.link import Link
from feedline.torch.device.reader_slabs import Readers
from processes import is_running, python
from reader_threads import wait_until

NUM_SAMPLES = 1009


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readers") / "data"
    numbers = np.arange(NUM_SAMPLES)
    columns = {
        "x": numbers,
        "wide": numbers[:, None] * np.ones(37, np.float32),
        "odd": np.repeat(numbers.astype(np.uint8)[:, None], 7, axis=1),
    }
    feedline.pack(columns, path, chunk_samples=50, format="npy")
    return path


def windows(folder: Path) -> Plan:
    return WindowPlan(chunks=chunking_of(FolderStore(folder)), preload=2, tail="even", seed=3)


def shuffled(folder: Path) -> Plan:
    return SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=3), tail="even")


def readers_of(loader: DataLoader[Any]) -> Readers:
    assert loader._feeder is not None
    assert loader._feeder._readers is not None
    return loader._feeder._readers


def processes_of(loader: DataLoader[Any]) -> list[int]:
    return [reader.process.pid for reader in readers_of(loader).readers]


@pytest.fixture
def loaders() -> Iterator[Any]:
    """Makes loaders whose processes have started, at the state that is given."""
    made: list[DataLoader[Any]] = []

    def make(folder: Path, plan: Plan, state: Any = None, **options: Any) -> DataLoader[Any]:
        sizes = {"batch_size": 8, "num_threads": 4, "reader_processes": 2, **options}
        # Little memory, so that a pass has many slabs.
        sizes = {"memory_budget": 2**18, **sizes}
        loader = DataLoader(FolderStore(folder), sampler=plan, device=DEVICE, **sizes)
        made.append(loader)
        before = loader.state_dict()
        if loader.num_batches_left():
            next(iter(loader))
            wait_until(lambda: readers_of(loader).are_ready)
        loader.load_state_dict(before if state is None else state)
        return loader

    yield make
    for loader in made:
        loader.close()


def plain_batches(folder: Path, plan: Plan) -> list[dict[str, torch.Tensor]]:
    return list(DataLoader(FolderStore(folder), sampler=plan, batch_size=8))


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, tensor in batch.items():
            assert torch.equal(tensor.cpu(), other[name]), name


@pytest.mark.parametrize("plan_of", [windows, shuffled])
def test_kept_batches_equal_those_of_the_cpu_and_are_never_overwritten(
    folder: Path, loaders: Any, plan_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = Link.device_memory
    monkeypatch.setattr(Link, "device_memory", lambda link, size: allocate(link, size).fill_(0xAB))
    loader = loaders(folder, plan_of(folder))
    plain = DataLoader(FolderStore(folder), sampler=plan_of(folder), batch_size=8)
    kept = list(loader) + list(loader)
    assert readers_of(loader).num_passes == 2
    assert_equal(kept, list(plain) + list(plain))


def test_threads_hand_over_to_processes_in_mid_pass(folder: Path, loaders: Any) -> None:
    plan = shuffled(folder)
    loader = DataLoader(
        *(FolderStore(folder), 8),
        sampler=plan,
        device=DEVICE,
        num_threads=2,
        reader_processes=2,
        memory_budget=2**17,
    )
    batches = iter(loader)
    found = [next(batches)]
    wait_until(lambda: readers_of(loader).are_ready)
    found += list(batches)
    assert readers_of(loader).num_passes == 1
    assert_equal(found, plain_batches(folder, plan))
    loader.close()


def test_passes_that_are_broken_off_leave_nothing_to_the_next(folder: Path, loaders: Any) -> None:
    plan = windows(folder)
    loader = loaders(folder, plan)
    expected = plain_batches(folder, plan)
    for count in (1, 30, 2, 0, 100, 5):
        assert_equal(list(islice(loader, count)), expected[:count])
    assert_equal(list(loader), expected)


def test_an_iterator_of_an_earlier_pass_takes_nothing_from_the_latest(
    folder: Path, loaders: Any
) -> None:
    plan = windows(folder)
    loader = loaders(folder, plan)
    earlier = iter(loader)
    next(earlier)
    latest = iter(loader)
    found = [next(latest)]
    with pytest.raises(InvalidValueError, match="earlier pass"):
        for _ in earlier:
            pass
    assert_equal(found + list(latest), plain_batches(folder, plan))


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_batches_are_those_of_the_cpu_after_any_resizes(
    folder: Path, loaders: Any, data: st.DataObject
) -> None:
    plan = windows(folder)
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 3))):
        world_size, batch_size = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([5, 16]))
        rank = data.draw(st.integers(0, world_size - 1))
        sizes = {"batch_size": batch_size, "num_replicas": world_size, "rank": rank}
        loader = loaders(folder, plan, state, reader_processes=1, **sizes)
        plain = DataLoader(FolderStore(folder), sampler=plan, **sizes)
        if state is not None:
            plain.load_state_dict(state)
        count = data.draw(st.integers(0, plain.num_batches_left()))
        assert_equal(list(islice(loader, count)), list(islice(plain, count)))
        assert loader.state_dict() == plain.state_dict()
        state = plain.state_dict()
        if plain.num_batches_left() == count:
            break


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("when", [0, 1, 40])
def test_a_killed_process_costs_nothing_but_time(
    folder: Path, loaders: Any, caplog: pytest.LogCaptureFixture, victim: int, when: int
) -> None:
    plan = shuffled(folder)
    loader = loaders(folder, plan, memory_budget=2**16)
    batches = iter(loader)
    found = list(islice(batches, when))
    os.kill(processes_of(loader)[victim], signal.SIGKILL)
    found += list(batches)
    assert_equal(found, plain_batches(folder, plan))
    assert len(list(loader)) == len(loader)
    assert "a reader process failed: its process has ended (exit code -9)" in caplog.text


@pytest.mark.parametrize("plan_of", [windows, shuffled])
def test_a_damaged_chunk_fails_at_its_batch_as_on_the_cpu(
    tmp_path: Path, loaders: Any, plan_of: Any
) -> None:
    feedline.pack({"x": np.arange(NUM_SAMPLES)}, tmp_path / "data", chunk_samples=50, format="npy")
    plan = plan_of(tmp_path / "data")
    # Without threads, which would read on while the file is cut.
    plain = DataLoader(FolderStore(tmp_path / "data"), 8, sampler=plan, num_threads=0)
    first = next(iter(plain))["x"].tolist()
    number = next(chunk for chunk in range(20) if not any(x // 50 == chunk for x in first))
    victim = sorted((tmp_path / "data").glob("**/*.npy"))[number]
    victim.write_bytes(victim.read_bytes()[:-8])

    def until_it_fails(batches: Any) -> tuple[list[list[int]], str]:
        seen: list[list[int]] = []
        with pytest.raises(DamagedDataError) as failed:
            seen.extend(batch["x"].tolist() for batch in batches)
        return seen, str(failed.value)

    plain = DataLoader(FolderStore(tmp_path / "data"), 8, sampler=plan, num_threads=0)
    expected = until_it_fails(plain)
    loader = loaders(tmp_path / "data", plan, memory_budget=2**14)
    assert until_it_fails(loader) == expected
    assert victim.name in expected[1]


def test_processes_end_with_the_loader_and_when_it_is_dropped(folder: Path, loaders: Any) -> None:
    loader = loaders(folder, shuffled(folder))
    processes = processes_of(loader)
    assert all(is_running(process) for process in processes)
    loader.close()
    assert not any(is_running(process) for process in processes)
    assert len(list(loader)) == len(loader)
    loader.close()

    dropped = DataLoader(FolderStore(folder), 8, device=DEVICE, reader_processes=2, num_threads=2)
    next(iter(dropped))
    processes = processes_of(dropped)
    del dropped
    gc.collect()
    assert not any(is_running(process) for process in processes)


def test_processes_end_when_the_training_process_is_killed(folder: Path) -> None:
    with python("reader_job.py", str(folder)) as job:
        assert job.stdout is not None
        processes = [int(number) for number in job.stdout.readline().split()]
        assert len(processes) == 2
        job.kill()
        job.wait()
        wait_until(lambda: not any(is_running(process) for process in processes))


def test_shared_memory_stays_within_the_budget(folder: Path, loaders: Any) -> None:
    for budget in (2**16, 2**20, 2**22):
        loader = loaders(folder, shuffled(folder), memory_budget=budget)
        assert 0 < len(readers_of(loader).memory.bytes) <= budget


class Unpicklable(FolderStore):
    """A store that no other process can open."""

    def __reduce__(self) -> Any:
        raise TypeError("this store stays here")


class Unwelcome(FolderStore):
    """A store that another process fails to open."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("there is no such module here")


@pytest.mark.parametrize("kind", [Unpicklable, Unwelcome])
def test_stores_that_no_process_can_open_are_read_by_threads(folder: Path, kind: Any) -> None:
    loader = DataLoader(kind(folder), 8, device=DEVICE, num_threads=2, reader_processes=1)
    for _ in range(3):
        assert_equal(list(loader), list(DataLoader(FolderStore(folder), 8)))
        loader.set_epoch(0)
    loader.close()


def test_reader_processes_need_a_device_and_no_workers(folder: Path) -> None:
    store = FolderStore(folder)
    with pytest.raises(InvalidValueError, match="reader_processes=2 needs a device"):
        DataLoader(store, 8, reader_processes=2)
    with pytest.raises(InvalidValueError, match="reader_processes=2 needs num_workers=0"):
        DataLoader(store, 8, device=DEVICE, num_workers=2, reader_processes=2)
    with pytest.raises(InvalidValueError, match="reader_processes=-1 must be"):
        DataLoader(store, 8, device=DEVICE, reader_processes=-1)
