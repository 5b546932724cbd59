"""Our samplers in annbatch's loader, and annbatch's samplers in ours, on one store.

annbatch needs Python 3.12; `make test-annbatch` runs this file where there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

annbatch = pytest.importorskip(
    "annbatch", reason="annbatch needs Python 3.12; see make test-annbatch"
)
ad = pytest.importorskip("anndata")

import pandas as pd  # noqa: E402
import scipy.sparse as sp  # noqa: E402
import zarr  # noqa: E402
from annbatch import samplers as theirs  # noqa: E402

from feedline.chunks import (  # noqa: E402
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)
from feedline.feed import ChunkLoader  # noqa: E402
from feedline.store import open_anndata  # noqa: E402

NUM_ROWS, NUM_COLUMNS = 1003, 40
LABELS = np.repeat(["a", "b", "c"], [400, 300, 303])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AnnData group whose row i has the value i + 1 in column i % 40, and others."""
    rng = np.random.default_rng(0)
    dense = rng.random((NUM_ROWS, NUM_COLUMNS)) * (rng.random((NUM_ROWS, NUM_COLUMNS)) < 0.1)
    dense[:, 0] = np.arange(NUM_ROWS) + 1
    path = tmp_path_factory.mktemp("annbatch") / "cells.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    matrix = sp.csr_matrix(dense.astype(np.float32))
    chunks = {"chunks": (500,), "shards": (1500,)}
    obs = pd.DataFrame({"label": pd.Categorical(LABELS)}, index=[str(i) for i in range(NUM_ROWS)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ad.io.write_elem(group, "X", matrix, dataset_kwargs=chunks)
        ad.io.write_elem(group, "obs", obs)
    return path


def their_loader(folder: Path, sampler: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = annbatch.Loader(batch_sampler=sampler, preload_to_gpu=False)
        group = zarr.open_group(folder, mode="r")
        loader.add_dataset(ad.io.sparse_dataset(group["X"]))
    return loader


def rows_of(batch: Any) -> list[int]:
    """The rows of a batch of either loader, read off the values."""
    matrix = batch["X"] if isinstance(batch, dict) else batch.X
    dense = matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix.todense())
    return [int(value) - 1 for value in dense[:, 0]]


OURS: list[Callable[[], Any]] = [
    lambda: SequentialSampler(16, 4, 32),
    lambda: RandomSampler(16, 4, 32, rng=3),
    lambda: RandomSampler(16, 4, 32, rng=3, drop_last=True),
    lambda: RandomSampler(10, 6, 12, rng=3, mask=slice(100, 700)),
    lambda: RandomSampler(16, 4, 32, rng=3, replacement=True, num_samples=500),
    lambda: ClassSampler(16, 4, 32, classes=LABELS, num_samples=640),
    lambda: DistributedSampler(RandomSampler(16, 4, 32), dist_info=lambda: (1, 3)),
    lambda: DistributedSampler(
        RandomSampler(16, 4, 32), dist_info=lambda: (1, 3), shards="windows"
    ),
]


@pytest.mark.parametrize("make", OURS)
def test_our_samplers_give_the_same_batches_in_both_loaders(
    folder: Path, make: Callable[[], Any]
) -> None:
    ours = [rows_of(batch) for batch in ChunkLoader(open_anndata(folder), make())]
    loader = their_loader(folder, make())
    assert [rows_of(batch) for batch in loader] == ours
    assert len(loader) == len(ours)


def test_every_row_comes_once_in_annbatchs_loader(folder: Path) -> None:
    loader = their_loader(folder, RandomSampler(16, 4, 32, rng=1))
    epochs = [[row for batch in loader for row in rows_of(batch)] for _ in range(2)]
    assert all(sorted(rows) == list(range(NUM_ROWS)) for rows in epochs)
    assert epochs[0] != epochs[1]


def test_a_foreign_loader_says_what_it_delivered_and_another_goes_on(folder: Path) -> None:
    sampler = RandomSampler(16, 4, 32, rng=1)
    seen: list[int] = []
    for number, batch in enumerate(their_loader(folder, sampler)):
        seen += rows_of(batch)
        if number == 4:
            state = sampler.state_dict(num_batches=5)
            break
    resumed = RandomSampler(16, 4, 32, rng=1)
    resumed.load_state_dict(state)
    seen += [row for batch in their_loader(folder, resumed) for row in rows_of(batch)]
    assert sorted(seen) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: theirs.SequentialSampler(16, 4, 32),
        lambda: theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2)),
        lambda: theirs.RandomSampler(
            16, 4, 32, rng=np.random.default_rng(2), replacement=True, num_samples=500
        ),
        lambda: theirs.ClassSampler(
            16, 4, 32, classes=pd.Categorical(LABELS), num_samples=640, rng=np.random.default_rng(2)
        ),
        lambda: theirs.DistributedSampler(
            theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2)), dist_info=lambda: (1, 3)
        ),
    ],
)
def test_annbatchs_samplers_give_the_same_batches_in_both_loaders(
    folder: Path, make: Callable[[], Any]
) -> None:
    loader = ChunkLoader(open_anndata(folder), make())
    ours = [rows_of(batch) for batch in loader]
    assert ours == [rows_of(batch) for batch in their_loader(folder, make())]
    assert len(loader) == len(ours)


def test_our_wrapper_shares_out_annbatchs_sampler(folder: Path) -> None:
    inner = theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2))
    rows = []
    for rank in range(3):
        sampler = DistributedSampler(inner, dist_info=lambda rank=rank: (rank, 3))  # type: ignore[misc]
        rows.append([r for b in ChunkLoader(open_anndata(folder), sampler) for r in rows_of(b)])
    assert sorted(row for of_rank in rows for row in of_rank) == list(
        range(NUM_ROWS // 3 // 32 * 32 * 3)
    )


def test_our_samplers_work_in_torchs_workers_of_annbatchs_loader(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    for make in (
        lambda: SequentialSampler(16, 4, 32),
        lambda: RandomSampler(16, 4, 32, rng=1),
        lambda: RandomSampler(16, 4, 32, rng=1, drop_last=True),
    ):
        loader = torch.utils.data.DataLoader(
            their_loader(folder, make()), batch_size=None, num_workers=2
        )
        rows = [row for batch in loader for row in rows_of(batch)]
        assert len(rows) == len(set(rows))
