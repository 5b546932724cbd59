"""Rows between a source and a folder: columns of arrays, and of lists of any length.

A source yields them in batches, which pass the same checks for every source.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.selection import Selection
from feedline.store.columns import MISSING, is_carried
from feedline.store.lists import Lists
from feedline.store.runs import copy_runs

_PLAIN_TYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


# Units of dates that stores lack, and the next finer one that they have.
_FINER = {"M": {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}}
_FINER["m"] = {"W": "s", "D": "s", "h": "s", "m": "s"}

Values = NDArray[Any] | Lists
Rows = Mapping[str, Values]
"""Columns of equally many rows, by name."""


def part_of_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Return neighbouring rows, without a copy."""
    return {name: column[start:stop] for name, column in rows.items()}


def take_rows(rows: Rows, places: NDArray[np.int64]) -> Rows:
    """Return the rows at these places, copied.

    Examples:
        >>> lists = Lists(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
        >>> take_rows({"x": lists}, np.array([2, 1, 0]))["x"].tolist()
        [[9], [], [7, 8]]
    """
    taken: dict[str, Values] = {}
    for name, column in rows.items():
        if name in taken:
            continue
        twin = _twin_of(name, rows) if isinstance(column, Lists) else None
        if twin is not None:
            taken[name], taken[twin] = _take_both(column, rows[twin], places)
        elif isinstance(column, Lists):
            taken[name] = column.take(places)
        else:
            taken[name] = column.take(places, axis=0)
    return {name: taken[name] for name in rows}


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def num_rows_of(rows: Rows) -> int:
    """Return the number of rows."""
    return len(next(iter(rows.values())))


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

    def read_lists(like: Lists) -> Lists:
        sizes = read_like(np.empty(0, np.int64))
        return lists_of(read_like(like.values), sizes, like.kind)

    return {
        name: read_lists(column) if isinstance(column, Lists) else read_like(column)
        for name, column in like.items()
    }


def lists_of(values: NDArray[Any], sizes: NDArray[Any], kind: str = "list") -> Lists:
    """Return lists that lie one after another, by the number of values of each."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return Lists(values, offsets, kind)


def row_sizes(rows: Rows) -> NDArray[np.int64]:
    """Return the number of bytes of each row; a list has 8 more, which tell where it begins."""
    sizes = np.zeros(len(next(iter(rows.values()))), np.int64)
    for column in rows.values():
        values = column.values if isinstance(column, Lists) else column
        value_bytes = values.dtype.itemsize * math.prod(values.shape[1:])
        sizes += 8 + value_bytes * column.lengths if isinstance(column, Lists) else value_bytes
    return sizes


class SourceFault(PackError):
    """The source cannot be packed; nothing is kept, because resuming would fail again."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a source, by column.

    `where` names the file or source, and `row` is the number of the first row in it. A column that
    has missing values here has a column of bools beside it. A column of objects is one whose type
    these rows do not tell, because it has no value in them. `type_names` names types that numpy
    lacks.
    """

    where: str
    row: int
    arrays: Rows
    type_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.arrays.values())))


class Source(Protocol):
    """Rows that can be read in batches.

    `identity` is JSON that is different when the source has changed. `num_rows` is exact, or None
    if it is unknown until all is read; `num_rows_guess` is an estimate. `can_restart` says whether
    rows can be read from the start again.
    """

    @property
    def can_restart(self) -> bool: ...

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def num_rows(self) -> int | None: ...

    @property
    def num_rows_guess(self) -> int | None: ...

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; batches may be empty."""
        ...


class Flat(NamedTuple):
    """Columns by their paths, and for those with missing values where these are."""

    values: dict[str, Values]
    missing: dict[str, NDArray[np.bool_]]

    def add(self, other: Flat, where: str) -> None:
        """Add the columns of another one, or raise if one has a name that is taken."""
        for name in other.values:
            if name in self.values:
                raise SourceFault(
                    f"{where}: has column {name!r:.80} twice, in a record and by a name with a "
                    "slash; rename one of them in the source"
                )
        self.values.update(other.values)
        self.missing.update(other.missing)

    def chosen(self, selection: Selection, where: str) -> dict[str, Values]:
        """Return the selected columns by their new names, each with its mask, if it has one."""
        found: dict[str, Values] = {}
        for new, old in selection.items():
            found[new] = self.values[old]
            if old in self.missing:
                if new + MISSING in selection:
                    raise SourceFault(
                        f"{where}: column {new!r:.80} has missing values, which "
                        f"{new + MISSING!r:.80} must tell, but that is a column of the source; "
                        "rename it with columns={'new name': 'name in the source'}"
                    )
                found[new + MISSING] = self.missing[old]
        return found


def as_column(where: str, row: int, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the values as little-endian numbers or dates, or raise."""
    if array.dtype.kind in "mM":
        unit, step = np.datetime_data(array.dtype)
        finer = _FINER[array.dtype.kind].get(unit)
        if finer and step == 1:
            array = array.astype(f"{array.dtype.kind}8[{finer}]")
    is_date = array.dtype.kind in "mM" and is_carried(array.dtype)
    if array.dtype.name not in _PLAIN_TYPES and not is_date:
        raise SourceFault(
            f"{where}: column {name!r:.80} is of type {array.dtype} at row {row} and must be of "
            "booleans, integers, floats, dates, bytes or texts, or lists of numbers; convert it, "
            "or exclude it with columns=[…]"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


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


def _arrays_of(column: Values) -> tuple[NDArray[Any], ...]:
    return (column.lengths, column.values) if isinstance(column, Lists) else (column,)


def _twin_of(name: str, rows: Rows) -> str | None:
    """Return a later column whose lists are as long as those of this one, which is copied with it.

    Such are the numbers and the columns of a sparse matrix: together they are copied much faster.
    """
    one = rows[name]
    names = list(rows)
    for other in names[names.index(name) + 1 :]:
        two = rows[other]
        both = [c for c in (one, two) if isinstance(c, Lists) and c.kind == "list"]
        if len(both) < 2 or any(c.values.ndim > 1 or c.values.itemsize not in (4, 8) for c in both):
            continue
        if np.array_equal(both[0].offsets, both[1].offsets):
            return other
    return None


def _take_both(one: Any, two: Any, places: NDArray[np.int64]) -> tuple[Lists, Lists]:
    starts, sizes = one.offsets[places], one.lengths[places]
    num_values = int(sizes.sum())
    outs = np.empty(num_values, one.values.dtype), np.empty(num_values, two.values.dtype)
    # A copy of dates is one of their bits.
    sources = _bits(one.values), _bits(two.values)
    copy_runs(starts, starts + sizes, sources, (_bits(outs[0]), _bits(outs[1])))
    return lists_of(outs[0], sizes), lists_of(outs[1], sizes)


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(f"i{array.itemsize}")


def _join(parts: Sequence[Any]) -> Values:
    if isinstance(parts[0], Lists):
        return Lists.joined(parts)
    joined: NDArray[Any] = np.concatenate(parts)
    return joined
