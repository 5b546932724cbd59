"""AnnData groups in zarr whose rows can be told apart, written without the anndata package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

NUM_COLUMNS = 13

CSR_LAYOUT: dict[str, Any] = {"chunks": (16,), "shards": (64,)}
DENSE_LAYOUT: dict[str, Any] = {"chunks": (4, 5), "shards": (12, 15)}


def dense_rows(num_rows: int) -> NDArray[np.float32]:
    """Rows that hold their own number, among zeros; every seventh row is empty."""
    rng = np.random.default_rng(num_rows)
    values = np.where(rng.random((num_rows, NUM_COLUMNS)) < 0.3, 1.0, 0.0)
    values *= np.arange(1, num_rows + 1)[:, None]
    values[::7] = 0
    return values.astype(np.float32)


def write_csr(group: zarr.Group, matrix: sp.csr_matrix, **layout: Any) -> zarr.Group:
    """Write a sparse matrix into a group, in AnnData's encoding."""
    group.attrs.update({"encoding-type": "csr_matrix", "shape": list(matrix.shape)})
    for name in ("data", "indices"):
        values = getattr(matrix, name)
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, **(layout or CSR_LAYOUT)
        )
        array[:] = values
    group.create_array("indptr", data=matrix.indptr)
    return group


def write_anndata(path: Path, num_rows: int, kind: str = "csr", **layout: Any) -> Path:
    """Write `dense_rows`, sparse or dense, and `obs` with each row's `number` and `label`."""
    root = zarr.open_group(path, mode="w", zarr_format=3)
    values = dense_rows(num_rows)
    if kind == "csr":
        write_csr(root.create_group("X"), sp.csr_matrix(values), **layout)
    else:
        array = root.create_array(
            "X", shape=values.shape, dtype=values.dtype, **(layout or DENSE_LAYOUT)
        )
        array[:] = values
    obs = root.create_group("obs")
    obs.create_array("number", data=np.arange(num_rows))
    label = obs.create_group("label", attributes={"encoding-type": "categorical"})
    label.create_array("codes", data=(np.arange(num_rows) % 3).astype(np.int8))
    label.create_array("categories", data=np.array([10, 20, 30]))
    return path


def array_of(matrix: Any) -> NDArray[Any]:
    """Rows as an array, sparse or not."""
    return matrix.toarray() if sp.issparse(matrix) else matrix
