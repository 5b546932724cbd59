"""Rows between a source and a folder: columns of arrays, and of runs of any length.

A source yields them in batches, which pass the same checks for every source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.store.columns import Column, columns_of
from feedline.store.runs import copy_runs

_PLAIN_TYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


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
    """Return the number of bytes of memory that rows take."""
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
                f"{file.name}: was truncated while it was in use; start over with resume=False"
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


class SourceFault(PackError):
    """The source cannot be packed; nothing is kept, because resuming would fail again."""


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


class Source(Protocol):
    """Rows that can be read in batches.

    `identity` is JSON that is different when the source has changed. `num_rows` is exact, or None
    if it is unknown until all is read; `num_rows_guess` is an estimate.
    """

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def num_rows(self) -> int | None: ...

    @property
    def num_rows_guess(self) -> int | None: ...

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; batches may be empty."""
        ...


def as_column(where: str, row: int, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the values as little-endian numbers, or raise."""
    if array.dtype.name not in _PLAIN_TYPES:
        raise SourceFault(
            f"{where}: column {name!r:.80} is of type {array.dtype} at row {row} and must be of "
            "booleans, integers or floats; convert it, or exclude it with columns=[…]"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def check_batches(batches: Iterable[Batch], columns: Iterable[Column]) -> Iterator[Batch]:
    """Yield the batches that have rows, or raise if their columns differ from the first."""
    expected = list(columns)
    for batch in batches:
        if not batch.num_rows:
            continue
        columns_found = {column.name: column for column in columns_of(batch.arrays, {})}
        for want in expected:
            # Files may have them in another order.
            found = columns_found[want.name]
            if want != found:
                raise SourceFault(
                    f"{batch.where}: column {found.name!r:.80} is {found} at row {batch.row} but "
                    f"{want} in the first rows; all rows must have one type and shape; convert the "
                    "column, or exclude it with columns=[…]"
                )
        yield batch


def describe_files(kind: str, paths: Iterable[Path]) -> dict[str, Any]:
    """Return JSON values that change when files change."""
    files = []
    for path in paths:
        try:
            state = path.stat()
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error.strerror})") from None
        files.append([os.path.abspath(path), state.st_size, state.st_mtime_ns])
    return {"kind": kind, "files": files}


def check_unchanged(identity: dict[str, Any]) -> None:
    """Raise if files changed since `describe_files` described them."""
    paths = [Path(path) for path, *_ in identity.get("files", ())]
    if not paths:
        return
    now = describe_files(identity["kind"], paths)["files"]
    changed = [file for file, same in zip(now, identity["files"], strict=True) if file != same]
    if changed:
        raise SourceFault(
            f"{changed[0][0]}: has changed during packing; pack again when it is complete"
        )


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
