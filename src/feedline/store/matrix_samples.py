"""The rows of a matrix as samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.lazy import lazy
from feedline.store.columns import Arrays, Column, is_carried, make_out
from feedline.store.matrix import MatrixStore
from feedline.store.protocol import Store, check_rows

_CHUNK_BYTES = 2**22


class MatrixSamples(Store):
    """A matrix whose rows are samples: column `name`, and the columns of `obs`.

    Rows of a sparse matrix come dense. `feedline.torch.ChunkLoader` reads sparse batches.

    Args:
        matrix: What `open_anndata` returns, or another `MatrixStore`.
        name: The name of the column that holds the rows.
        chunk_rows: The number of rows in a chunk; by default about 4 MiB.

    Examples:
        >>> from feedline.store import MemoryMatrix
        >>> store = MatrixSamples(MemoryMatrix(np.arange(6).reshape(3, 2)), name="x")
        >>> store[1]
        {'x': array([2, 3])}
    """

    def __init__(
        self, matrix: MatrixStore, name: str = "X", *, chunk_rows: int | None = None
    ) -> None:
        self.matrix = matrix
        self.name = name
        for column, values in matrix.obs.items():
            if column == name or not is_carried(values.dtype):
                raise InvalidValueError(
                    f"obs={column!r} has type {values.dtype} but must be a column of numbers with "
                    f"another name than {name!r}; omit it, or use ChunkLoader"
                )
        if chunk_rows is None:
            chunk_rows = max(1, _CHUNK_BYTES // max(1, self.columns[name].row_bytes))
        self._chunk_rows = check_integer("chunk_rows", chunk_rows, 1)

    @property
    def num_samples(self) -> int:
        """The number of rows."""
        return int(self.matrix.shape[0])

    @lazy
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of rows in each chunk; only the last may have fewer."""
        starts = np.arange(0, self.num_samples, self._chunk_rows, dtype=np.int64)
        return np.minimum(self.num_samples - starts, self._chunk_rows)

    @lazy
    def columns(self) -> dict[str, Column]:
        """The rows, and the columns of `obs`."""
        dtype = _dtype_of(self.matrix)
        if not is_carried(dtype):
            raise InvalidValueError(
                f"the matrix {self.name!r} has values of type {dtype} and must have numbers or "
                "times; write it again with those, or open another one with element="
            )
        rows = Column(self.name, dtype.name, tuple(self.matrix.shape[1:]))
        others = {
            name: Column(name, values.dtype.name, tuple(values.shape[1:]))
            for name, values in self.matrix.obs.items()
        }
        return {self.name: rows, **others}

    @property
    def fingerprint(self) -> str:
        """A short string that changes when the data does."""
        return self.matrix.fingerprint

    def read(self, chunk: int, rows: Any, out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, column by column; written to `out` where it is given."""
        chunk = check_integer("chunk", chunk, 0, len(self.chunk_sizes) - 1)
        rows = check_rows(rows, int(self.chunk_sizes[chunk]), f"chunk {chunk} of the matrix")
        out = make_out(self.columns, len(rows), out)
        numbers = rows + chunk * self._chunk_rows
        # A request names each row once, in ascending order; so much of a chunk is decoded once.
        distinct, places = np.unique(numbers, return_inverse=True)
        found = self.matrix.fetch(distinct).take(places)
        if hasattr(found, "toarray"):
            found.toarray(out=out[self.name])
        else:
            np.copyto(out[self.name], found)
        for name, values in self.matrix.obs.items():
            np.take(values, numbers, axis=0, out=out[name])
        return out

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the row of the matrix."""
        return f"row {chunk * self._chunk_rows + row} of the matrix"

    def prefetch(self, chunk: int) -> None:
        """Do nothing: rows are decoded when they are read."""

    def close(self) -> None:
        """Do nothing: a matrix has no open files."""


def _dtype_of(matrix: MatrixStore) -> np.dtype[Any]:
    """Return the type of a matrix's values."""
    empty = matrix.fetch(np.empty(0, np.int64)).take(np.empty(0, np.int64))
    dtype: np.dtype[Any] = empty.dtype
    return dtype
