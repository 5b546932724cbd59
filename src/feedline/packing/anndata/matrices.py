"""The matrix of an AnnData file, sparse or dense, read and checked in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.packing.anndata.nodes import Node, Scan
from feedline.packing.rows import Rows, SourceFault
from feedline.store.lists import Lists
from feedline.store.zarr_store import may_lack_columns
from feedline.words import several

#: Columns are kept as int32, and rows of a block are counted at once.
MAX_COLUMNS = 2**31 - 1
_MAX_BLOCK_ROWS = 2**16

#: The columns of a sparse matrix, whose lists are as long as each other in each row.
SPARSE_PARTS = ("X/data", "X/indices")
Block = tuple[int, int, Rows]


class SparseMatrix:
    """A CSR matrix."""

    def __init__(self, node: Node, max_bytes: int) -> None:
        self.where = node.where
        self._max_bytes = max_bytes
        self._data = node.child("data").as_matrix(lambda start, end: False)
        self._indices = node.child("indices").as_matrix(
            lambda start, end: may_lack_columns(self.num_columns)
        )
        self._indptr = node.child("indptr")
        self.num_rows, self.num_columns = _check_shape(node, node.attribute("shape"))
        self.dtype = self._data.dtype
        self.num_values = self._check_arrays()
        #: How much memory all of it would take.
        self.num_bytes = self.num_values * (self.dtype.itemsize + 4) + self.num_rows * 8

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in blocks: start, end and rows."""
        data, indices, indptr = (
            Scan(node, self._max_bytes) for node in (self._data, self._indices, self._indptr)
        )
        max_values = max(1, self._max_bytes // (self.dtype.itemsize + 4))
        start, last = 0, 0
        while start < self.num_rows:
            stop = min(self.num_rows, start + _MAX_BLOCK_ROWS)
            edges = indptr.read(start, stop + 1)
            edges = self._check_edges(edges, last)
            count = int(np.searchsorted(edges, edges[0] + max_values, side="right")) - 1
            stop, edges = start + max(1, count), edges[: max(1, count) + 1]
            first, last = int(edges[0]), int(edges[-1])
            if last - first > max_values:
                raise InvalidValueError(
                    f"{self.where}: row {start} has {several(last - first, 'value')}, which must "
                    f"be at most {max_values}; use a larger memory_budget"
                )
            columns = self._check_columns(indices.read(first, last), start, stop)
            # What was read is held for longer than the next block, so it is not shared.
            arrays = data.read(first, last).copy(), columns
            parts = (Lists(array, edges - first) for array in arrays)
            yield start, stop, dict(zip(SPARSE_PARTS, parts, strict=True))
            start = stop

    def _check_arrays(self) -> int:
        shapes = self._data.shape, self._indices.shape, self._indptr.shape
        num_values = self._data.num_rows if len(self._data.shape) == 1 else -1
        if shapes != ((num_values,), (num_values,), (self.num_rows + 1,)):
            raise DamagedDataError(
                f"{self.where}: data, indices and indptr have shapes {shapes}, but data and "
                f"indices must have one length and indptr {self.num_rows + 1} values"
            )
        for node in (self._indices, self._indptr):
            if node.dtype.kind not in "iu":
                raise DamagedDataError(f"{node.where}: is of type {node.dtype}, not integers")
        ends = [int(self._indptr.read(at, at + 1)[0]) for at in (0, self.num_rows)]
        if ends != [0, num_values]:
            raise DamagedDataError(
                f"{self._indptr.where}: goes from {ends[0]} to {ends[1]} but must ascend from 0 to "
                f"{num_values}, the number of stored values"
            )
        return num_values

    def _check_edges(self, edges: NDArray[Any], last: int) -> NDArray[np.int64]:
        # Compared before they are converted, as unsigned numbers could wrap around.
        is_sound = edges[0] == last and edges[-1] <= self.num_values
        if not is_sound or (edges[1:] < edges[:-1]).any():
            raise DamagedDataError(
                f"{self._indptr.where}: does not ascend from 0 to {self.num_values}, the number of "
                "stored values"
            )
        edges = edges.astype(np.int64)
        most = np.diff(edges).max()
        if most > self.num_columns:
            raise DamagedDataError(
                f"{self.where}: a row has {several(most, 'value')} but there are "
                f"{several(self.num_columns, 'column')}"
            )
        return edges

    def _check_columns(self, indices: NDArray[Any], start: int, stop: int) -> NDArray[np.int32]:
        if indices.size and (indices.min() < 0 or indices.max() >= self.num_columns):
            raise DamagedDataError(
                f"{self._indices.where}: rows {start} to {stop} have columns from {indices.min()} "
                f"to {indices.max()}, which must be in [0, {self.num_columns})"
            )
        return indices.astype(np.int32)


class DenseMatrix:
    """A dense matrix."""

    def __init__(self, node: Node, max_bytes: int) -> None:
        self.where = node.where
        self._max_bytes = max_bytes
        self._array = node.as_matrix(lambda start, end: True)
        self.num_rows, self.num_columns = _check_shape(node, node.shape)
        self.dtype = node.dtype
        self.num_values = self.num_rows * self.num_columns
        self.row_bytes = self.num_columns * self.dtype.itemsize
        #: How much memory all of it would take.
        self.num_bytes = self.num_rows * self.row_bytes
        if self.row_bytes > max_bytes:
            raise InvalidValueError(
                f"{self.where}: a row has {self.row_bytes} bytes, which must be at most "
                f"{max_bytes}; use a larger memory_budget"
            )

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in blocks: start, end and rows."""
        array = Scan(self._array, self._max_bytes)
        step = min(_MAX_BLOCK_ROWS, max(1, self._max_bytes // self.row_bytes))
        for start in range(0, self.num_rows, step):
            stop = min(self.num_rows, start + step)
            yield start, stop, {"X": array.read(start, stop).copy()}


def open_matrix(root: Node, element: str, max_bytes: int) -> SparseMatrix | DenseMatrix:
    """Return the matrix that `element` names, such as `"X"` or `"layers/counts"`."""
    node: Node | None = root
    for part in element.split("/"):
        node = None if node is None else node.get(part)
    if node is None:
        raise SourceFault(
            f"{root.where}: has no {element!r:.80}; choose another, such as 'layers/counts', with "
            "element=…"
        )
    if node.encoding == "csc_matrix":
        place, _, name = element.partition("/")
        there = f"adata.{place}[{name!r}]" if place == "layers" else f"adata.{place}"
        raise SourceFault(
            f"{node.where}: is encoded as csc_matrix and must be csr_matrix or a dense array; "
            f"convert it with `{there} = {there}.tocsr()` and write the file again"
        )
    if node.is_group and node.encoding != "csr_matrix":
        raise SourceFault(
            f"{node.where}: is encoded as {node.encoding!r:.80} and must be csr_matrix or a dense "
            "array; write it with anndata 0.8 or newer, or choose another with element=…"
        )
    return SparseMatrix(node, max_bytes) if node.is_group else DenseMatrix(node, max_bytes)


def _check_shape(node: Node, shape: Any) -> tuple[int, int]:
    is_pair = isinstance(shape, list | tuple) and len(shape) == 2
    if not is_pair or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise DamagedDataError(
            f"{node.where}: has shape={shape!r:.80}, which must be a number of rows and columns"
        )
    if not 1 <= shape[1] <= MAX_COLUMNS:
        raise SourceFault(
            f"{node.where}: has {several(shape[1], 'column')}, which must be in [1, {MAX_COLUMNS}]"
        )
    return shape[0], shape[1]
