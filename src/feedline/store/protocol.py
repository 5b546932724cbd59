"""The store protocol: samples in chunks, read by chunk and row, or by number."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, InvalidValueError
from feedline.lazy import lazy
from feedline.store.access import (
    check_indices,
    describe,
    sample_at,
    samples_at,
    samples_in,
    walk,
)
from feedline.store.columns import Arrays, Column
from feedline.store.row_tables import RowTables
from feedline.store.scattered import Rows
from feedline.words import shortened


class Store(Protocol):
    """Samples in chunks. `read` may be called from several threads at once.

    A subclass has samples by number, and is a torch map-style dataset. It must implement
    `num_samples`, `chunk_sizes`, `columns`, `fingerprint`, `read` and `describe_row`.
    """

    @property
    def num_samples(self) -> int:
        """The number of samples in all chunks together."""

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sample."""

    @property
    def fingerprint(self) -> str:
        """A short string that changes when the data does."""

    def read(self, chunk: int, rows: NDArray[np.int64], out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, column by column; written to `out` if given.

        What is returned elsewhere is copied to `out`. Columns of lists, bytes and text come as
        `Lists`, and are added to it.
        """

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the origin of a row, for messages."""

    def row_sources(self, chunk: int) -> Mapping[str, Rows] | None:
        """Return the columns of a chunk that is an array in memory or in a mapped file.

        Rows are then copied from there, without `read`. None means that `read` must be called.
        """
        return None

    def keeps_open(self, chunks: Sequence[int]) -> bool:
        """Whether all of these chunks, which were just asked for, are still open.

        If not, they do not fit into what the store may hold at once.
        """
        return False

    def row_tables(self) -> RowTables | None:
        """Return how many chunks are opened as one; None if each is opened on its own."""
        return None

    def prefetch(self, chunk: int) -> None:
        """Announce that a chunk will be read soon. This must not block."""
        return

    def release(self, chunk: int) -> None:
        """Announce that a chunk is not needed for now. Reading it is still possible."""
        return

    def close(self) -> None:
        """Close open files; a later read opens them again."""
        return

    @lazy
    def edges(self) -> NDArray[np.int64]:
        """The number of the first sample of each chunk, and the number of all samples."""
        return np.concatenate([[0], np.cumsum(self.chunk_sizes)])

    def __len__(self) -> int:
        """The number of samples."""
        return self.num_samples

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> Arrays: ...
    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return one sample as a dict, or some, column by column: `store[3]`, `store[10:20]`."""
        if isinstance(index, slice):
            return samples_at(self, np.arange(*index.indices(len(self)), dtype=np.int64))
        if isinstance(index, list | tuple | range | np.ndarray) and np.ndim(index):
            return samples_at(self, check_indices(index, len(self)))
        return sample_at(self, index)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return some samples, each as a dict; torch calls this for a whole batch."""
        return list(samples_in(self[list(indices)]))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample in order, reading a piece of a chunk at a time."""
        return walk(self)

    def __repr__(self) -> str:
        try:
            text = describe(self)
        except (FeedlineError, OSError) as error:
            # Somebody who looks at a store wants to know what is wrong with it.
            text = f"cannot be read ({error})"
        return shortened(f"<{type(self).__name__}{self._where}: {text}>")

    @property
    def _where(self) -> str:
        """The location of the data, for messages; empty if it has none."""
        return ""


class PartedStore(Store, Protocol):
    """A store that knows which part of its data has changed."""

    @property
    def part_digests(self) -> list[str]:
        """A digest for each part of the data; their number is bounded."""

    def describe_part(self, number: int) -> str:
        """Return the name of a part, for messages."""


def is_store(value: Any) -> bool:
    """Whether this is a store, by what its class has; asking opens no file.

    Args:
        value: Any object.
    """
    names = ("num_samples", "chunk_sizes", "columns", "fingerprint", "read", "describe_row")
    return all(hasattr(type(value), name) for name in names)


def check_store(name: str, value: Any, *, others: str = "") -> None:
    """Raise unless this is a store, with an error that says how to get one.

    Args:
        name: The name of the argument.
        value: What was given.
        others: What else may be given.
    """
    kind = type(value)
    has_size = hasattr(kind, "num_samples") or "num_samples" in getattr(value, "__dict__", ())
    if callable(getattr(kind, "read", None)) and has_size:
        return
    remedy = "pack the data with feedline.pack and open it with feedline.open"
    if isinstance(value, str | os.PathLike):
        remedy = f"open it with feedline.open({os.fspath(value)!r:.80})"
    elif callable(getattr(kind, "fetch", None)):
        remedy = "wrap the matrix in feedline.store.MatrixSamples"
    raise InvalidValueError(
        f"{name}={value!r:.80} must be a store, which feedline.open returns{others}; {remedy}"
    )


def check_rows(rows: Any, num_samples: int, where: str) -> NDArray[np.int64]:
    """Return row numbers as int64, or raise an error that names the chunk."""
    try:
        chosen = np.asarray(rows)
    except ValueError:
        chosen = np.empty((0, 0))
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise InvalidValueError(f"rows={rows!r:.80} must be a flat list of integers")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= num_samples):
        raise InvalidValueError(
            f"rows from {chosen.min()} to {chosen.max()} must be in [0, {num_samples}), the "
            f"samples of {where}"
        )
    return chosen.astype(np.int64, copy=False)
