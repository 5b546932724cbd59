"""Feedline's own StatefulDataLoader, and how loaders resume from the states of torchdata's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchdata.stateful_dataloader as theirs
from torch.utils.data import Dataset, SequentialSampler

import feedline
from feedline.errors import FeedlineError, InvalidValueError
from feedline.plan import SamplePlan, Shuffled
from feedline.torch import (
    BatchPlanSampler,
    DataLoader,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
)
from feedline.trainers.torchdata import StatefulDataLoader, resume

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

NUM_SAMPLES = 46
IDS = torch.arange(NUM_SAMPLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed")
    ids = np.arange(NUM_SAMPLES).reshape(-1, 1)
    feedline.pack({"sequences/id": ids, "targets/id": ids}, path / "data", chunk_samples=7)
    return path / "data"


def arguments(kind: str, folder: Path, rank: int, world_size: int, batch_size: int) -> Any:
    """Return the dataset and the arguments of a loader of one rank."""
    ranks = {"num_replicas": world_size, "rank": rank}
    if kind == "folder":
        config = FolderConfig(batch_size=batch_size, seed=5)
        return LazyFolderDataset(folder, config, **ranks), {"batch_size": None}
    if kind == "batches":
        plan = SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=5), tail="even")
        return IDS, {"batch_sampler": BatchPlanSampler(plan, batch_size=batch_size, **ranks)}
    sampler = DistributedSampler(IDS, seed=5, drop_last=False, **ranks)
    return IDS, {"batch_size": batch_size, "sampler": sampler}


def ids_of(batch: Any) -> list[int]:
    found = batch if isinstance(batch, torch.Tensor) else batch[0]["id"]
    return found.flatten().tolist()


def real_ids(loader: Any) -> list[int]:
    """Return the real samples of all batches that are left."""
    found: list[int] = []
    for batch in loader:
        ids, marks = ids_of(batch), loader.delivered.is_real
        found += ids if marks is None else np.asarray(ids)[marks].tolist()
    return found


@pytest.mark.parametrize("kind", ["samples", "batches", "folder"])
@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_their_loader_resumes_on_other_ranks_workers_and_batches(
    kind: str, interval: int, num_workers: int, folder: Path
) -> None:
    found: list[int] = []
    for rank in range(2):
        dataset, options = arguments(kind, folder, rank, 2, 3)
        loader = theirs.StatefulDataLoader(
            dataset, num_workers=num_workers, snapshot_every_n_steps=interval, **options
        )
        batches = iter(loader)
        found += [one for _ in range(5) for one in ids_of(next(batches))]
        state = loader.state_dict()
    for rank in range(3):
        dataset, options = arguments(kind, folder, rank, 3, 4)
        if rank == 0:
            ours: Any = StatefulDataLoader(dataset, num_workers=2 - num_workers, **options)
            ours.load_state_dict(state)
        else:
            ours = DataLoader(dataset, **options)
            resume(ours, state)
        found += real_ids(ours)
    assert sorted(found) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("kind", ["samples", "folder"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_of_a_whole_epoch_begins_the_next(
    kind: str, num_workers: int, folder: Path
) -> None:
    dataset, options = arguments(kind, folder, 0, 1, 4)
    loader = theirs.StatefulDataLoader(dataset, num_workers=num_workers, **options)
    list(loader)
    dataset, options = arguments(kind, folder, 0, 1, 4)
    ours = DataLoader(dataset, **options)
    resume(ours, loader.state_dict())
    assert sorted(real_ids(ours)) == list(range(NUM_SAMPLES))
    assert ours.epoch == 1


def test_the_own_loader_is_one_of_theirs_and_exact_with_any_snapshots() -> None:
    def made(num_workers: int) -> StatefulDataLoader:
        return StatefulDataLoader(
            IDS, 4, shuffle=True, seed=5, num_workers=num_workers, snapshot_every_n_steps=100
        )

    loader = made(2)
    assert isinstance(loader, theirs.StatefulDataLoader)
    assert loader.snapshot_every_n_steps == 100
    batches = iter(loader)
    first = [one for _ in range(5) for one in next(batches).tolist()]
    resumed = made(0)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(first + real_ids(resumed)) == list(range(NUM_SAMPLES))
    # An empty state is what a loader without one saves; theirs ignores it too.
    resumed.load_state_dict({})
    assert resumed.epoch == 0


class Counting(Dataset[int]):
    """A dataset with a state of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_a_dataset_with_a_state_is_refused_at_construction() -> None:
    with pytest.raises(InvalidValueError, match="dataset=Counting has a state of its own"):
        StatefulDataLoader(Counting(), 4)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_of_a_dataset_is_not_lost_silently(num_workers: int) -> None:
    sampler = DistributedSampler(IDS, num_replicas=1, rank=0)
    loader = theirs.StatefulDataLoader(Counting(), 4, sampler=sampler, num_workers=num_workers)
    next(iter(loader))
    with pytest.raises(FeedlineError, match="also has one of the dataset itself"):
        resume(DataLoader(IDS, 4, shuffle=True), loader.state_dict())


def test_states_that_are_not_of_their_loader_are_refused() -> None:
    ours = DataLoader(IDS, 4, shuffle=True)
    with pytest.raises(FeedlineError, match="must be what state_dict"):
        resume(ours, {"epoch": 3})
    loader = theirs.StatefulDataLoader(IDS, 4, sampler=SequentialSampler(IDS))
    next(iter(loader))
    with pytest.raises(FeedlineError, match="has no cursor"):
        resume(ours, loader.state_dict())


def test_what_is_not_exact_is_refused_at_construction() -> None:
    with pytest.raises(InvalidValueError, match="in_order=False must be True"):
        StatefulDataLoader(IDS, 4, in_order=False)
    with pytest.raises(InvalidValueError, match="sampler=SequentialSampler must be"):
        StatefulDataLoader(IDS, 4, sampler=SequentialSampler(IDS))
