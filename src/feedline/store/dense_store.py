"""Dense matrices in zarr, and several of them as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.gather import RowSource
from feedline.store.matrix import Request, check_alike, rows_by_part, rows_of_request
from feedline.store.pool import GrowingPool
from feedline.store.runs import runs_of
from feedline.store.zarr_runs import ZarrArray, read_runs


@dataclass(frozen=True, eq=False)
class DensePart:
    """One matrix on disk."""

    name: str
    array: ZarrArray

    def __post_init__(self) -> None:
        if len(self.array.shape) < 2:
            raise DamagedDataError(
                f"{self.name}: has shape {self.array.shape} but must have rows and columns"
            )

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.array.shape[0])


class DenseStore:
    """Several dense matrices as one, one below the other.

    Args:
        parts: The matrices, with as many columns each.
        obs: A value for each row, by name.
        fingerprint: What stands for the data in checkpoints.
    """

    def __init__(
        self, parts: Sequence[DensePart], obs: Mapping[str, NDArray[Any]], fingerprint: str
    ) -> None:
        self._parts = check_alike(parts, lambda part: (part.array.shape[1:], part.array.dtype))
        self.obs = dict(obs)
        self.fingerprint = fingerprint
        self._edges = np.cumsum([0, *(part.num_rows for part in parts)])
        self._memory = GrowingPool()

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and of columns."""
        return int(self._edges[-1]), *self._parts[0].array.shape[1:]

    def fetch(self, request: Request) -> DenseRows:
        """Read the rows of a load request; each chunk is decoded once."""
        rows = rows_of_request(request, self.shape[0])
        places = np.empty(len(rows), np.int64)
        reads = []
        num_rows = 0
        for number, chosen, local in rows_by_part(rows, self._edges):
            part = self._parts[number]
            runs = runs_of(local, local + 1, part.array.chunk_size)
            places[chosen] = runs.places_of(local) + num_rows
            reads.append((part, runs, num_rows))
            num_rows += runs.num_entries
        array = self._parts[0].array
        buffer = self._memory.array((num_rows, *array.shape[1:]), array.dtype)
        read_runs(
            [(part.array, runs, buffer[at : at + runs.num_entries]) for part, runs, at in reads]
        )
        return DenseRows(buffer, places)


class DenseRows:
    """Dense rows in memory, somewhere in a buffer of whole chunks."""

    def __init__(self, buffer: NDArray[Any], places: NDArray[np.int64]) -> None:
        self.num_rows = len(places)
        self._buffer = buffer
        self._source = RowSource(buffer)
        self._places = places

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows at these places, in memory of their own."""
        out = np.empty((len(places), *self._buffer.shape[1:]), self._buffer.dtype)
        self._source.gather(self._places[places], out)
        return out
