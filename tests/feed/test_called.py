"""Errors of the user's own code that are no `Exception` of a batch: nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import InvalidValueError, SampleError
from feedline.feed.map_batches import Fetching
from feedline.store import Column
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


class OwnStore(feedline.Store):
    """A store that returns new arrays and leaves `out` alone."""

    num_samples, chunk_sizes, fingerprint = 8, np.array([4, 4]), "own"

    def __init__(self, change: Callable[[Any], Any] = lambda found: found) -> None:
        self.change = change

    @property
    def columns(self) -> dict[str, Column]:
        return {"x": Column("x", "int64")}

    def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
        return {"x": self.change(rows + 4 * chunk)}

    def describe_row(self, chunk: int, row: int) -> str:
        return f"chunk {chunk}, row {row}"


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"num_workers": 1}, {"device": "cpu"}])
def test_what_a_store_returns_elsewhere_is_copied(options: dict[str, Any]) -> None:
    found = [value for batch in DataLoader(OwnStore(), 2, **options) for value in values_of(batch)]
    assert sorted(found) == list(range(8))
    assert options.get("shuffle") or found == list(range(8))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found[:1], "of shape"),
        (lambda found: found / 2, "float64"),
    ],
)
def test_what_a_store_returns_must_fit_its_columns(change: Any, says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        list(feedline.DataLoader(OwnStore(change), 2))


@pytest.mark.parametrize("loader_of", [feedline.DataLoader, DataLoader])
def test_a_stop_of_a_store_is_an_error(loader_of: Any) -> None:
    def stop(found: Any) -> Any:
        return found if found[0] < 4 else next(iter(()))

    seen = []
    with pytest.raises(SampleError, match=r"store.read raised StopIteration"):
        seen.extend(loader_of(OwnStore(stop), 2))
    assert [values_of(batch) for batch in seen] == BATCHES[:2]


class Interrupted:
    """Raises an interrupt once, for the batch with sample 2."""

    def __init__(self) -> None:
        self.has_come = False

    def __call__(self, value: Any) -> Any:
        if not self.has_come and 2 in value["x"]:
            self.has_come = True
            raise KeyboardInterrupt
        return value


@pytest.mark.parametrize(
    "loader_of",
    [
        lambda: feedline.DataLoader(OwnStore(), 2, transform=Interrupted()),
        lambda: feedline.DataLoader(
            OwnStore(), 2, transform=Interrupted(), sample_transform=lambda sample, rng: sample
        ),
        lambda: DataLoader(OwnStore(), 2, transform=Interrupted()),
        lambda: DataLoader(OwnStore(), 2, transform=Interrupted(), device="cpu"),
    ],
    ids=["numpy", "numpy, samples", "torch", "device"],
)
def test_an_iterator_that_was_interrupted_says_how_to_go_on(loader_of: Any) -> None:
    loader = loader_of()
    batches = iter(loader)
    seen = [values_of(next(batches))]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    for _ in range(2):
        with pytest.raises(InvalidValueError, match="was interrupted"):
            next(batches)
    loader.load_state_dict(loader.state_dict())
    assert seen + [values_of(batch) for batch in loader] == BATCHES
