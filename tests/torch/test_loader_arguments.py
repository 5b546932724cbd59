"""What a loader cannot do exactly it refuses, and what it is told counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import feedline
from feedline.errors import EmptyEpochError, InvalidValueError, TailError
from feedline.torch import (
    BucketBatchSampler,
    DataLoader,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
    MixtureSampler,
)
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


@pytest.mark.parametrize("num_samples", [7, 13])
@pytest.mark.parametrize("is_mixture", [False, True])
def test_a_sampler_of_another_number_of_samples_is_refused(
    num_samples: int, is_mixture: bool
) -> None:
    sampler: Any = DistributedSampler(Ids(num_samples), 1, 0)
    if is_mixture:
        sampler = MixtureSampler([0, 3, num_samples], [1, 1], 1, 0)
    with pytest.raises(InvalidValueError, match=f"sampler is for {num_samples} samples but .* 10"):
        DataLoader(Ids(10), 2, sampler=sampler)
    assert len(ids_of(DataLoader(Ids(num_samples), 2, sampler=sampler))) == num_samples


def test_a_bucket_sampler_may_leave_samples_out_but_not_name_others() -> None:
    sampler = BucketBatchSampler([1, 2, 3], batch_size=1, num_buckets=1, num_replicas=1, rank=0)
    assert len(ids_of(DataLoader(Ids(10), batch_sampler=sampler))) == 3
    with pytest.raises(InvalidValueError, match="the sampler is for 3 samples but the data has 2"):
        DataLoader(Ids(2), batch_sampler=sampler)


def test_a_batch_size_of_numpy_is_one_of_python() -> None:
    size: Any = np.int64(4)
    loader = DataLoader(Ids(10), size)
    assert (len(loader), type(loader.batch_size), len(ids_of(loader))) == (3, int, 10)
    with pytest.raises(InvalidValueError, match="batch_size=0 must be at least 1"):
        DataLoader(Ids(10), 0)


def test_a_shuffle_that_the_sampler_would_ignore_is_refused() -> None:
    sampler = DistributedSampler(Ids(10), 1, 0, shuffle=False)
    with pytest.raises(InvalidValueError, match="shuffle=True cannot be used, because the sampler"):
        DataLoader(Ids(10), 2, shuffle=True, sampler=sampler)
    assert len(DataLoader(Ids(10), 2, shuffle=False, sampler=sampler)) == 5


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


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        (None, "pass the data"),
        (5, "give it __len__ and __getitem__"),
        ({1, 2}, "give it __getitem__"),
        ("folder", r"feedline\.open\('folder'\)"),
        ({"x": np.arange(5)}, "pack the columns with feedline.pack"),
        (Ids, r"make one, such as Ids\(\)"),
    ],
)
@pytest.mark.parametrize("has_plan", [False, True])
def test_what_is_not_a_dataset_is_refused_with_what_to_do(
    dataset: Any, remedy: str, has_plan: bool
) -> None:
    sampler = feedline.Subset([0]) if has_plan else None
    with pytest.raises(InvalidValueError, match=rf"dataset=.* must be a store.*; .*{remedy}"):
        DataLoader(dataset, sampler=sampler)
    if dataset is not Ids and not isinstance(dataset, set | dict):
        own = DistributedSampler([0, 1], num_replicas=1, rank=0)
        with pytest.raises(InvalidValueError, match=r"dataset=.* must be a store"):
            DataLoader(dataset, sampler=own)


def test_a_mapping_of_numbers_to_samples_is_a_dataset() -> None:
    assert [batch.tolist() for batch in DataLoader({0: 5, 1: 6}, batch_size=2)] == [[5, 6]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_columns_of_uint64_come_as_they_are(tmp_path: Path, num_workers: int) -> None:
    large = np.arange(2**64 - 8, 2**64, dtype=np.uint64)
    feedline.pack({"one": large, "two": large.reshape(4, 2).repeat(2, 0)}, tmp_path / "data")
    store = feedline.open(tmp_path / "data")
    for sampler in (None, feedline.Subset(range(8)), DistributedSampler(store, shuffle=False)):
        loader = DataLoader(store, batch_size=8, sampler=sampler, num_workers=num_workers)
        (batch,) = loader
        assert {name: tensor.dtype for name, tensor in batch.items()} == {
            "one": torch.uint64,
            "two": torch.uint64,
        }
        assert batch["one"].numpy().tolist() == large.tolist()
