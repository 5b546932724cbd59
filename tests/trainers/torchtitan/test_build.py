"""What `build_dataloader` builds: endless batches, a state for checkpoints, and what it refuses."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import IterableDataset

import feedline
from feedline.errors import InvalidValueError
from feedline.steps import StepScheduler
from feedline.torch import DataLoader
from feedline.trainers.torchtitan import Endless, build_dataloader

NUM_SAMPLES = 23
IDS = torch.arange(NUM_SAMPLES)


def built(rank: int = 0, world_size: int = 1, **options: Any) -> Any:
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, **options}
    return build_dataloader(IDS, rank, world_size, **arguments)


def test_epochs_follow_each_other_without_end_and_in_new_orders() -> None:
    loader = built()
    batches = [batch.tolist() for batch in islice(loader, 3 * len(loader))]
    epochs = [list(chain.from_iterable(batches[at : at + 6])) for at in (0, 6, 12)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(NUM_SAMPLES))] * 3
    assert len(set(map(tuple, epochs))) == 3
    assert (loader.epoch, loader.next_epoch) == (2, 3)


@pytest.mark.parametrize("num_batches", [0, 1, 5, 6, 7, 11, 12, 13])
def test_it_resumes_after_any_batch_on_the_next_one(num_batches: int) -> None:
    whole = [batch.tolist() for batch in islice(built(), 20)]
    loader = built()
    first = [batch.tolist() for batch in islice(loader, num_batches)]
    resumed = built(num_workers=1 if num_batches == 7 else 0)
    resumed.load_state_dict(loader.state_dict())
    rest = [batch.tolist() for batch in islice(resumed, 20 - num_batches)]
    assert first + rest == whole


def test_it_resumes_on_other_ranks() -> None:
    found: list[int] = []
    for rank in range(2):
        loader = built(rank, 2)
        found += [one for batch in islice(loader, 2) for one in batch.tolist()]
    for rank in range(3):
        resumed = built(rank, 3, endless=False)
        resumed.load_state_dict(loader.state_dict())
        for batch in resumed:
            marks = resumed.delivered.is_real
            found += batch.tolist() if marks is None else batch[torch.from_numpy(marks)].tolist()
    assert sorted(found) == list(range(NUM_SAMPLES))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_it_is_a_stateful_of_checkpoints(tmp_path: Path) -> None:
    loader = built()
    assert isinstance(loader, Stateful)
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    expected = next(batches).tolist()
    resumed = built()
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert next(iter(resumed)).tolist() == expected


def test_a_pass_of_one_epoch_ends() -> None:
    assert [len(list(built(endless=False))) for _ in range(2)] == [6, 6]


def test_a_store_with_a_transform_gives_inputs_and_labels(tmp_path: Path) -> None:
    tokens = np.arange(40).reshape(10, 4)
    feedline.pack({"tokens": tokens}, tmp_path / "data")

    def split(batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"input": batch["tokens"][:, :-1]}, batch["tokens"][:, 1:]

    store = feedline.open(tmp_path / "data")
    loader = build_dataloader(store, 0, 1, batch_size=2, transform=split, shuffle=True)
    inputs, labels = next(iter(loader))
    assert torch.equal(inputs["input"] + 1, labels)


def test_a_clock_counts_its_steps() -> None:
    clock = StepScheduler(8, 4, dataloader=built(endless=False), num_epochs=2, dp_size=1)
    assert sum(1 for _ in clock.epochs for _ in clock) == 6


class Stream(IterableDataset[int]):
    """An iterable with a state."""

    def __iter__(self) -> Any:
        return iter(range(4))

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_what_has_a_state_for_each_rank_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must have the same state on every rank"):
        build_dataloader(Stream(), 0, 1, batch_size=2)
    with pytest.raises(InvalidValueError, match="must have the same state on every rank"):
        Endless([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ((2, 2), r"dp_rank=2 must be in \[0, 1\]"),
        ((0, 0), "dp_world_size=0 must be"),
        ((None, 2), "must both be given"),
        ((0, None), "must both be given"),
    ],
)
def test_ranks_that_cannot_be_are_refused(ranks: tuple[Any, Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        build_dataloader(IDS, *ranks, batch_size=2)


def test_an_endless_loader_wraps_a_loader_of_the_users_own() -> None:
    loader = Endless(DataLoader(IDS, 4, shuffle=True, seed=5))
    assert next(iter(loader)).tolist() == next(iter(built())).tolist()
    assert "DataLoader" in repr(loader)
