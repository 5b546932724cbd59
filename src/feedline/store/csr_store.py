"""Sparse matrices in zarr, in AnnData's encoding: `data`, `indices` and `indptr`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.matrix import Request, check_alike, rows_by_part, rows_of_request
from feedline.store.pool import GrowingPool
from feedline.store.runs import copy_runs, runs_of
from feedline.store.zarr_runs import ZarrArray, read_runs

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CsrPart:
    """One matrix on disk. Where its rows begin is held in memory, 8 bytes a row."""

    name: str
    data: ZarrArray
    indices: ZarrArray
    indptr: Indices
    num_columns: int

    def __post_init__(self) -> None:
        lengths = {len(self.data.shape), len(self.indices.shape)}
        if lengths != {1} or self.data.shape != self.indices.shape:
            raise DamagedDataError(f"{self.name}: data and indices must be lists of one length")
        sizes = np.diff(self.indptr)
        is_sound = len(self.indptr) > 0 and self.indptr[0] == 0 and (sizes >= 0).all()
        if not is_sound or self.indptr[-1] != self.data.shape[0]:
            raise DamagedDataError(
                f"{self.name}: indptr must ascend from 0 to {self.data.shape[0]}, the number of "
                "stored values"
            )
        if sizes.max(initial=0) > self.num_columns:
            raise DamagedDataError(
                f"{self.name}: a row has {sizes.max()} values but there are {self.num_columns} "
                "columns"
            )
        if self.indices.dtype.kind not in "iu":
            raise DamagedDataError(
                f"{self.name}: indices have type {self.indices.dtype} but must be integers"
            )

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    @property
    def chunk_size(self) -> int:
        """The number of values that are decoded together."""
        return max(self.data.chunk_size, self.indices.chunk_size)


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
        self._read = PairMemory()
        self._taken = PairMemory()

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return int(self._edges[-1]), self._parts[0].num_columns

    def fetch(self, request: Request) -> CsrRows:
        """Read the rows of a load request; each inner chunk is decoded once."""
        rows = rows_of_request(request, self.shape[0])
        starts, ends = np.empty_like(rows), np.empty_like(rows)
        reads = []
        num_values = 0
        for number, chosen, local in rows_by_part(rows, self._edges):
            part = self._parts[number]
            first, end = part.indptr[local], part.indptr[local + 1]
            runs = runs_of(first, end, part.chunk_size)
            # A row without values may lie outside of all runs, and there may be none.
            filled = end > first
            begins = np.zeros_like(first)
            begins[filled] = runs.places_of(first[filled]) + num_values
            starts[chosen], ends[chosen] = begins, begins + end - first
            reads.append((part, runs, slice(num_values, num_values + runs.num_entries)))
            num_values += runs.num_entries
        kinds = self._parts[0].data.dtype, self._parts[0].indices.dtype
        data, indices = self._read.arrays(num_values, kinds)
        read_runs(
            [
                (array, runs, buffer[place])
                for part, runs, place in reads
                for array, buffer in ((part.data, data), (part.indices, indices))
            ]
        )
        self._check_columns(indices)
        return CsrRows(data, indices, starts, ends, self.shape[1], self._taken)

    def _check_columns(self, indices: NDArray[Any]) -> None:
        """Raise unless these are columns of the matrix; others would lead out of its memory."""
        # Seen without a sign, a negative number is a large one.
        unsigned = indices.view(f"u{indices.itemsize}")
        if unsigned.max(initial=0) >= self.shape[1]:
            names = ", ".join(part.name for part in self._parts)
            raise DamagedDataError(
                f"{names}: there are values in column {unsigned.max()} but columns must lie in "
                f"[0, {self.shape[1]})"
            )


class PairMemory:
    """Memory for the values and the columns of sparse rows, used again and again."""

    def __init__(self) -> None:
        self._pools = GrowingPool(), GrowingPool()

    def arrays(
        self, num_values: int, kinds: tuple[np.dtype[Any], np.dtype[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return an array for values and one for columns."""
        data, indices = self._pools
        return data.array((num_values,), kinds[0]), indices.array((num_values,), kinds[1])


class CsrRows:
    """Sparse rows in memory: values and columns, and where each row lies among them."""

    def __init__(
        self,
        data: NDArray[Any],
        indices: NDArray[Any],
        starts: Indices,
        ends: Indices,
        num_columns: int,
        memory: PairMemory,
    ) -> None:
        self.num_rows = len(starts)
        self._source = data, indices
        self._starts, self._ends = starts, ends
        self._num_columns = num_columns
        self._memory = memory

    def take(self, places: Indices) -> Any:
        """Return the rows at these places as a scipy CSR matrix."""
        starts, ends = self._starts[places], self._ends[places]
        num_values = int((ends - starts).sum())
        # 32 bits wherever they are enough, as scipy does it.
        is_small = max(num_values, self._num_columns) <= np.iinfo(np.int32).max
        index_type = np.dtype(np.int32 if is_small else np.int64)
        value_type, stored_type = (array.dtype for array in self._source)
        data, indices = self._memory.arrays(num_values, (value_type, index_type))
        columns = indices if stored_type == index_type else np.empty(num_values, stored_type)
        copy_runs(starts, ends, self._source, (data, columns))
        if columns is not indices:
            indices[:] = columns
        indptr = np.zeros(len(places) + 1, index_type)
        np.cumsum(ends - starts, out=indptr[1:])
        return csr_of_views(data, indices, indptr, self._num_columns)


def csr_of_views(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], num_columns: int
) -> Any:
    """Return a scipy CSR matrix of arrays that may be views of larger memory; none is copied."""
    from scipy.sparse import csr_matrix

    # Given to the constructor, such arrays would be copied.
    matrix = csr_matrix((len(indptr) - 1, num_columns), dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def may_lack_columns(num_columns: int) -> bool:
    """Return whether files of `indices` may be missing in a matrix of so many columns.

    With one column all indices are zeros, which zarr does not store. With more of them, a file that
    was lost must not pass for zeros.
    """
    return num_columns == 1
