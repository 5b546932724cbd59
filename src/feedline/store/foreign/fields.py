"""The fields of records, and the columns that they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.columns import Column
from feedline.store.foreign.headers import SHAPE, Bytes, Reader, Shapes, Span
from feedline.store.lists import ListSource
from feedline.store.scattered import ScatteredRows
from feedline.words import several

# The most digits that Python itself turns into a number without being asked to.
_MOST_DIGITS = 4300


@dataclass(frozen=True)
class Field(ABC):
    """A field of every record.

    Some can be read as columns only when all records are known: such a field is surveyed.

    Args:
        name: The name.
        size: The bytes that it has in every record; None if they differ.
    """

    name: str
    size: int | None

    @property
    def is_surveyed(self) -> bool:
        """Whether the columns depend on what is in the records."""
        return False

    def survey(self, memory: Bytes, span: Span, where: str) -> Any:
        """Return what is in the records of a chunk, as JSON values."""
        return None

    def merged(self, one: Any, other: Any, where: str) -> Any:
        """Return what is in the records of two chunks together."""
        return None

    @abstractmethod
    def columns(self, found: Any, mean_bytes: int) -> list[Column]:
        """Return the columns, by what was found in all records."""

    @abstractmethod
    def open(
        self, memory: Bytes, span: Span, columns: Sequence[Column], where: str
    ) -> dict[str, Any]:
        """Return the arrays and sources of a chunk, by the names of their columns."""


@dataclass(frozen=True)
class Plain(Field):
    """Numbers, arrays of one shape, bytes or text, as they lie there.

    Args:
        name: The name.
        size: The bytes that it has in every record; None if they differ.
        column: The column.
    """

    column: Column

    def columns(self, found: Any, mean_bytes: int) -> list[Column]:
        """Return the column."""
        return [replace(self.column, mean_bytes=mean_bytes if self.column.has_lists else 0)]

    def open(
        self, memory: Bytes, span: Span, columns: Sequence[Column], where: str
    ) -> dict[str, Any]:
        """Return the values of a chunk."""
        if self.column.has_lists:
            kind = self.column.kind
            return {self.name: ListSource(memory, *span, kind=kind, where=where)}
        return {self.name: _fixed(memory, span, self.column, where)}


@dataclass(frozen=True)
class Ragged(Field):
    """Arrays whose types and shapes stand in the records.

    Args:
        name: The name.
        size: None, as they differ.
        reader: What reads their headers.
    """

    reader: Reader

    @property
    def is_surveyed(self) -> bool:
        """Whether the columns depend on what is in the records: they do."""
        return True

    def survey(self, memory: Bytes, span: Span, where: str) -> Any:
        """Return the type and the least and largest shape."""
        return Shapes.of(self.reader(memory, span, where)).dump()

    def merged(self, one: Any, other: Any, where: str) -> Any:
        """Return the least and the largest shape of two chunks."""
        return Shapes.load(one).merged(Shapes.load(other), where).dump()

    def columns(self, found: Any, mean_bytes: int) -> list[Column]:
        """Return one column, or two if shapes differ in more than the first axis."""
        return Shapes.load(found).columns(self.name, mean_bytes)

    def open(
        self, memory: Bytes, span: Span, columns: Sequence[Column], where: str
    ) -> dict[str, Any]:
        """Return the arrays of a chunk."""
        type_name, shapes, values = self.reader(memory, span, where)
        column = columns[0]
        is_same = type_name == column.type_name
        if len(columns) == 2:
            is_same &= (shapes.shape[1],) == columns[1].shape
        else:
            num_free = shapes.shape[1] - len(column.shape)
            is_same &= num_free == int(column.has_lists)
            is_same = is_same and bool(np.all(shapes[:, num_free:] == column.shape))
        if not is_same:
            raise DamagedDataError(
                f"{where}: has arrays of {type_name} that are not {column}, as all were when they "
                "were looked through; it has changed since then; open the data again"
            )
        if not column.has_lists:
            return {self.name: _fixed(memory, values, column, where)}
        source = ListSource(memory, *values, type_name=type_name, shape=column.shape, where=where)
        return {self.name: source} | ({self.name + SHAPE: shapes} if len(columns) == 2 else {})


@dataclass(frozen=True)
class Digits(Field):
    """Numbers that are stored as text: int64 if all of them fit, and float64.

    Args:
        name: The name.
        size: None, as they differ.
        type_name: `"int64"` or `"float64"`.
    """

    type_name: str

    @property
    def is_surveyed(self) -> bool:
        """Whether the columns depend on what is in the records: integers may be too large."""
        return self.type_name == "int64"

    def survey(self, memory: Bytes, span: Span, where: str) -> Any:
        """Return whether all numbers fit."""
        return _numbers(memory, span, self.type_name) is not None

    def merged(self, one: Any, other: Any, where: str) -> Any:
        """Return whether all numbers of two chunks fit."""
        return one is True and other is True

    def columns(self, found: Any, mean_bytes: int) -> list[Column]:
        """Return a column of numbers, or of text where numbers would not be exact."""
        if self.is_surveyed and found is not True:
            return [Column(self.name, "uint8", kind="text", mean_bytes=mean_bytes)]
        return [Column(self.name, self.type_name)]

    def open(
        self, memory: Bytes, span: Span, columns: Sequence[Column], where: str
    ) -> dict[str, Any]:
        """Return the numbers of a chunk, or their texts."""
        if columns[0].has_lists:
            return {self.name: ListSource(memory, *span, kind="text", where=where)}
        found = _numbers(memory, span, self.type_name)
        if found is None:
            raise DamagedDataError(
                f"{where}: a text is not a number of type {self.type_name}; copy or write the file "
                "again"
            )
        return {self.name: found}


def _fixed(memory: Bytes, span: Span, column: Column, where: str) -> ScatteredRows:
    wrong = span.lengths[span.lengths != column.row_bytes]
    if len(wrong):
        raise DamagedDataError(
            f"{where}: a value has {several(int(wrong[0]), 'byte')} but should have "
            f"{column.row_bytes}; copy or write the file again"
        )
    return ScatteredRows(
        memory, span.starts, type_name=column.type_name, shape=column.shape, where=where
    )


def _numbers(memory: Bytes, span: Span, type_name: str) -> NDArray[Any] | None:
    """Return texts as numbers; None if one of them is not a number of the type."""
    if not len(span.starts):
        return np.empty(0, type_name)
    longest = int(span.lengths.max())
    if longest > _MOST_DIGITS or not span.lengths.min():
        return None
    texts = ListSource(memory, *span, kind="bytes").gather(np.arange(len(span.starts)))
    if not texts.values.min():
        return None  # numpy would take an ending of zeros for padding.
    padded, _ = texts.padded()
    try:
        return padded.view(f"S{longest}").reshape(-1).astype(type_name)
    except (ValueError, OverflowError):
        return None
