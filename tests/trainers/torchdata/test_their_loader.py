"""Feedline's samplers and datasets in torchdata's own StatefulDataLoader: exact, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import feedline
from feedline.errors import FeedlineError, InvalidValueError
from feedline.plan import SamplePlan, Shuffled
from feedline.torch import (
    BatchPlanSampler,
    BucketBatchSampler,
    DistributedSampler,
    FeedDataset,
    FolderConfig,
    LazyFolderDataset,
    MixtureDataset,
    MixtureSampler,
    SampleSampler,
    SequentialBucketSampler,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning", "ignore:This DataLoader will create:UserWarning"
)
#: An iterator of theirs whose constructor fails cannot be removed without a complaint.
COMPLAINS = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*__del__:pytest.PytestUnraisableExceptionWarning"
)

NUM_SAMPLES = 46
IDS = torch.arange(NUM_SAMPLES)
#: Makes the loader of a rank: rank, world size, batch size, and options of the loader.
Make = Callable[..., tuple[Any, StatefulDataLoader]]


class Buckets(Dataset[int]):
    """Items of two resolutions, as the bucket sampler reads them."""

    def __init__(self) -> None:
        sizes = {"small": range(20), "large": range(20, NUM_SAMPLES)}
        self.bucket_groups = {
            key: {"indices": list(ids), "resolution": (8, 8), "aspect_name": "square"}
            for key, ids in sizes.items()
        }
        self.sorted_bucket_keys = list(sizes)
        self.calculator = None

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed")
    ids = np.arange(NUM_SAMPLES).reshape(-1, 1)
    feedline.pack({"sequences/id": ids, "targets/id": ids}, path / "data", chunk_samples=7)
    return path / "data"


def plan() -> SamplePlan:
    return SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=5), tail="even")


def makers(folder: Path) -> dict[str, Make]:
    """Return the ways to make a loader of one rank, by name."""

    def ranked(rank: int, world_size: int) -> dict[str, int]:
        return {"num_replicas": world_size, "rank": rank}

    def of_sampler(make_sampler: Callable[..., Any], dataset: Any = IDS) -> Make:
        def make(rank: int, world_size: int, batch_size: int, **options: Any) -> Any:
            sampler = make_sampler(**ranked(rank, world_size))
            loader = StatefulDataLoader(dataset, batch_size, sampler=sampler, **options)
            return sampler, loader

        return make

    def of_batches(make_sampler: Callable[..., Any], dataset: Any = IDS) -> Make:
        def make(rank: int, world_size: int, batch_size: int, **options: Any) -> Any:
            sampler = make_sampler(batch_size, **ranked(rank, world_size))
            return sampler, StatefulDataLoader(dataset, batch_sampler=sampler, **options)

        return make

    def lazy_folder(rank: int, world_size: int, batch_size: int, **options: Any) -> Any:
        config = FolderConfig(batch_size=batch_size, seed=5)
        dataset = LazyFolderDataset(folder, config, **ranked(rank, world_size))
        return dataset, StatefulDataLoader(dataset, batch_size=None, **options)

    def feed(rank: int, world_size: int, batch_size: int, **options: Any) -> Any:
        dataset: FeedDataset[Any] = FeedDataset(
            feedline.open(folder), plan(), batch_size=batch_size, **ranked(rank, world_size)
        )
        return dataset, StatefulDataLoader(dataset, batch_size=None, **options)

    mixture = MixtureDataset([IDS[:20], IDS[20:]])
    lengths = 1 + np.arange(NUM_SAMPLES) % 9
    return {
        "distributed": of_sampler(
            lambda **ranks: DistributedSampler(IDS, seed=5, drop_last=False, **ranks)
        ),
        "samples": of_sampler(lambda **ranks: SampleSampler(plan(), **ranks)),
        "mixture": of_sampler(
            lambda **ranks: MixtureSampler(
                mixture.cumulative_sizes, [20.0, 26.0], seed=5, drop_last=False, **ranks
            ),
            mixture,
        ),
        "batches": of_batches(lambda size, **r: BatchPlanSampler(plan(), batch_size=size, **r)),
        "lengths": of_batches(
            lambda size, **r: BucketBatchSampler(lengths, batch_size=size, num_buckets=3, **r)
        ),
        "buckets": of_batches(
            lambda size, **r: SequentialBucketSampler(Buckets(), size, drop_last=False, **r),
            Buckets(),
        ),
        "lazy folder": lazy_folder,
        "feed": feed,
    }


NAMES = list(makers(Path()))


def ids_of(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        batch = batch["sequences/id"]
    elif isinstance(batch, tuple | list) and isinstance(batch[0], dict):
        batch = batch[0]["id"]
    return torch.as_tensor(batch).flatten().tolist()


def take(loader: StatefulDataLoader, num_batches: int | None = None) -> list[int]:
    """Return the ids of some batches, or of all that are left."""
    found: list[int] = []
    for number, batch in enumerate(loader, start=1):
        found += ids_of(batch)
        if number == num_batches:
            break
    return found


def run(
    make: Make, state: Any, sizes: tuple[int, int], num_batches: int | None = None, **options: Any
) -> tuple[list[int], dict[str, Any]]:
    """Run all ranks from a state, and return their ids and the state of the last of them."""
    epoch = options.pop("epoch", None)
    found: list[int] = []
    saved: dict[str, Any] = {}
    for rank in range(sizes[0]):
        counter, loader = make(rank, *sizes, **options)
        if epoch is not None:
            counter.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(state)
        found += take(loader, num_batches)
        saved = loader.state_dict()
    return found, saved


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_comes_once_when_it_resumes_twice_on_other_ranks(
    name: str, num_workers: int, folder: Path
) -> None:
    make = makers(folder)[name]
    first, state = run(make, None, (2, 3), 2, num_workers=num_workers)
    second, state = run(make, state, (3, 2), 2, num_workers=num_workers)
    rest, _ = run(make, state, (1, 4), num_workers=num_workers)
    counts = Counter(first + second + rest)
    assert set(counts) == set(range(NUM_SAMPLES))
    # Padding repeats fewer than one sample a rank, in each bucket.
    assert sum(counts.values()) <= NUM_SAMPLES + 4


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["distributed", "batches", "lazy folder"])
def test_a_resume_continues_with_the_next_batch(name: str, num_workers: int, folder: Path) -> None:
    make = makers(folder)[name]
    whole, _ = run(make, None, (1, 4))
    first, state = run(make, None, (1, 4), 5, num_workers=num_workers)
    rest, _ = run(make, state, (1, 4), num_workers=num_workers)
    assert first + rest == whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["distributed", "batches", "lazy folder"])
@pytest.mark.parametrize("is_finished", [True, False], ids=["after the loop", "on the last step"])
def test_the_epoch_after_a_saved_one_is_not_lost(
    name: str, num_workers: int, is_finished: bool, folder: Path
) -> None:
    make = makers(folder)[name]
    options = {"num_workers": num_workers}
    whole, _ = run(make, None, (2, 4), epoch=1)
    _, loader = make(0, 2, 4)
    num_batches = None if is_finished else len(list(loader))
    _, state = run(make, None, (2, 4), num_batches, **options)
    assert run(make, state, (2, 4), epoch=1, **options)[0] == whole


@pytest.mark.parametrize("name", ["distributed", "lazy folder"])
def test_an_epoch_that_was_not_finished_is_not_skipped(name: str, folder: Path) -> None:
    make = makers(folder)[name]
    for num_workers in (0, 2):
        _, state = run(make, None, (2, 4), 2, num_workers=num_workers)
        with pytest.raises(FeedlineError, match=r"set_epoch\(1\) was called, but .* in epoch 0"):
            run(make, state, (2, 4), epoch=1, num_workers=num_workers)


@pytest.mark.parametrize("name", ["distributed", "batches", "lazy folder"])
def test_what_the_tail_has_dropped_stays_dropped(name: str, folder: Path) -> None:
    make = makers(folder)[name]
    for num_workers in (0, 2):
        _, loader = make(0, 2, 4)
        _, state = run(make, None, (2, 4), len(list(loader)), num_workers=num_workers)
        assert run(make, state, (3, 1), num_workers=num_workers)[0] == []


@pytest.mark.parametrize("name", ["distributed", "batches", "lazy folder"])
@pytest.mark.parametrize("interval", [3, None])
def test_steps_after_a_snapshot_are_exact_on_the_same_ranks_and_refused_on_others(
    name: str, interval: int | None, folder: Path
) -> None:
    make = makers(folder)[name]
    options = {"num_workers": 2, "snapshot_every_n_steps": interval}
    first, state = run(make, None, (2, 4), 4, **options)
    rest, _ = run(make, state, (2, 4), **options)
    assert set(first + rest) == set(range(NUM_SAMPLES))
    assert len(first + rest) <= NUM_SAMPLES + 2
    for sizes in ((3, 4), (2, 3)):
        with pytest.raises(
            InvalidValueError, match=r"after its snapshot.*feedline.torch.DataLoade"
        ):
            run(make, state, sizes, **options)


@pytest.mark.parametrize("name", ["distributed", "batches", "lazy folder"])
def test_a_snapshot_on_a_step_resumes_on_any_ranks(name: str, folder: Path) -> None:
    make = makers(folder)[name]
    options = {"num_workers": 2, "snapshot_every_n_steps": 2}
    first, state = run(make, None, (2, 4), 4, **options)
    rest, _ = run(make, state, (1, 4), **options)
    assert Counter(first + rest) == Counter(range(NUM_SAMPLES))


@COMPLAINS
@pytest.mark.parametrize("name", ["distributed", "batches"])
@pytest.mark.parametrize("counts", [(0, 2), (2, 0), (2, 3)])
def test_another_number_of_workers_is_refused_with_a_way_out(
    name: str, counts: tuple[int, int], folder: Path
) -> None:
    make = makers(folder)[name]
    _, state = run(make, None, (2, 4), 2, num_workers=counts[0])
    says = rf"num_workers={counts[1]} must be {counts[0]}.*feedline.torch.DataLoader"
    with pytest.raises(InvalidValueError, match=says):
        run(make, state, (2, 4), num_workers=counts[1])


def test_another_number_of_workers_is_refused_for_a_dataset_too(folder: Path) -> None:
    make = makers(folder)["lazy folder"]
    _, state = run(make, None, (2, 4), 2, num_workers=2)
    with pytest.raises(InvalidValueError, match="num_workers=3 must be 2"):
        run(make, state, (2, 4), num_workers=3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_stay_or_are_spawned_resume_too(method: str, folder: Path) -> None:
    make = makers(folder)["lazy folder"]
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
    whole, _ = run(make, None, (1, 4), epoch=1)
    first, state = run(make, None, (1, 4), 5, **options)
    dataset, loader = make(0, 1, 4, **options)
    loader.load_state_dict(state)
    assert sorted(first + take(loader)) == list(range(NUM_SAMPLES))
    dataset.set_epoch(1)
    assert take(loader) == whole


def test_spawned_workers_refuse_what_forked_ones_refuse(folder: Path) -> None:
    make = makers(folder)["lazy folder"]
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "snapshot_every_n_steps": 4}
    _, state = run(make, None, (1, 4), 3, **options)
    with pytest.raises(InvalidValueError, match="3 steps after its snapshot"):
        run(make, state, (2, 4), **options)
    config = FolderConfig(batch_size=4)
    dataset = LazyFolderDataset(folder, config, num_replicas=1, rank=0)
    loader = StatefulDataLoader(dataset, 4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(InvalidValueError, match="batch_size=4 must be None"):
        iter(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_batches_are_refused(num_workers: int, folder: Path) -> None:
    config = FolderConfig(batch_size=4)
    dataset = LazyFolderDataset(folder, config, num_replicas=1, rank=0)
    loader = StatefulDataLoader(dataset, num_workers=num_workers)
    with pytest.raises(InvalidValueError, match="batch_size=1 must be None"):
        next(iter(loader))


def test_a_batch_sampler_without_a_state_is_refused() -> None:
    sampler = SampleSampler(plan(), num_replicas=1, rank=0)
    loader = StatefulDataLoader(IDS, batch_sampler=BatchSampler(sampler, 4, False))
    with pytest.raises(
        InvalidValueError, match=r"batch_sampler=BatchSampler has no state.*sampler="
    ):
        next(iter(loader))


def test_a_batch_sampler_with_a_state_of_its_own_is_the_users() -> None:
    class Own:
        def __init__(self) -> None:
            self.sampler = BatchPlanSampler(plan(), batch_size=4, num_replicas=1, rank=0)

        def __iter__(self) -> Iterator[list[int]]:
            return iter(self.sampler)

        def state_dict(self) -> dict[str, Any]:
            return self.sampler.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.sampler.load_state_dict(state)

    loader = StatefulDataLoader(IDS, batch_sampler=Own())
    first, state = take(loader, 3), loader.state_dict()
    resumed = StatefulDataLoader(IDS, batch_sampler=Own())
    resumed.load_state_dict(state)
    assert sorted(first + take(resumed)) == list(range(NUM_SAMPLES))


@COMPLAINS
def test_batches_in_any_order_are_refused(folder: Path) -> None:
    for name in ("distributed", "lazy folder"):
        try:
            _, loader = makers(folder)[name](0, 1, 4, num_workers=2, in_order=False)
        except TypeError:
            pytest.skip("this version has no in_order")
        with pytest.raises(InvalidValueError, match="in_order=False must be True"):
            next(iter(loader))
