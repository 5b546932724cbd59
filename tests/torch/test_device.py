"""Batches on a device: the same as on the CPU, never overwritten, within their budgets.

The device is the CPU, or what FEEDLINE_TEST_DEVICE names: a GPU where there is one to test with.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

import feedline
from contract_loaders import DEVICE
from feedline.errors import DamagedDataError, FeedlineError, InvalidValueError
from feedline.feed import chunking_of
from feedline.plan import Plan, SamplePlan, Shuffled, WindowPlan
from feedline.store import FolderStore
from feedline.torch import DataLoader, to_device
from feedline.torch.device.link import Link, Ring
from reader_threads import readers_since_now, wait_until

needs_gpu = pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="no GPU to test with")
NUM_SAMPLES = 409
_POISON = 0xAB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of several types and widths, in chunks of 50 and a rest."""
    path = tmp_path_factory.mktemp("device") / "data"
    numbers = np.arange(NUM_SAMPLES)
    columns = {
        "x": numbers,
        "wide": numbers[:, None] * np.ones(37, np.float32),
        "odd": np.repeat(numbers.astype(np.uint8)[:, None], 7, axis=1),
        "flag": numbers % 3 == 0,
        "half": (numbers / 8).astype(np.float16),
    }
    feedline.pack(columns, path, chunk_samples=50, format="npy")
    return path


def on_device(folder: Path, plan: Plan, **options: Any) -> DataLoader[Any]:
    sizes = {"batch_size": 8, "num_threads": 2, "memory_budget": 2**15, **options}
    return DataLoader(FolderStore(folder), sampler=plan, device=DEVICE, **sizes)


def windows(folder: Path) -> WindowPlan:
    return WindowPlan(chunks=chunking_of(FolderStore(folder)), preload=2, tail="even", seed=3)


def shuffled(folder: Path) -> SamplePlan:
    return SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=3), tail="even")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the ring and of the device is overwritten as soon as it may be used again."""
    take, allocate = Ring.take, Link.device_memory

    def take_poisoned(ring: Ring) -> NDArray[np.uint8]:
        piece = take(ring)
        piece[:] = _POISON
        return piece

    def allocate_poisoned(link: Link, num_bytes: int) -> torch.Tensor:
        return allocate(link, num_bytes).fill_(_POISON)

    monkeypatch.setattr(Ring, "take", take_poisoned)
    monkeypatch.setattr(Link, "device_memory", allocate_poisoned)


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a full shuffle": (shuffled, {}),
    "windows": (windows, {}),
    "little memory": (windows, {"device_budget": 2**13, "memory_budget": 2**12}),
    "no threads": (shuffled, {"num_threads": 0}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("poisoned")
def test_kept_batches_equal_those_of_the_cpu_and_are_never_overwritten(
    folder: Path, way: str
) -> None:
    plan_of, options = WAYS[way]
    loader = on_device(folder, plan_of(folder), **options)
    kept = list(loader) + list(loader)
    plain = DataLoader(FolderStore(folder), sampler=plan_of(folder), batch_size=8)
    expected = list(plain) + list(plain)
    assert len(kept) == len(expected)
    for batch, other in zip(kept, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, tensor in batch.items():
            assert tensor.device.type == torch.device(DEVICE).type
            assert tensor.dtype == other[name].dtype
            assert torch.equal(tensor.cpu(), other[name]), name


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_device_gets_the_batches_of_the_cpu_after_any_resizes(
    folder: Path, data: st.DataObject
) -> None:
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 3))):
        world_size = data.draw(st.integers(1, 3))
        batch_size = data.draw(st.sampled_from([5, 16, 64]))
        ranks = range(world_size)
        loaders = [
            on_device(
                *(folder, windows(folder)),
                batch_size=batch_size,
                num_replicas=world_size,
                rank=rank,
                memory_budget=2**20,
                device_budget=2**20,
            )
            for rank in ranks
        ]
        plains = [
            DataLoader(
                FolderStore(folder),
                batch_size,
                sampler=windows(folder),
                num_replicas=world_size,
                rank=rank,
            )
            for rank in ranks
        ]
        for loader in (*loaders, *plains):
            if state is not None:
                loader.load_state_dict(state)
        left = plains[0].num_batches_left()
        count = data.draw(st.integers(0, left))
        for loader, plain in zip(loaders, plains, strict=True):
            pairs = zip(islice(loader, count), islice(plain, count), strict=True)
            for batch, other in pairs:
                assert all(torch.equal(batch[name].cpu(), other[name]) for name in other)
        states = [loader.state_dict() for loader in (*loaders, *plains)]
        state = states[0]
        assert all(other == state for other in states)
        if count == left:
            break


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_chunk_fails_at_its_batch_as_on_the_cpu(
    folder: Path, tmp_path: Path, way: str
) -> None:
    plan_of, options = WAYS[way]
    columns = {"x": np.arange(NUM_SAMPLES)}
    feedline.pack(columns, tmp_path / "data", chunk_samples=50, format="npy")
    plan = plan_of(tmp_path / "data")
    victim = sorted((tmp_path / "data").glob("**/*.npy"))[5]
    victim.write_bytes(victim.read_bytes()[:-8])

    def until_it_fails(batches: Iterator[Any]) -> tuple[list[list[int]], str]:
        seen: list[list[int]] = []
        with pytest.raises(DamagedDataError) as failed:
            seen.extend(batch["x"].tolist() for batch in batches)
        return seen, str(failed.value)

    plain = DataLoader(FolderStore(tmp_path / "data"), 8, sampler=plan, num_threads=0)
    expected = until_it_fails(iter(plain))
    found = until_it_fails(iter(on_device(tmp_path / "data", plan, **options)))
    assert found == expected
    assert victim.name in expected[1]


@pytest.mark.parametrize("way", WAYS)
def test_threads_end_when_the_loop_breaks_and_when_the_pass_is_over(folder: Path, way: str) -> None:
    plan_of, options = WAYS[way]
    readers = readers_since_now()
    loader = on_device(folder, plan_of(folder), **options)
    for _ in range(3):
        for _ in islice(loader, 4):
            pass
    assert len(list(loader)) == len(loader)
    wait_until(lambda: not readers())


def test_pinned_memory_stays_within_its_budget(folder: Path) -> None:
    for budget in (2**14, 2**16, 2**20):
        loader = on_device(folder, shuffled(folder), memory_budget=budget)
        next(iter(loader))
        assert loader._feeder is not None
        ring = loader._feeder._ring
        assert ring is not None
        assert 0 < ring.num_bytes * ring.count <= budget


def test_budgets_below_a_batch_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="memory_budget=100 must be at least"):
        next(iter(on_device(folder, shuffled(folder), memory_budget=100)))
    with pytest.raises(InvalidValueError, match="device_budget=100 must be at least"):
        next(iter(on_device(folder, shuffled(folder), device_budget=100)))


def test_a_device_budget_needs_a_device_and_no_workers(folder: Path) -> None:
    store = FolderStore(folder)
    with pytest.raises(InvalidValueError, match="device_budget=1000 needs a device"):
        DataLoader(store, 8, device_budget=1000)
    with pytest.raises(InvalidValueError, match="device_budget=1000 needs num_workers=0"):
        DataLoader(store, 8, device=DEVICE, num_workers=2, device_budget=1000)


@pytest.mark.parametrize("device", ["nonsense", "cuda:999", 3.5])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    with pytest.raises(InvalidValueError, match="device="):
        to_device([torch.ones(1)], device)
    with pytest.raises(InvalidValueError, match="device="):
        DataLoader([1, 2, 3], device=device)


def test_transforms_get_batches_on_the_device(folder: Path) -> None:
    loader = on_device(folder, shuffled(folder), transform=lambda batch: 2 * batch["x"])
    doubled = torch.cat(list(loader))
    assert doubled.device.type == torch.device(DEVICE).type
    assert sorted(doubled.tolist()) == list(range(0, 2 * NUM_SAMPLES, 2))


def test_masks_are_on_the_device_and_mark_padding(folder: Path) -> None:
    plan = SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=3), tail="pad")
    loader = on_device(folder, plan, with_mask=True)
    pairs = [(batch["x"], is_real) for batch, is_real in loader]
    assert all(mask.device == values.device for values, mask in pairs)
    real = torch.cat([values[mask] for values, mask in pairs])
    assert sorted(real.tolist()) == list(range(NUM_SAMPLES))
    assert sum(len(values) for values, _ in pairs) > NUM_SAMPLES


def test_a_loader_around_another_counts_what_the_loop_received() -> None:
    plain = DataLoader(list(range(40)), batch_size=4, shuffle=True, seed=1)
    expected = [batch.tolist() for batch in plain]
    for count in range(len(expected) + 1):
        loader = to_device(DataLoader(list(range(40)), batch_size=4, shuffle=True, seed=1), DEVICE)
        seen = [batch.tolist() for batch in islice(loader, count)]
        assert count == 0 or loader.delivered.ids.tolist() == seen[-1]
        resumed = to_device(DataLoader(list(range(40)), batch_size=4, shuffle=True, seed=1), DEVICE)
        resumed.load_state_dict(loader.state_dict())
        rest = [batch.tolist() for batch in resumed] if count < len(expected) else []
        assert seen + rest == expected


def test_a_break_on_the_last_but_one_batch_after_a_resume_restarts_the_epoch() -> None:
    first = to_device(DataLoader(list(range(20)), batch_size=2, shuffle=True), DEVICE)
    list(islice(first, 4))
    resumed = to_device(DataLoader(list(range(20)), batch_size=2, shuffle=True), DEVICE)
    resumed.load_state_dict(first.state_dict())
    assert len(list(islice(resumed, 5))) == 5
    assert (len(list(resumed)), resumed.epoch) == (10, 0)
    assert (len(list(resumed)), resumed.epoch) == (10, 1)


@needs_gpu
def test_a_batch_whose_memory_is_used_again_is_copied_before() -> None:
    memory = torch.empty(2**26, dtype=torch.uint8).pin_memory()

    def batches() -> Iterator[torch.Tensor]:
        for number in range(4):
            yield memory.fill_(number)

    found = [batch.unique().tolist() for batch in to_device(batches(), DEVICE)]
    assert found == [[0], [1], [2], [3]]


def test_a_break_on_the_last_but_one_batch_restarts_the_epoch() -> None:
    loader = to_device(DataLoader(list(range(8)), batch_size=2), DEVICE)
    assert len(list(islice(loader, 3))) == 3
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.epoch == 0


Pair = namedtuple("Pair", ["left", "right"])


def test_batches_of_any_structure_are_moved() -> None:
    batch = {
        "array": np.ones(2),
        "list": [torch.zeros(1), "text"],
        "pair": Pair(torch.ones(1), (torch.ones(2), None)),
    }
    (moved,) = list(to_device([batch], DEVICE))
    assert moved["array"].tolist() == [1, 1]
    assert moved["list"][1] == "text"
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].right[1] is None
    for tensor in (moved["array"], moved["list"][0], moved["pair"].left, moved["pair"].right[0]):
        assert tensor.device.type == torch.device(DEVICE).type


def test_an_error_of_the_loader_comes_after_the_batches_before_it() -> None:
    class Failing:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            if index == 7:
                raise FeedlineError("sample 7 cannot be read")
            return index

    seen: list[list[int]] = []
    batches = iter(to_device(DataLoader(Failing(), batch_size=2), DEVICE))
    with pytest.raises(FeedlineError, match="sample 7"):
        seen.extend(batch.tolist() for batch in batches)
    assert seen == [[0, 1], [2, 3], [4, 5]]


@needs_gpu
def test_every_stream_waits_for_the_batch_that_it_uses(folder: Path) -> None:
    store = FolderStore(folder)
    plan = windows(folder)
    expected = [batch["wide"].sum().item() for batch in DataLoader(store, 8, sampler=plan)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    batches = iter(on_device(folder, plan))
    sums = []
    for number in range(len(expected)):
        with torch.cuda.stream(streams[number % 3]):
            sums.append(next(batches)["wide"].sum())
    torch.cuda.synchronize()
    assert [total.item() for total in sums] == expected
