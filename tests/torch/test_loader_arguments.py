"""What a loader cannot do exactly it refuses, and what it is told counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.utils.data

from feedline.errors import EmptyEpochError, InvalidValueError, TailError
from feedline.torch import DataLoader, DistributedSampler, FolderConfig, LazyFolderDataset
from lazy_data import write_folder
from loader_data import Ids


def ids_of(loader: DataLoader[Any]) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


def test_batches_in_any_order_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="in_order=False must be True"):
        DataLoader(Ids(40), batch_size=4, num_workers=2, in_order=False)
    assert len(ids_of(DataLoader(Ids(8), batch_size=4, in_order=True))) == 8


def test_a_generator_is_refused_and_not_ignored() -> None:
    with pytest.raises(InvalidValueError, match=r"generator cannot be used.*use seed="):
        DataLoader(Ids(40), batch_size=4, shuffle=True, generator=torch.Generator())


def test_an_epoch_without_a_batch_is_an_error_and_not_endless_empty_epochs() -> None:
    loader = DataLoader(Ids(5), batch_size=8, drop_last=True)
    for use in (lambda: len(loader), lambda: iter(loader), loader.num_batches_left):
        with pytest.raises(EmptyEpochError, match="num_batches=0 must be at least 1"):
            use()


@pytest.mark.parametrize(
    ("options", "num_padded", "num_dropped"),
    [
        ({}, 2, 0),
        ({"drop_last": True}, 0, 1),
        ({"tail": "pad"}, 2, 0),
        ({"tail": "even"}, 2, 0),
        ({"tail": "drop"}, 0, 1),
        ({"tail": "drop", "drop_last": True}, 0, 1),
    ],
)
def test_the_tail_is_named_on_the_loader(
    options: dict[str, Any], num_padded: int, num_dropped: int
) -> None:
    real: Counter[int] = Counter()
    total = 0
    for rank in range(3):
        loader = DataLoader(Ids(10), 1, num_replicas=3, rank=rank, with_mask=True, **options)
        for batch, is_real in loader:
            real.update(batch[is_real].tolist())
            total += len(batch)
    assert max(real.values()) == 1
    assert len(real) == 10 - num_dropped
    assert total - sum(real.values()) == num_padded


def test_an_exact_tail_names_the_numbers() -> None:
    loader = DataLoader(Ids(10), 1, num_replicas=3, rank=0, tail="exact")
    with pytest.raises(TailError, match="10"):
        len(loader)
    with pytest.raises(InvalidValueError, match="tail='most' must be one of"):
        DataLoader(Ids(10), tail="most")


def test_ranks_are_arguments_of_the_loader() -> None:
    parts = [ids_of(DataLoader(Ids(10), 2, num_replicas=2, rank=rank)) for rank in range(2)]
    assert parts == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    with pytest.raises(InvalidValueError, match="rank=2 must be in"):
        DataLoader(Ids(10), num_replicas=2, rank=2)


@pytest.mark.parametrize("given", [{"rank": 0}, {"num_replicas": 1}, {"tail": "drop"}])
def test_what_the_sampler_or_the_dataset_decides_is_refused(
    given: dict[str, Any], tmp_path: Any
) -> None:
    sampler = DistributedSampler(Ids(10), 1, 0)
    with pytest.raises(InvalidValueError, match="because the sampler decides it"):
        DataLoader(Ids(10), 2, sampler=sampler, **given)
    write_folder(tmp_path / "data", [5], "npy")
    dataset = LazyFolderDataset(tmp_path / "data", FolderConfig(batch_size=2))
    with pytest.raises(InvalidValueError, match="because the dataset decides it"):
        DataLoader(dataset, **given)
