"""Matrices as tensors: batches do not depend on workers, and the state is what was received."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.distributed as dist
import zarr
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from feedline.chunks import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from feedline.errors import InvalidValueError
from feedline.feed import ChunkLoader as PlainLoader
from feedline.store import MemoryMatrix, open_anndata
from feedline.torch import ChunkLoader

NUM_ROWS = 203

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def matrix() -> sp.csr_matrix:
    dense = np.random.default_rng(0).random((NUM_ROWS, 12)).astype(np.float32)
    dense[dense < 0.6] = 0
    dense[::7] = 0
    return sp.csr_matrix(dense)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, matrix: sp.csr_matrix) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "m.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.attrs.update({"encoding-type": "csr_matrix", "shape": list(matrix.shape)})
    for name in ("data", "indices"):
        values = getattr(matrix, name)
        group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=(50,), shards=(200,)
        )
        group[name][:] = values
    group.create_array("indptr", data=matrix.indptr)
    return path


SAMPLERS: dict[str, Any] = {
    "random": lambda: RandomSampler(8, 4, 16, rng=3),
    "random, dropping": lambda: RandomSampler(8, 4, 16, rng=3, drop_last=True),
    "replacement": lambda: RandomSampler(8, 4, 16, rng=3, replacement=True, num_samples=150),
    "sequential": lambda: SequentialSampler(8, 4, 16),
    "classes": lambda: ClassSampler(
        8, 4, 16, classes=np.repeat([0, 1], [100, 103]), num_samples=160
    ),
    "windows": lambda: DistributedSampler(
        RandomSampler(8, 4, 16, rng=3), dist_info=lambda: (1, 2), shards="windows"
    ),
}


def rows_of(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


@pytest.mark.parametrize(
    ("name", "num_workers"), [("random", 1), *((name, 3) for name in SAMPLERS)]
)
def test_batches_do_not_depend_on_workers(
    path: Path, matrix: sp.csr_matrix, name: str, num_workers: int
) -> None:
    store = open_anndata(path)
    expected = rows_of(PlainLoader(store, SAMPLERS[name]()))
    loader = ChunkLoader(store, SAMPLERS[name](), num_workers=num_workers)
    batches = list(loader)
    assert [batch.rows.tolist() for batch in batches] == expected
    assert len(loader) == len(batches)
    for batch in batches:
        np.testing.assert_array_equal(
            batch.X.to_dense().numpy(), matrix[batch.rows.numpy()].toarray()
        )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sparse_rows_are_sparse_tensors_and_dense_ones_on_request(
    path: Path, matrix: sp.csr_matrix, num_workers: int
) -> None:
    store = open_anndata(path)
    for output, layout in (("stored", torch.sparse_csr), ("dense", torch.strided)):
        loader = ChunkLoader(
            store, SequentialSampler(8, 4, 16), output=output, num_workers=num_workers
        )
        batch = next(iter(loader))
        assert batch.X.layout == layout
        np.testing.assert_array_equal(batch.X.to_dense().numpy(), matrix[:16].toarray())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_obs_comes_along_and_names_stay_as_they_are(num_workers: int) -> None:
    obs = {
        "size": np.arange(50.0),
        "name": np.array([f"cell {i}" for i in range(50)], dtype=object),
    }
    store = MemoryMatrix(np.arange(100).reshape(50, 2), obs)
    for batch in ChunkLoader(store, RandomSampler(5, 2, 10), num_workers=num_workers):
        assert batch.obs["size"].tolist() == batch.rows.tolist()
        assert batch.obs["name"].tolist() == [f"cell {i}" for i in batch.rows.tolist()]
        assert batch.X[:, 0].tolist() == [2 * row for row in batch.rows.tolist()]


@pytest.mark.parametrize(
    ("workers", "num_before"),
    [((0, 3), 5), ((3, 0), 0), ((3, 0), 1), ((2, 1), 5), ((2, 1), 13)],
)
def test_state_counts_what_the_loop_received(
    path: Path, workers: tuple[int, int], num_before: int
) -> None:
    store = open_anndata(path)
    expected = rows_of(PlainLoader(store, RandomSampler(8, 4, 16, rng=3)))
    loader = ChunkLoader(store, RandomSampler(8, 4, 16, rng=3), num_workers=workers[0], num_ahead=2)
    batches = iter(loader)
    seen = [next(batches).rows.tolist() for _ in range(num_before)]
    resumed = ChunkLoader(store, RandomSampler(8, 4, 16, rng=3), num_workers=workers[1])
    resumed.load_state_dict(loader.state_dict())
    if num_before == len(expected):
        assert rows_of(resumed) != expected  # the next epoch
    else:
        assert seen + rows_of(resumed) == expected


@pytest.mark.parametrize(
    ("workers", "num_ahead"),
    [((0, False), 1), ((1, False), 20), ((2, False), 1), ((2, True), 1), ((2, True), 20)],
)
def test_a_pass_that_is_broken_off_is_begun_again(
    path: Path, workers: tuple[int, bool], num_ahead: int
) -> None:
    store = open_anndata(path)
    expected = rows_of(PlainLoader(store, RandomSampler(8, 4, 16, rng=3)))
    loader = ChunkLoader(
        store,
        RandomSampler(8, 4, 16, rng=3),
        num_workers=workers[0],
        persistent_workers=workers[1],
        num_ahead=num_ahead,
    )
    for num_taken in (1, 6):
        # The iterator is dropped, and with it what was read ahead.
        assert rows_of(islice(loader, num_taken)) == expected[:num_taken]
        assert (loader.epoch, loader.num_batches_left()) == (0, len(expected))
    assert rows_of(loader) == expected
    assert rows_of(loader) != expected
    assert loader.epoch == 1


def test_workers_that_stay_serve_one_pass_at_a_time(path: Path) -> None:
    loader = ChunkLoader(
        open_anndata(path), RandomSampler(8, 4, 16), num_workers=1, persistent_workers=True
    )
    first = iter(loader)
    for _ in range(2):
        next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(InvalidValueError, match="a later one has begun"):
        list(first)


def test_a_sampler_that_is_not_shared_is_refused_in_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryMatrix(np.zeros((20, 2)))
    loader = ChunkLoader(store, SequentialSampler(2, 2, 4))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    for use in (iter, len, ChunkLoader.state_dict):
        with pytest.raises(InvalidValueError, match=r"world_size=2 must be 1 .*DistributedSampler"):
            use(loader)
    alone = ChunkLoader(store, SequentialSampler(2, 2, 4), num_replicas=1, rank=0)
    assert len(list(alone)) == 5
    shared = DistributedSampler(SequentialSampler(2, 2, 4), dist_info="torch")
    assert (shared.rank, shared.world_size) == (1, 2)
    assert len(ChunkLoader(store, shared)) == 2


def test_persistent_workers_go_from_epoch_to_epoch(path: Path) -> None:
    store = open_anndata(path)
    plain = PlainLoader(store, RandomSampler(8, 4, 16, rng=3))
    expected = [rows_of(plain) for _ in range(3)]
    sampler = RandomSampler(8, 4, 16, rng=3)
    loader = ChunkLoader(store, sampler, num_workers=2, persistent_workers=True)
    assert [rows_of(loader) for _ in range(3)] == expected
    assert expected[0] != expected[1]


@pytest.mark.slow
def test_spawned_workers_read_too(path: Path) -> None:
    store = open_anndata(path)
    next(iter(ChunkLoader(store, SequentialSampler(8, 4, 16))))
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = ChunkLoader(store, SequentialSampler(8, 4, 16), **options)
    assert sorted(row for rows in rows_of(loader) for row in rows) == list(range(NUM_ROWS))


class _Iterable(IterableDataset[list[int]]):
    """A loader inside the workers of a plain DataLoader."""

    def __init__(self, loader: PlainLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.rows.tolist() for batch in self._loader)


@pytest.mark.parametrize(
    ("name", "num_workers"), [("random", 0), ("random", 2), *((name, 3) for name in SAMPLERS)]
)
def test_a_sampler_inside_of_workers_shares_its_requests_out(
    path: Path, name: str, num_workers: int
) -> None:
    store = open_anndata(path)
    expected = rows_of(PlainLoader(store, SAMPLERS[name]()))
    inside = _Iterable(PlainLoader(store, SAMPLERS[name]()))
    found = list(TorchDataLoader(inside, batch_size=None, num_workers=num_workers))
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))


def test_bad_arguments_are_refused() -> None:
    store = MemoryMatrix(np.zeros((10, 2)))
    with pytest.raises(InvalidValueError, match="output='sparse'"):
        ChunkLoader(store, SequentialSampler(2, 2, 4), output="sparse")
    with pytest.raises(InvalidValueError, match="num_workers=-1"):
        ChunkLoader(store, SequentialSampler(2, 2, 4), num_workers=-1)
