"""Matrices in zarr, dense, or sparse in AnnData's encoding: `data`, `indices` and `indptr`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.lazy import lazy
from feedline.store.gather import RowSource
from feedline.store.matrix import Indices, Request, matrix_shown, rows_by_part, rows_of_request
from feedline.store.pool import GrowingPool
from feedline.store.runs import copy_runs, runs_of
from feedline.store.zarr_arrays import ZarrArray, damage_in, read_runs
from feedline.words import several

_MAX_COLUMNS = 2**31 - 1

Buffers = tuple[NDArray[Any], ...]


class _Part:
    """One matrix on disk, and whether it is still the one that was opened."""

    name: str

    @property
    def arrays(self) -> tuple[ZarrArray, ...]:
        raise NotImplementedError

    @lazy
    def fingerprint(self) -> str:
        """A digest of the layout and of a few values spread over the matrix."""
        return self._digest()

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for array in (reader.array for reader in self.arrays):
            shapes = [list(array.shape), list(array.chunks), list(array.shards or ())]
            layout = [shapes[0], str(array.dtype), *shapes[1:]]
            digest.update(json.dumps(layout).encode())
            for place in (np.arange(8) * (max(array.shape[0], 1) - 1)) // 7:
                if array.shape[0]:
                    digest.update(np.ascontiguousarray(array[int(place)]).tobytes())
        digest.update(self._in_memory())
        return digest.hexdigest()

    def _in_memory(self) -> bytes:
        """Return what was read when the matrix was opened."""
        return b""

    def check_unchanged(self) -> None:
        """Raise if the matrix was written anew since it was opened."""
        if all(array.is_as_opened() for array in self.arrays):
            return
        with damage_in(self.name):
            is_same = [array.reopen() for array in self.arrays]
            if not all(is_same) or self._digest() != self.fingerprint:
                raise DamagedDataError(
                    f"{self.name}: was replaced while it was in use; restore it, or open the store "
                    "again and start a new run"
                )


@dataclass(frozen=True, eq=False)
class DensePart(_Part):
    """One dense matrix on disk; a row is one entry of its array."""

    name: str
    array: ZarrArray

    def __post_init__(self) -> None:
        if len(self.array.shape) < 2:
            raise DamagedDataError(
                f"{self.name}: has shape {self.array.shape} but must have rows and columns"
            )

    @property
    def arrays(self) -> tuple[ZarrArray, ...]:
        """The entries of a row."""
        return (self.array,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns."""
        return self.array.shape

    def spans_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return the start and end of the entries of rows."""
        return rows, rows + 1


@dataclass(frozen=True, eq=False)
class CsrPart(_Part):
    """One sparse matrix on disk. Where its rows begin is held in memory, 8 bytes a row."""

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
        if not 0 <= self.num_columns <= _MAX_COLUMNS:
            raise DamagedDataError(
                f"{self.name}: has {self.num_columns} columns, which must be in [1, {_MAX_COLUMNS}]"
            )
        if sizes.max(initial=0) > self.num_columns:
            raise DamagedDataError(
                f"{self.name}: a row has {several(sizes.max(), 'value')} but there are "
                f"{self.num_columns} columns"
            )
        if self.indices.dtype.kind not in "iu":
            raise DamagedDataError(
                f"{self.name}: indices have type {self.indices.dtype} but must be integers"
            )

    def _in_memory(self) -> bytes:
        return self.indptr.tobytes()

    @property
    def arrays(self) -> tuple[ZarrArray, ...]:
        """The entries of a row."""
        return self.data, self.indices

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns."""
        return len(self.indptr) - 1, self.num_columns

    def spans_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return the start and end of the values of rows."""
        return self.indptr[rows], self.indptr[rows + 1]


class _StackedMatrix:
    def __init__(
        self,
        parts: Sequence[DensePart | CsrPart],
        obs: Mapping[str, NDArray[Any]],
        fingerprint: str,
    ) -> None:
        if not parts:
            raise InvalidValueError("parts=[] must hold at least one matrix")
        kinds = [(part.shape[1:], *(array.dtype for array in part.arrays)) for part in parts]
        for part, kind in zip(parts, kinds, strict=True):
            if kind != kinds[0]:
                raise InvalidValueError(
                    f"{part.name} has columns and types {kind} but must have those of "
                    f"{parts[0].name}, {kinds[0]}"
                )
        self._parts = tuple(parts)
        self.obs = dict(obs)
        self.fingerprint = fingerprint
        self._edges = np.cumsum([0, *(part.shape[0] for part in parts)])
        self._memory = [GrowingPool() for _ in parts[0].arrays]

    def __repr__(self) -> str:
        kind = "dense" if len(self._memory) == 1 else "sparse"
        return matrix_shown(self, f"{kind} {self._parts[0].arrays[0].dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns."""
        return int(self._edges[-1]), *self._parts[0].shape[1:]

    def _read(self, request: Request) -> tuple[Buffers, Indices, Indices]:
        """Return entries in memory, and the start and end of each row among them.

        Each chunk is decoded once.
        """
        rows = rows_of_request(request, self.shape[0])
        starts, ends = np.empty_like(rows), np.empty_like(rows)
        reads = []
        num_entries = 0
        for number, chosen, local in rows_by_part(rows, self._edges):
            part = self._parts[number]
            part.check_unchanged()
            first, end = part.spans_of(local)
            runs = runs_of(first, end, max(array.chunk_size for array in part.arrays))
            # A row without values may be outside all runs, and there may be no runs.
            filled = end > first
            begins = np.zeros_like(first)
            begins[filled] = runs.places_of(first[filled]) + num_entries
            starts[chosen], ends[chosen] = begins, begins + end - first
            reads.append((part, runs, slice(num_entries, num_entries + runs.num_entries)))
            num_entries += runs.num_entries
        buffers = tuple(
            pool.array((num_entries, *array.shape[1:]), array.dtype)
            for pool, array in zip(self._memory, self._parts[0].arrays, strict=True)
        )
        read_runs(
            [
                (array, runs, buffer[place])
                for part, runs, place in reads
                for array, buffer in zip(part.arrays, buffers, strict=True)
            ]
        )
        return buffers, starts, ends


class DenseStore(_StackedMatrix):
    """Several dense matrices as one, one below the other.

    Args:
        parts: The matrices, with equally many columns.
        obs: A value for each row, by name.
        fingerprint: The identity of the data in checkpoints.
    """

    def fetch(self, request: Request) -> DenseRows:
        """Read the rows of a load request; each chunk is decoded once."""
        (buffer,), places, _ = self._read(request)
        return DenseRows(buffer, places)


class DenseRows:
    """Dense rows in memory, in a buffer of whole chunks."""

    def __init__(self, buffer: NDArray[Any], places: Indices) -> None:
        self.num_rows = len(places)
        self._buffer = buffer
        self._source = RowSource(buffer)
        self._places = places

    def take(self, places: Indices) -> NDArray[Any]:
        """Return a copy of the rows at these places."""
        out = np.empty((len(places), *self._buffer.shape[1:]), self._buffer.dtype)
        self._source.gather(self._places[places], out)
        return out


class CsrStore(_StackedMatrix):
    """Several sparse matrices as one, one below the other.

    Args:
        parts: The matrices, with equally many columns.
        obs: A value for each row, by name.
        fingerprint: The identity of the data in checkpoints.
    """

    def __init__(
        self, parts: Sequence[CsrPart], obs: Mapping[str, NDArray[Any]], fingerprint: str
    ) -> None:
        super().__init__(parts, obs, fingerprint)
        self._taken = GrowingPool(), GrowingPool()

    def fetch(self, request: Request) -> CsrRows:
        """Read the rows of a load request; each inner chunk is decoded once."""
        (data, indices), starts, ends = self._read(request)
        # Other columns would lead out of the memory of the matrix. Seen without a sign, a negative
        # number is a large one.
        largest = indices.view(f"u{indices.itemsize}").max(initial=0)
        if largest >= self.shape[1]:
            names = ", ".join(part.name for part in self._parts)
            raise DamagedDataError(
                f"{names}: has values in column {largest} but columns must be in [0, "
                f"{self.shape[1]})"
            )
        return CsrRows((data, indices), starts, ends, self.shape[1], self._taken)


@dataclass(frozen=True, eq=False)
class CsrRows:
    """Sparse rows in memory: values and columns, and where each row lies among them."""

    source: tuple[NDArray[Any], NDArray[Any]]
    starts: Indices
    ends: Indices
    num_columns: int
    memory: tuple[GrowingPool, GrowingPool]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.starts)

    def take(self, places: Indices) -> Any:
        """Return the rows at these places as a scipy CSR matrix."""
        starts, ends = self.starts[places], self.ends[places]
        num_values = int((ends - starts).sum())
        # 32 bits wherever they are enough, as scipy does it.
        is_small = max(num_values, self.num_columns) <= np.iinfo(np.int32).max
        index_type = np.dtype(np.int32 if is_small else np.int64)
        value_type, stored_type = (array.dtype for array in self.source)
        data = self.memory[0].array((num_values,), value_type)
        indices = self.memory[1].array((num_values,), index_type)
        columns = indices if stored_type == index_type else np.empty(num_values, stored_type)
        copy_runs(starts, ends, self.source, (data, columns))
        if columns is not indices:
            indices[:] = columns
        indptr = np.zeros(len(places) + 1, index_type)
        np.cumsum(ends - starts, out=indptr[1:])
        return csr_of_views(data, indices, indptr, self.num_columns)


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
    """Return whether files of `indices` may be missing in a matrix with this number of columns.

    With one column all indices are zeros, which zarr does not store. With more, a lost file must
    not be read as zeros.
    """
    return num_columns == 1
