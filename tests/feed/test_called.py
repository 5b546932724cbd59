"""A StopIteration of the user's own code ends no pass: it is an error, and no batch is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import SampleError
from feedline.feed.map_batches import Fetching
from feedline.torch import DataLoader

BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]


def stop_at_two(batch: Any) -> Any:
    """Be a transform that raises StopIteration for one batch."""
    values = batch["x"].tolist()
    return batch if 2 not in values else next(iter(()))


def stop_in_list(samples: list[int]) -> torch.Tensor:
    """Be a collate function that raises StopIteration for one batch."""
    return torch.tensor(samples) if 2 not in samples else next(iter(()))


class Stopping:
    """A dataset that raises StopIteration for one sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index if index != 2 else next(iter(()))


def in_torch(store: feedline.Store, **options: Any) -> Any:
    return DataLoader(store, 2, transform=stop_at_two, **options)


LOADERS: dict[str, Callable[[feedline.Store], Any]] = {
    "numpy": lambda store: feedline.DataLoader(store, 2, transform=stop_at_two),
    "numpy, samples": lambda store: feedline.DataLoader(
        store, 2, transform=stop_at_two, sample_transform=lambda sample, rng: sample
    ),
    "torch": in_torch,
    "torch, workers": lambda store: in_torch(store, num_workers=2),
    "torch, device": lambda store: in_torch(store, device="cpu"),
    "torch, device, samples": lambda store: in_torch(
        store, device="cpu", sample_transform=lambda sample, rng: sample
    ),
    "collate_fn": lambda store: DataLoader(list(range(8)), 2, collate_fn=stop_in_list),
    "dataset": lambda store: DataLoader(Stopping(), 2),
    "dataset, workers": lambda store: DataLoader(Stopping(), 2, num_workers=2),
    "dataset, device": lambda store: DataLoader(Stopping(), 2, device="cpu"),
}


@pytest.mark.parametrize("way", LOADERS)
def test_a_stop_of_the_users_own_code_is_an_error_and_ends_nothing(
    way: str, tmp_path: Path
) -> None:
    feedline.pack({"x": np.arange(8)}, tmp_path / "data")
    loader = LOADERS[way](feedline.open(tmp_path / "data"))
    batches: Iterator[Any] = iter(loader)
    seen = []
    with pytest.raises(SampleError, match="raised StopIteration"):
        seen.extend(batches)
    assert [values_of(batch) for batch in seen] == BATCHES[:1]
    # As after any other error, the next one follows.
    assert [values_of(batch) for batch in batches] == BATCHES[2:]
    assert loader.state_dict()["epoch"] == 0
    loader.close()


def values_of(batch: Any) -> list[int]:
    values: list[int] = (batch["x"] if isinstance(batch, dict) else batch).tolist()
    return values


def test_a_stop_while_samples_are_fetched_is_an_error() -> None:
    with pytest.raises(SampleError, match="the dataset or collate_fn raised StopIteration"):
        Fetching(Stopping())([1, 2])
