"""One type for each column of a pack, which the rows of every batch are brought to.

The first rows decide it. Later rows may show that a column of one shape holds lists of any length
after all, or has missing values. Then packing starts over with that known, so that it holds for all
chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from feedline.packing.rows import Batch, Rows, Source, SourceFault, Values, lists_of
from feedline.store.columns import MISSING, Column
from feedline.store.lists import Lists
from feedline.words import several


@dataclass(frozen=True)
class Widened:
    """What earlier readings of a source have shown.

    Args:
        lists: The columns whose values differ in length.
        missing: The columns that have missing values.
    """

    lists: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def describe(self) -> dict[str, list[str]]:
        """Return it as JSON values."""
        return {"lists": sorted(self.lists), "missing": sorted(self.missing)}

    @classmethod
    def from_described(cls, described: Any) -> Self:
        """Return what was described; nothing if this is something else."""
        found: Any = described if isinstance(described, Mapping) else {}
        return cls(*(frozenset(map(str, found.get(key, ()))) for key in ("lists", "missing")))


class Wider(SourceFault):
    """A column is wider than it seemed; packing starts over."""

    def __init__(self, message: str, *, lists: str | None = None, missing: str | None = None):
        super().__init__(message)
        self._lists = frozenset([lists] if lists else [])
        self._missing = frozenset([missing] if missing else [])

    def add_to(self, widened: Widened) -> Widened:
        """Return what is known with this."""
        return Widened(widened.lists | self._lists, widened.missing | self._missing)


class Fitting:
    """The columns of a source, and how rows are brought to them.

    Args:
        source: The source; its first rows are read.
        widened: What earlier readings have shown.
    """

    def __init__(self, source: Source, widened: Widened) -> None:
        self.widened = widened
        self._can_restart = source.can_restart
        self.columns = _first_columns(source, widened)

    def fitted(self, batches: Iterable[Batch]) -> Iterator[Rows]:
        """Yield the rows of batches, or raise if they differ from the first in type or shape."""
        expected = {column.name for column in self.columns}
        for batch in batches:
            if not batch.num_rows:
                continue
            for name in batch.arrays.keys() - expected:
                column = name.removesuffix(MISSING)
                if column not in expected:
                    raise SourceFault(
                        f"{batch.where}: has a column {name!r:.80} after row {batch.row}, but none "
                        "in the first rows; all rows must have the same columns; choose common "
                        "ones with columns=[…]"
                    )
                self._widen(batch, missing=column)
            yield {column.name: self._fit(column, batch) for column in self.columns}

    def _fit(self, want: Column, batch: Batch) -> Values:
        found = batch.arrays.get(want.name)
        if found is None:
            # Only masks are left out, where nothing is missing.
            assert want.name.endswith(MISSING), want
            return np.zeros(batch.num_rows, np.bool_)
        if not isinstance(found, Lists) and found.dtype == object:
            return nothing_of(want, len(found))
        have = column_of(want.name, found, batch.type_names)
        if have is None:
            assert isinstance(found, Lists)
            if want.kind == "list":
                return Lists(np.empty((0, *want.shape), want.dtype), found.offsets)
            have = Column(want.name, want.type_name, want.shape[1:], kind="list")
        if have == want:
            return found
        is_one_type = have.type_name == want.type_name
        if want.kind == "list" and have.kind == "array" and is_one_type:
            if have.shape[1:] == want.shape and have.shape:
                return as_lists(found)
        elif want.kind == "array" and want.shape and is_one_type:
            inner = have.shape if have.has_lists else have.shape[1:]
            if inner == want.shape[1:] and (have.has_lists or have.shape):
                self._widen(batch, lists=want.name)
        raise SourceFault(
            f"{batch.where}: column {want.name!r:.80} is {have} at row {batch.row} but {want} in "
            "the first rows; all rows must have one type and shape; convert the column, or exclude "
            "it with columns=[…]"
        )

    def _widen(self, batch: Batch, *, lists: str | None = None, missing: str | None = None) -> None:
        name = lists or missing
        what = "is longer or shorter" if lists else "is missing"
        message = (
            f"{batch.where}: a value of column {name!r:.80} {what} after row {batch.row}, but none "
            "before; packing would have to start over, and these records can be read only once; "
            "pass a list, or an object that can be iterated again"
        )
        if not self._can_restart:
            raise SourceFault(message)
        raise Wider(message, lists=lists, missing=missing)


def as_lists(values: Values) -> Lists:
    """Return rows of one length as lists."""
    if isinstance(values, Lists):
        return values
    sizes = np.full(len(values), values.shape[1])
    return lists_of(np.ascontiguousarray(values).reshape(-1, *values.shape[2:]), sizes)


def nothing_of(column: Column, num_rows: int) -> Values:
    """Return what stands for missing values: zeros, or empty lists."""
    if column.has_lists:
        values = np.empty((0, *column.shape), column.dtype)
        return Lists(values, np.zeros(num_rows + 1, np.int64), column.kind)
    return np.zeros((num_rows, *column.shape), column.dtype)


def column_of(name: str, values: Values, type_names: Mapping[str, str]) -> Column | None:
    """Return the column of some values; None if they do not tell their type."""
    array = values.values if isinstance(values, Lists) else values
    if array.dtype == object:
        return None
    type_name = type_names.get(name, array.dtype.name)
    if not isinstance(values, Lists):
        return Column(name, type_name, array.shape[1:])
    mean = -(-array.nbytes // max(1, len(values)))
    return Column(name, type_name, array.shape[1:], kind=values.kind, mean_bytes=mean)


def no_value(where: str, name: str, num_rows: int) -> SourceFault:
    """Return the error of a column of which no row has a value, or any element."""
    return SourceFault(
        f"{where}: column {name!r:.80} has no value in the first {several(num_rows, 'row')}, so "
        "its type is unknown; give a value, use a numpy array of the type that it should have, or "
        "exclude it with columns=[…]"
    )


def _first_columns(source: Source, widened: Widened) -> list[Column]:
    """Return the columns, from the first rows that have a value of each."""
    columns: dict[str, Column | None] = {}
    num_rows, where = 0, "source"
    for batch in source.batches(0):
        if batch.num_rows:
            where = batch.where
            for name, values in batch.arrays.items():
                columns[name] = columns.get(name) or column_of(name, values, batch.type_names)
            num_rows += batch.num_rows
            if all(columns.values()) or not source.can_restart:
                break
    if not columns:
        files = source.identity.get("files", ())
        named = f"{files[0][0]}: " if len(files) == 1 else f"{several(len(files), 'file')}: "
        raise SourceFault(
            f"{named if files else 'source '}has 0 rows and must have at least 1; check the source"
        )
    for name, column in columns.items():
        if column is None:
            raise no_value(where, name, num_rows)
    found = []
    for column in (column for column in columns.values() if column is not None):
        if column.name in widened.lists and not column.has_lists:
            mean = column.row_bytes
            column = Column(
                column.name, column.type_name, column.shape[1:], kind="list", mean_bytes=mean
            )
        found.append(column)
        if column.name in widened.missing and column.name + MISSING not in columns:
            found.append(Column(column.name + MISSING, "bool"))
    return found
