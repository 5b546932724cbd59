"""Sparse matrices in zarr, in AnnData's encoding: `data`, `indices` and `indptr`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.matrix import Request, check_alike, rows_of_request
from feedline.store.pool import GrowingPool
from feedline.store.zarr_reading import read_runs, runs_of

__all__ = ["CsrPart", "CsrStore"]

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CsrPart:
    """One matrix on disk. Where its rows begin is held in memory, 8 bytes a row."""

    name: str
    data: Any
    indices: Any
    indptr: Indices
    num_columns: int

    def __post_init__(self) -> None:
        lengths = {len(self.data.shape), len(self.indices.shape)}
        if lengths != {1} or self.data.shape != self.indices.shape:
            raise DamagedDataError(f"{self.name}: data and indices must be lists of one length")
        is_sound = (
            len(self.indptr) > 0 and self.indptr[0] == 0 and (np.diff(self.indptr) >= 0).all()
        )
        if not is_sound or self.indptr[-1] != self.data.shape[0]:
            raise DamagedDataError(
                f"{self.name}: indptr must ascend from 0 to {self.data.shape[0]}, the number of "
                "stored values"
            )

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    @property
    def chunk_size(self) -> int:
        """The number of values that are decoded together."""
        return int(self.data.chunks[0])


class CsrStore:
    """Several sparse matrices as one, one below the other.

    Args:
        parts: The matrices, with as many columns each.
        obs: A value for each row, by name.
        fingerprint: What stands for the data in checkpoints.
    """

    def __init__(
        self, parts: Sequence[CsrPart], obs: Mapping[str, NDArray[Any]], fingerprint: str
    ) -> None:
        self._parts = check_alike(
            parts, lambda part: (part.num_columns, part.data.dtype, part.indices.dtype)
        )
        self.obs = dict(obs)
        self.fingerprint = fingerprint
        self._edges = np.cumsum([0, *(part.num_rows for part in parts)])
        self._data_memory = GrowingPool()
        self._indices_memory = GrowingPool()

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return int(self._edges[-1]), self._parts[0].num_columns

    def fetch(self, request: Request) -> CsrRows:
        """Read the rows of a load request; each inner chunk is decoded once."""
        rows = rows_of_request(request, self.shape[0])
        distinct, places = np.unique(rows, return_inverse=True)
        which = np.searchsorted(self._edges, distinct, side="right") - 1
        row_starts = np.empty(len(distinct), np.int64)
        row_ends = np.empty(len(distinct), np.int64)
        reads = []
        num_values = 0
        for number in sorted(set(which.tolist())):
            part = self._parts[number]
            chosen = which == number
            local = distinct[chosen] - self._edges[number]
            first, end = part.indptr[local], part.indptr[local + 1]
            runs = runs_of(first, end, part.chunk_size, int(part.indptr[-1]))
            # A row without values may lie outside of all runs, and there may be none.
            filled = end > first
            begins = np.full(len(first), num_values)
            begins[filled] += runs.places_of(first[filled])
            row_starts[chosen], row_ends[chosen] = begins, begins + end - first
            reads.append((part, runs, num_values))
            num_values += runs.num_entries
        data = self._data_memory.array((num_values,), self._parts[0].data.dtype)
        indices = self._indices_memory.array((num_values,), self._parts[0].indices.dtype)
        read_runs(
            [
                (array, runs, buffer[at : at + runs.num_entries])
                for part, runs, at in reads
                for array, buffer in ((part.data, data), (part.indices, indices))
            ]
        )
        return CsrRows(data, indices, row_starts, row_ends, places, self.shape[1])


class CsrRows:
    """Sparse rows in memory, somewhere in buffers of whole chunks."""

    def __init__(
        self,
        data: NDArray[Any],
        indices: NDArray[Any],
        row_starts: Indices,
        row_ends: Indices,
        places: Indices,
        num_columns: int,
    ) -> None:
        from scipy.sparse import csr_matrix

        self.num_rows = len(places)
        # What lies between two rows counts as a row that nobody asks for: rows 2, 4, 6, … are ours,
        # and row 0 is empty.
        filled = row_ends > row_starts
        fits = len(data) < np.iinfo(indices.dtype).max
        edges = np.zeros(2 * int(filled.sum()) + 2, indices.dtype if fits else np.int64)
        edges[2::2], edges[3::2] = row_starts[filled], row_ends[filled]
        self._numbers = np.where(filled, 2 * np.cumsum(filled), 0)[places]
        shape = (len(edges) - 1, num_columns)
        self._matrix = csr_matrix((data, indices, edges), shape=shape, copy=False)

    def take(self, places: Indices) -> Any:
        """Return the rows at these places as a scipy CSR matrix."""
        return self._matrix[self._numbers[places]]
