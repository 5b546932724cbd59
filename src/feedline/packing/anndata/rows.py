"""Rows on their way from AnnData files to a collection: columns of numbers, and of runs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.packing.anndata.nodes import Node
from feedline.store.ragged import copy_runs

__all__ = [
    "Ragged",
    "Rows",
    "Scan",
    "concatenate_rows",
    "num_bytes_of",
    "part_of_rows",
    "take_rows",
]


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


def write_rows(file: BinaryIO, rows: Rows) -> list[int]:
    """Append rows to a file; return the lengths of all arrays, which reading needs."""
    arrays = [array for column in rows.values() for array in _arrays_of(column)]
    for array in arrays:
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return [len(array) for array in arrays]


def read_rows(file: BinaryIO, like: Rows, lengths: list[int]) -> Rows:
    """Read what was appended as one; `like` has the columns and their types."""
    left = iter(lengths)

    def read(array: NDArray[Any]) -> NDArray[Any]:
        shape = (next(left), *array.shape[1:])
        out = np.empty(shape, array.dtype)
        view = out.reshape(-1).view(np.uint8).data
        if out.size and file.readinto(view) != out.nbytes:  # type: ignore[attr-defined]
            raise DamagedDataError("a spill was cut short while it was in use; pack again")
        return out

    return {
        name: Ragged(read(column.sizes), tuple(read(array) for array in column.arrays))
        if isinstance(column, Ragged)
        else read(column)
        for name, column in like.items()
    }


class Scan:
    """Reads an array from its beginning to its end, each chunk once.

    Args:
        node: The array.
        max_bytes: A band of chunks side by side that is larger is not held, but read again.
    """

    def __init__(self, node: Node, max_bytes: int) -> None:
        self._node = node
        self._step = node.chunk_rows
        if len(node.shape) > 1:
            row_bytes = int(np.prod(node.shape[1:], dtype=object)) * node.dtype.itemsize
            self._step = node.chunk_rows if node.chunk_rows * row_bytes <= max_bytes else 1
        self._held = node.read(0, 0)
        self._start = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the next entries; `start` never goes back."""
        held = self._held[start - self._start :]
        end = start + len(held)
        if stop > end:
            end, begin = min(self._node.num_rows, -(-stop // self._step) * self._step), end
            parts = [held, self._node.read(begin, end)]
            held = np.concatenate(parts) if len(held) else parts[1]
        self._held, self._start = held, start
        return held[: stop - start]


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
