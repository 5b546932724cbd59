"""A matrix in memory as a store: for small data, and beside stores on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.matrix import Request, rows_of_request

__all__ = ["MemoryMatrix"]


class MemoryMatrix:
    """A numpy array or a scipy CSR matrix, and values that go with its rows.

    Examples:
        >>> rows = MemoryMatrix(np.arange(6).reshape(3, 2)).fetch([slice(1, 3)])
        >>> rows.take(np.array([1])).tolist()
        [[4, 5]]
    """

    def __init__(self, matrix: Any, obs: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._matrix = matrix
        self.obs = dict(obs or {})

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        num_rows, num_columns = self._matrix.shape
        return num_rows, num_columns

    @property
    def fingerprint(self) -> str:
        """A digest of all values."""
        digest = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        is_sparse = hasattr(self._matrix, "indptr")
        names = ("data", "indices", "indptr") if is_sparse else ()
        arrays = [getattr(self._matrix, name) for name in names] or [self._matrix]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def fetch(self, request: Request) -> _Rows:
        """Return the rows of a load request."""
        return _Rows(self._matrix, rows_of_request(request, self.shape[0]))


class _Rows:
    def __init__(self, matrix: Any, rows: NDArray[np.int64]) -> None:
        self._matrix = matrix
        self._rows = rows
        self.num_rows = len(rows)

    def take(self, places: NDArray[np.int64]) -> Any:
        return self._matrix[self._rows[places]]
