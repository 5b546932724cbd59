"""What a store is: samples in chunks, read by chunk and row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.store.columns import Arrays, Column


class Store(Protocol):
    """Samples in chunks. `read` may be called from several threads at once."""

    @property
    def num_samples(self) -> int:
        """The number of samples in all chunks together."""

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples of each chunk."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """What every sample has."""

    @property
    def fingerprint(self) -> str:
        """A short string that changes when the data does."""

    def read(self, chunk: int, rows: NDArray[np.int64], out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, column by column; written to `out` where it is given."""

    def describe_row(self, chunk: int, row: int) -> str:
        """Return where a row comes from, for messages."""

    def prefetch(self, chunk: int) -> None:
        """Tell that a chunk will be read soon. This must not wait for it."""

    def close(self) -> None:
        """Let go of open files; a later read opens them again."""


class PartedStore(Store, Protocol):
    """A store that can tell which part of its data has changed."""

    @property
    def part_digests(self) -> list[str]:
        """A digest for each part of the data; a bounded number of them, however large it is."""

    def describe_part(self, number: int) -> str:
        """Return the name of a part, for messages."""


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


def make_out(columns: Mapping[str, Column], num_rows: int, out: Arrays | None) -> Arrays:
    """Return arrays for `num_rows` samples: new ones, or `out` if it fits."""
    if out is None:
        return {c.name: np.empty((num_rows, *c.shape), c.dtype) for c in columns.values()}
    for column in columns.values():
        array = out.get(column.name)
        if (
            array is None
            or array.shape != (num_rows, *column.shape)
            or array.dtype != column.dtype
            or not array.flags.c_contiguous
            or not array.flags.writeable
        ):
            raise InvalidValueError(
                f"out[{column.name!r}] must be a writable, C-contiguous array of "
                f"{column.dtype} with shape {(num_rows, *column.shape)}"
            )
    return out
