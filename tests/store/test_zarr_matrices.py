"""Matrices in zarr: what is fetched equals what was written, whatever the chunks and shards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from feedline.chunks import RandomSampler
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    PlanMismatchError,
)
from feedline.feed import ChunkLoader
from feedline.store import CsrStore, DenseStore, MemoryMatrix, open_anndata

LAYOUTS: list[dict[str, Any]] = [
    {"chunks": (7,)},
    {"chunks": (64,), "shards": (192,)},
    {"chunks": (5000,)},
]


def sparse(num_rows: int, seed: int = 0) -> sp.csr_matrix:
    """A random matrix; every fifth row is empty."""
    rng = np.random.default_rng(seed)
    dense = rng.random((num_rows, 30)) * (rng.random((num_rows, 30)) < 0.2)
    dense[::5] = 0
    return sp.csr_matrix(dense.astype(np.float32))


def write_csr(path: Path, matrix: sp.csr_matrix, layout: dict[str, Any]) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.attrs.update({"encoding-type": "csr_matrix", "shape": list(matrix.shape)})
    for name in ("data", "indices"):
        values = getattr(matrix, name)
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, **layout)
        array[:] = values
    group.create_array("indptr", data=matrix.indptr)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_rows_are_those_written(tmp_path: Path, layout: dict[str, Any]) -> None:
    matrix = sparse(200)
    store = open_anndata(write_csr(tmp_path / "m.zarr", matrix, layout))
    assert isinstance(store, CsrStore)
    assert store.shape == (200, 30)
    rng = np.random.default_rng(1)
    for _ in range(20):
        rows = rng.integers(0, 200, rng.integers(1, 60))
        places = rng.permutation(len(rows))
        assert (store.fetch(rows).take(places) != matrix[rows[places]]).nnz == 0
    fetched = store.fetch([slice(190, 200), slice(3, 9), slice(50, 51)])
    expected = matrix[[*range(190, 200), *range(3, 9), 50]]
    assert fetched.num_rows == 17
    assert (fetched.take(np.arange(17)) != expected).nnz == 0


def test_rows_without_values_can_be_fetched_alone(tmp_path: Path) -> None:
    store = open_anndata(write_csr(tmp_path / "m.zarr", sparse(50), LAYOUTS[0]))
    fetched = store.fetch(np.array([0, 5, 45]))
    assert fetched.take(np.array([2, 0])).toarray().tolist() == [[0.0] * 30] * 2
    assert store.fetch([]).num_rows == 0


def test_several_matrices_are_one_below_the_other(tmp_path: Path) -> None:
    parts = [sparse(50, 1), sparse(3, 2), sparse(40, 3)]
    paths = [
        write_csr(tmp_path / f"{i}.zarr", part, LAYOUTS[i % 2]) for i, part in enumerate(parts)
    ]
    store, whole = open_anndata(paths), sp.vstack(parts).tocsr()
    rows = np.random.default_rng(0).permutation(93)
    assert (store.fetch(rows).take(np.arange(93)) != whole[rows]).nnz == 0


def test_batches_that_are_held_do_not_change(tmp_path: Path) -> None:
    matrix = sparse(300)
    store = open_anndata(write_csr(tmp_path / "m.zarr", matrix, LAYOUTS[1]))
    batches = list(ChunkLoader(store, RandomSampler(8, 4, 16, rng=1)))
    assert all((matrix[batch.rows] != batch.X).nnz == 0 for batch in batches)
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(300))


@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (16, 30)},
        {"chunks": (16, 7)},
        {"chunks": (8, 10), "shards": (32, 30)},
    ],
)
def test_dense_rows_are_those_written(tmp_path: Path, layout: dict[str, Any]) -> None:
    values = np.random.default_rng(0).random((100, 30)).astype(np.float32)
    array = zarr.create_array(tmp_path / "d.zarr", shape=(100, 30), dtype="f4", **layout)
    array[:] = values
    store = open_anndata([tmp_path / "d.zarr"] * 2)
    assert isinstance(store, DenseStore)
    both = np.vstack([values, values])
    rows = np.random.default_rng(1).integers(0, 200, 70)
    np.testing.assert_array_equal(store.fetch(rows).take(np.arange(70)), both[rows])


def test_obs_goes_with_the_rows(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    labels = pd.Categorical(np.repeat(["x", "y"], [30, 70]))
    obs = pd.DataFrame(
        {"label": labels, "size": np.arange(100.0)}, index=list(map(str, range(100)))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(sparse(100), obs=obs).write_zarr(tmp_path / "a.zarr")
    store = open_anndata(tmp_path / "a.zarr", obs=["label", "size"])
    for batch in ChunkLoader(store, RandomSampler(8, 2, 8), output="numpy"):
        assert isinstance(batch.X, np.ndarray)
        assert batch.obs["size"].tolist() == batch.rows.tolist()
        assert batch.obs["label"].tolist() == labels[batch.rows].tolist()
    with pytest.raises(DamagedDataError, match="has no column obs/colour"):
        open_anndata(tmp_path / "a.zarr", obs=["colour"])
    with pytest.raises(DamagedDataError, match="has no 'layers/raw'"):
        open_anndata(tmp_path / "a.zarr", element="layers/raw")


def test_a_state_goes_on_and_fits_this_data_only(tmp_path: Path) -> None:
    store = open_anndata(write_csr(tmp_path / "m.zarr", sparse(300), LAYOUTS[1]))
    loader = ChunkLoader(store, RandomSampler(8, 4, 16, rng=1))
    seen: list[int] = []
    for batch in loader:
        seen += batch.rows.tolist()
        if len(seen) == 80:
            break
    state = loader.state_dict()
    resumed = ChunkLoader(store, RandomSampler(8, 4, 16, rng=1), num_ahead=0)
    resumed.load_state_dict(state)
    seen += [row for batch in resumed for row in batch.rows.tolist()]
    assert sorted(seen) == list(range(300))
    other = ChunkLoader(MemoryMatrix(np.zeros((300, 30))), RandomSampler(8, 4, 16, rng=1))
    with pytest.raises(PlanMismatchError, match="the data has changed"):
        other.load_state_dict(state)


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        open_anndata(tmp_path / "nowhere.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedDataError, match="not a zarr group or array"):
        open_anndata(tmp_path / "empty")
    path = write_csr(tmp_path / "m.zarr", sparse(50), LAYOUTS[0])
    group = zarr.open_group(path, mode="r+")
    group.attrs["shape"] = [49, 30]
    with pytest.raises(DamagedDataError, match=r"indptr has shape \(51,\)"):
        open_anndata(path)
    group.attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(DamagedDataError, match="encoded as 'csc_matrix'"):
        open_anndata(path)


def test_requests_out_of_range_are_refused(tmp_path: Path) -> None:
    store = open_anndata(write_csr(tmp_path / "m.zarr", sparse(50), LAYOUTS[0]))
    for request in ([slice(40, 51)], np.array([50]), np.array([-1]), [slice(0, 9, 2)]):
        with pytest.raises(InvalidValueError, match="requests"):
            store.fetch(request)
    assert store.fetch([slice(3)]).num_rows == 3
