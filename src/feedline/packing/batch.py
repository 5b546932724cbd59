"""What all sources have in common: batches of rows, and the checks that all of them must pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.store.columns import Column, columns_of

_PLAIN_TYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class SourceFault(PackError):
    """The source holds what cannot be packed; nothing is kept, as only another source can do."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a source, by column.

    `where` names the file or source, and `row` is the number of the first row in it.
    """

    where: str
    row: int
    arrays: Mapping[str, NDArray[Any]]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.arrays.values())))

    def part(self, start: int, stop: int | None = None) -> Batch:
        """Return some of the rows."""
        arrays = {name: array[start:stop] for name, array in self.arrays.items()}
        return Batch(self.where, self.row + start, arrays)

    @classmethod
    def joined(cls, parts: list[Batch]) -> Batch:
        """Return neighbouring batches as one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        arrays = {n: np.concatenate([part.arrays[n] for part in parts]) for n in first.arrays}
        return cls(first.where, first.row, arrays)


class Source(Protocol):
    """Rows that can be read in batches.

    `identity` is JSON that is different when the source has changed. `num_rows` is exact, or None
    if it is not known before all is read; `num_rows_guess` is near.
    """

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def num_rows(self) -> int | None: ...

    @property
    def num_rows_guess(self) -> int | None: ...

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start` on; batches may be empty."""
        ...


def as_column(where: str, row: int, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the values as little-endian numbers, or raise."""
    if array.dtype.name not in _PLAIN_TYPES:
        raise SourceFault(
            f"{where}: column {name!r:.80} is of type {array.dtype} at row {row} and must be of "
            "booleans, integers or floats; convert it, or leave it out by columns=[…]"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def columns_in(batch: Batch) -> list[Column]:
    """Return the columns of a batch."""
    return columns_of(batch.arrays, {})


def check_batches(batches: Iterable[Batch], columns: Iterable[Column]) -> Iterator[Batch]:
    """Yield the batches that have rows, if they have the columns that the first one had."""
    expected = list(columns)
    for batch in batches:
        if not batch.num_rows:
            continue
        columns_found = {column.name: column for column in columns_in(batch)}
        for want in expected:
            # Files may have them in another order.
            found = columns_found[want.name]
            if want != found:
                raise SourceFault(
                    f"{batch.where}: column {found.name!r:.80} is {found} at row {batch.row} but "
                    f"{want} in the first rows; all rows must have one type and shape, so convert "
                    "the column, or leave it out by columns=[…]"
                )
        yield batch
