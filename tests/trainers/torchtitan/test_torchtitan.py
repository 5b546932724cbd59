"""What torchtitan asks of a loader, and what its own loader does with Feedline's datasets."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader

import feedline
from feedline.torch import FolderConfig, LazyFolderDataset
from feedline.trainers.torchtitan import build_dataloader

VERSION = f"torchtitan {version('torchtitan')}"
NUM_SAMPLES = 30

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def test_a_loader_has_all_that_torchtitan_asks_of_one() -> None:
    loader = build_dataloader(torch.arange(8), 0, 1)
    asked = {*BaseDataLoader.__abstractmethods__, "state_dict", "load_state_dict"}
    assert asked == {"__iter__", "state_dict", "load_state_dict"}, VERSION
    assert all(callable(getattr(loader, name)) for name in asked)
    assert isinstance(loader, Stateful)


def test_the_checkpoint_manager_has_the_settings_that_the_stories_use() -> None:
    config = getattr(CheckpointManager, "Config", None)
    if config is None:
        from torchtitan.config import Checkpoint as config  # before 0.3
    known = {field.name for field in fields(config)}
    assert {"enable", "folder", "async_mode", "interval"} <= known, VERSION


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ids = np.arange(NUM_SAMPLES).reshape(-1, 1)
    feedline.pack({"sequences/id": ids, "targets/id": ids}, tmp_path / "data", chunk_samples=7)
    return tmp_path / "data"


def their_loader(folder: Path, rank: int, world_size: int) -> ParallelAwareDataloader:
    config = FolderConfig(batch_size=4, seed=5)
    dataset = LazyFolderDataset(folder, config, num_replicas=world_size, rank=rank)
    return ParallelAwareDataloader(dataset, rank, world_size, batch_size=None, num_workers=1)


def test_their_loader_resumes_a_folder_with_workers_on_the_same_ranks(folder: Path) -> None:
    found = []
    for rank in range(2):
        loader = their_loader(folder, rank, 2)
        batches = iter(loader)
        found += [one for _ in range(2) for one in next(batches)[0]["id"].flatten().tolist()]
        resumed = their_loader(folder, rank, 2)
        resumed.load_state_dict(loader.state_dict())
        found += [one for batch in resumed for one in batch[0]["id"].flatten().tolist()]
    assert sorted(found) == list(range(NUM_SAMPLES))


def test_their_loader_refuses_other_ranks(folder: Path) -> None:
    loader = their_loader(folder, 0, 2)
    next(iter(loader))
    with pytest.raises(AssertionError, match="dp_degree is inconsistent"):
        their_loader(folder, 0, 3).load_state_dict(loader.state_dict())
