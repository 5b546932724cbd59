"""What trainers see of loaders: samplers that are divided over the ranks, and places in states."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

import feedline
from feedline.plan import SamplePlan, Shuffled
from feedline.torch import BatchPlanSampler, DataLoader, DistributedSampler, MixtureSampler
from feedline.torch.in_lightning import place_in

IDS = torch.arange(20)
PLAN = SamplePlan(order=Shuffled(num_samples=20, seed=1), tail="even")


def loaders(folder: Path) -> dict[str, DataLoader[Any]]:
    """One loader of each kind of sampler."""
    feedline.pack({"x": np.arange(20)}, folder / "store")
    return {
        "own": DataLoader(IDS, batch_size=4, shuffle=True),
        "sampler": DataLoader(IDS, batch_size=4, sampler=DistributedSampler(IDS)),
        "mixture": DataLoader(IDS, batch_size=4, sampler=MixtureSampler([0, 12, 20], [1.0, 1.0])),
        "plan": DataLoader(IDS, batch_size=4, sampler=PLAN),
        "batches": DataLoader(IDS, batch_sampler=BatchPlanSampler(PLAN, batch_size=4)),
        "store": DataLoader(feedline.open(folder / "store"), batch_size=4),
    }


def test_the_sampler_of_a_loader_is_divided_over_ranks_and_moves_it(tmp_path: Path) -> None:
    for name, loader in loaders(tmp_path).items():
        assert isinstance(loader.sampler, TorchSampler), name
        loader.sampler.set_epoch(3)
        assert loader.epoch == 3, name
        assert len(list(loader)) == len(loader), name


def test_states_say_where_they_were_saved() -> None:
    loader = DataLoader(IDS, batch_size=4)
    assert place_in(loader.state_dict()) == (0, False, False)
    batches = iter(loader)
    next(batches)
    assert place_in(loader.state_dict()).is_amid
    list(batches)
    assert place_in(loader.state_dict()).next_epoch == 1
    assert not place_in(loader.state_dict()).is_amid
    assert place_in({"step": 3}).is_amid


def test_a_sampler_may_serve_two_loaders() -> None:
    sampler = DistributedSampler(IDS, shuffle=False)
    first = DataLoader(IDS, batch_size=4, sampler=sampler)
    second = DataLoader(IDS, batch_size=5, sampler=sampler)
    assert (first.batch_size, second.batch_size) == (4, 5)
    assert len(list(second)) == 4


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_loaders_may_be_copied_with_their_batch_size(batch_size: int | None) -> None:
    loader = copy.copy(DataLoader(IDS, batch_size=batch_size))
    assert loader.batch_size == (1 if batch_size is None else batch_size)
