"""Matrices whose rows are fetched per request and then cut into batches; one in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.words import shortened

Indices = NDArray[np.int64]
Request = Sequence[slice] | Indices


class FetchedRows(Protocol):
    """Rows in memory, in the order of the request."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def take(self, places: Indices) -> Any:
        """Return the rows at these places: an array, or a scipy CSR matrix. It owns its memory."""


class MatrixStore(Protocol):
    """A matrix on disk, with columns of values for its rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns; a dense matrix may have more axes."""

    @property
    def obs(self) -> Mapping[str, NDArray[Any]]:
        """A value for each row, by name; in memory."""

    @property
    def fingerprint(self) -> str:
        """A short string that changes when the data does."""

    def fetch(self, request: Request) -> FetchedRows:
        """Read the rows of a load request. May be called from several threads at once."""


def matrix_shown(store: Any, kind: str) -> str:
    """Return the `repr` of a matrix: its shape, its kind, and the names of `obs`."""
    shape = " × ".join(f"{size:,}" for size in store.shape)
    names = ", ".join(islice(store.obs, 8))
    obs = f"; obs: {names}{', …' if len(store.obs) > 8 else ''}" if store.obs else ""
    return shortened(f"<{type(store).__name__}: {shape}, {kind or 'sparse'}{obs}>")


def rows_of_request(request: Request, num_rows: int) -> Indices:
    """Return the rows of a request, in the order in which they are read, or raise.

    Examples:
        >>> rows_of_request([slice(4, 7), slice(0, 2)], num_rows=10).tolist()
        [4, 5, 6, 0, 1]
    """
    if isinstance(request, np.ndarray) and request.dtype.kind in "iu":
        starts = request.astype(np.int64)
        ends = starts + 1
    else:
        for part in request:
            if not isinstance(part, slice) or part.step not in (None, 1) or part.stop is None:
                raise InvalidValueError(
                    f"requests={part!r} must be slices with a stop and without a step, or an array "
                    "of rows"
                )
        starts = np.array([part.start or 0 for part in request], dtype=np.int64)
        ends = np.array([part.stop for part in request], dtype=np.int64)
    if len(starts) and (starts.min() < 0 or ends.max() > num_rows or (ends < starts).any()):
        raise InvalidValueError(
            f"requests from {starts.min()} to {ends.max()} must be in [0, {num_rows}], with each "
            "start before its stop"
        )
    sizes = ends - starts
    places = np.cumsum(sizes) - sizes
    return np.repeat(starts - places, sizes) + np.arange(sizes.sum())


def rows_by_part(rows: Indices, edges: Indices) -> Iterator[tuple[int, Indices, Indices]]:
    """Yield each part that has some of the rows: its number, their positions, and their rows in it.

    Args:
        rows: Rows of all parts together.
        edges: The first row of each part, and the number of all rows.

    Examples:
        >>> for number, places, inside in rows_by_part(np.array([7, 1, 9]), np.array([0, 5, 10])):
        ...     print(number, places, inside)
        0 [1] [1]
        1 [0 2] [2 4]
    """
    which = np.searchsorted(edges, rows, side="right") - 1
    for number in np.unique(which).tolist():
        places = np.flatnonzero(which == number)
        yield number, places, rows[places] - edges[number]


class MemoryMatrix:
    """A numpy array or a scipy CSR matrix, and values for its rows.

    Args:
        matrix: The matrix.
        obs: A value for each row, by name.

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
        """The number of rows and columns."""
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

    def __repr__(self) -> str:
        return matrix_shown(self, "" if hasattr(self._matrix, "indptr") else "dense")

    def fetch(self, request: Request) -> _Rows:
        """Return the rows of a load request."""
        return _Rows(self._matrix, rows_of_request(request, self.shape[0]))


class _Rows:
    def __init__(self, matrix: Any, rows: Indices) -> None:
        self._matrix = matrix
        self._rows = rows
        self.num_rows = len(rows)

    def take(self, places: Indices) -> Any:
        return self._matrix[self._rows[places]]
