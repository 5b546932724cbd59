"""Rows on their way from a source to a folder: columns of arrays, and of runs of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.store.runs import copy_runs


@dataclass(frozen=True, eq=False)
class Ragged:
    """Runs of values, one for each row and one after another.

    There may be two arrays of values, such as the numbers and the columns of a sparse matrix.
    """

    sizes: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.sizes)


Rows = Mapping[str, "NDArray[Any] | Ragged"]
"""Columns of equally many rows, by name."""


def part_of_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Return neighbouring rows, without a copy."""
    return {name: _part(column, start, stop) for name, column in rows.items()}


def take_rows(rows: Rows, places: NDArray[np.int64]) -> Rows:
    """Return the rows at these places, copied.

    Examples:
        >>> runs = Ragged(np.array([2, 0, 1]), (np.array([7, 8, 9]),))
        >>> taken = take_rows({"x": runs}, np.array([2, 1, 0]))["x"]
        >>> taken.sizes.tolist(), taken.arrays[0].tolist()
        ([1, 0, 2], [9, 7, 8])
    """
    return {name: _take(column, places) for name, column in rows.items()}


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def num_bytes_of(rows: Rows) -> int:
    """Return how much memory rows take."""
    return sum(array.nbytes for column in rows.values() for array in _arrays_of(column))


def write_rows(file: BinaryIO, rows: Rows) -> int:
    """Append rows to a file, behind the lengths of all arrays; return the number of bytes."""
    arrays = [array for column in rows.values() for array in _arrays_of(column)]
    lengths = np.array([len(array) for array in arrays], np.int64)
    return sum(
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for array in (lengths, *arrays)
    )


def read_rows(file: BinaryIO, like: Rows) -> Rows:
    """Read what was appended as one; `like` has the columns and their types."""

    def read(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(shape, dtype)
        view = out.reshape(-1).view(np.uint8).data
        if out.size and file.readinto(view) != out.nbytes:  # type: ignore[attr-defined]
            raise PackError(
                f"{file.name}: was cut short while it was in use; start over by resume=False"
            )
        return out

    num_arrays = sum(len(_arrays_of(column)) for column in like.values())
    lengths = iter(read((num_arrays,), np.dtype(np.int64)).tolist())

    def read_like(array: NDArray[Any]) -> NDArray[Any]:
        return read((next(lengths), *array.shape[1:]), array.dtype)

    return {
        name: Ragged(read_like(column.sizes), tuple(read_like(array) for array in column.arrays))
        if isinstance(column, Ragged)
        else read_like(column)
        for name, column in like.items()
    }


def _arrays_of(column: NDArray[Any] | Ragged) -> tuple[NDArray[Any], ...]:
    return (column.sizes, *column.arrays) if isinstance(column, Ragged) else (column,)


def _part(column: NDArray[Any] | Ragged, start: int, stop: int) -> NDArray[Any] | Ragged:
    if not isinstance(column, Ragged):
        return column[start:stop]
    first = int(column.sizes[:start].sum())
    last = first + int(column.sizes[start:stop].sum())
    return Ragged(column.sizes[start:stop], tuple(array[first:last] for array in column.arrays))


def _take(column: NDArray[Any] | Ragged, places: NDArray[np.int64]) -> NDArray[Any] | Ragged:
    if not isinstance(column, Ragged):
        return column.take(places, axis=0)
    all_ends = np.cumsum(column.sizes)
    sizes, ends = column.sizes[places], all_ends[places]
    starts = ends - sizes
    num_values = int(sizes.sum())
    if len(column.arrays) == 2:
        first, second = column.arrays
        outs = np.empty(num_values, first.dtype), np.empty(num_values, second.dtype)
        copy_runs(starts, ends, (first, second), outs)
        return Ragged(sizes, outs)
    shifts = starts - (np.cumsum(sizes) - sizes)
    index = np.repeat(shifts, sizes) + np.arange(num_values)
    return Ragged(sizes, tuple(array[index] for array in column.arrays))


def _join(parts: Sequence[Any]) -> NDArray[Any] | Ragged:
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    arrays = zip(*(part.arrays for part in parts), strict=True)
    joined = tuple(np.concatenate(values) for values in arrays)
    return Ragged(np.concatenate([part.sizes for part in parts]), joined)
