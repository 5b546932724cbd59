"""AnnData files, written by the anndata package, and collections read back by it."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp

KINDS = ("h5ad", "zarr2", "zarr3")


def make_sparse(num_rows: int, num_columns: int = 30, seed: int = 0) -> sp.csr_matrix:
    """A random matrix; every fifth row is empty."""
    rng = np.random.default_rng(seed)
    dense = rng.random((num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.3)
    dense[::5] = 0
    return sp.csr_matrix(dense.astype(np.float32))


def make_anndata(num_rows: int, seed: int = 0, matrix: Any = None) -> anndata.AnnData:
    """Cells with columns of all kinds, a dense layer, and raw counts of more variables."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(num_rows)
    labels = [None if n % 7 == 3 else f"type {n % 3 + seed}" for n in numbers]
    missing = np.where(numbers % 4 == 1, None, numbers)
    obs = pd.DataFrame(
        {
            "label": pd.Categorical(labels),
            "stage": pd.Categorical.from_codes(numbers % 2, ["young", "old"], ordered=True),
            "batch": pd.Categorical(numbers % 2 * 10 + seed),
            "note": [f"é {seed}-{n}" + "x" * (n % 5) for n in numbers],
            "size": rng.random(num_rows),
            "count": rng.integers(0, 1000, num_rows).astype(np.int32),
            "is_good": numbers % 3 == 0,
            "age": pd.array(missing, dtype="Int16"),
            "is_known": pd.array(
                [None if n % 5 == 2 else bool(n % 2) for n in numbers], dtype="boolean"
            ),
        },
        index=pd.Index([f"cell {seed}-{n}" for n in numbers], name="cell"),
    )
    matrix = make_sparse(num_rows, seed=seed) if matrix is None else matrix
    var = pd.DataFrame(index=[f"gene {n}" for n in range(matrix.shape[1])])
    data = anndata.AnnData(matrix, obs=obs, var=var)
    data.layers["dense"] = rng.random(matrix.shape).astype(np.float64)
    counts = make_sparse(num_rows, 40, seed)
    data.raw = anndata.AnnData(counts, var=pd.DataFrame(index=[f"raw {n}" for n in range(40)]))
    return data


def write(data: anndata.AnnData, path: Path, kind: str = "h5ad", **options: Any) -> Path:
    """Write cells as a file of that kind, and return its path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "h5ad":
            path = path.with_suffix(".h5ad")
            data.write_h5ad(path, **options)
        else:
            path = path.with_suffix(".zarr")
            with anndata.settings.override(zarr_write_format=int(kind[-1])):
                data.write_zarr(path, **options)
    return path


def write_cells(num_rows: int, path: Path) -> Path:
    """Write so many cells as an .h5ad file, faster than by making them anew each time."""
    path = path.with_suffix(".h5ad")
    path.write_bytes(_bytes_of_cells(num_rows))
    return path


@functools.cache
def _bytes_of_cells(num_rows: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write(make_anndata(num_rows), Path(folder) / "a").read_bytes()


def read(path: Path) -> anndata.AnnData:
    """Read a collection as its users do."""
    return anndata.read_zarr(path)


def assert_same_rows(found: anndata.AnnData, wanted: anndata.AnnData, matrix: Any = None) -> None:
    """Assert that matrix, columns and names are equal, types included."""
    matrix = wanted.X if matrix is None else matrix
    assert sp.issparse(found.X) == sp.issparse(matrix)
    assert found.X.dtype == matrix.dtype
    for dense in (found.X, matrix):
        assert dense.shape == matrix.shape
    np.testing.assert_array_equal(to_dense(found.X), to_dense(matrix))
    pd.testing.assert_frame_equal(found.obs, wanted.obs)


def to_dense(matrix: Any) -> Any:
    """The matrix as an array."""
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix)
