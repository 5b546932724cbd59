"""Columns of `obs`: their kinds, and how those of several files are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.packing.anndata.nodes import Node, Scan
from feedline.packing.rows import SourceFault, lists_of
from feedline.store.lists import Lists

_NULLABLE = ("nullable-integer", "nullable-boolean", "nullable-string-array")
_MAX_CATEGORIES = 2**24
_LEAVE_OUT = "exclude it with obs=[…]"


@dataclass(frozen=True, kw_only=True)
class ColumnKind:
    """The kind of a column: `dtype` is None for strings, and that of the codes for categories."""

    encoding: str
    dtype: np.dtype[Any] | None
    is_ordered: bool = False
    categories: tuple[Any, ...] = ()
    #: The type of the categories; None for strings.
    category_dtype: np.dtype[Any] | None = None

    def __str__(self) -> str:
        of = self.category_dtype if self.encoding == "categorical" else self.dtype
        order = "ordered " if self.is_ordered else ""
        return f"{order}{self.encoding} of {of or 'strings'}"

    def is_like(self, other: ColumnKind) -> bool:
        """Whether columns of these kinds can be joined; unordered categories may differ."""
        if self.encoding != "categorical":
            return self == other
        categories = self.categories if self.is_ordered else other.categories
        return replace(self, dtype=other.dtype, categories=categories) == other


class SourceColumn:
    """A column of `obs` of one file, or its index."""

    def __init__(self, node: Node, num_rows: int, max_bytes: int) -> None:
        self._node = node
        self._table: NDArray[Any] | None = None
        self.where = node.where
        encoding = node.encoding
        if not node.is_group and encoding in ("", "array", "string-array"):
            self._values = self._scan(node, num_rows, max_bytes)
            encoding = "string-array" if node.is_text else "array"
            self.kind = ColumnKind(encoding=encoding, dtype=None if node.is_text else node.dtype)
        elif node.is_group and encoding == "categorical":
            codes = node.child("codes")
            self._values = self._scan(codes, num_rows, max_bytes)
            self.kind = _categorical(node, codes)
        elif node.is_group and encoding in _NULLABLE:
            values, mask = node.child("values"), node.child("mask")
            self._values = self._scan(values, num_rows, max_bytes)
            self._mask = self._scan(mask, num_rows, max_bytes)
            if mask.dtype != np.bool_ or values.is_text != (encoding == _NULLABLE[2]):
                raise DamagedDataError(f"{self.where}: its values or its mask are of another type")
            dtype = None if values.is_text else values.dtype
            self.kind = ColumnKind(encoding=encoding, dtype=dtype)
        else:
            raise SourceFault(
                f"{self.where}: is encoded as {encoding!r:.80} and must be numbers, strings, "
                f"categories or a nullable array of them; convert it, or {_LEAVE_OUT}"
            )

    def read(self, name: str, start: int, stop: int, joined: ColumnKind) -> dict[str, Any]:
        """Return the next rows as columns named after this one, with the codes of `joined`."""
        values: Any = self._values.read(start, stop)
        if self.kind.encoding == "categorical":
            return {name: self._recode(values, joined)}
        if self.kind.dtype is None:
            values = to_text(self.where, start, values)
        if self.kind.encoding not in _NULLABLE:
            return {name: values}
        return {name: values, f"{name}/mask": self._mask.read(start, stop)}

    def _recode(self, codes: NDArray[Any], joined: ColumnKind) -> NDArray[Any]:
        num_categories = len(self.kind.categories)
        if codes.size and (codes.min() < -1 or codes.max() >= num_categories):
            raise DamagedDataError(
                f"{self.where}: has codes from {codes.min()} to {codes.max()}, which must be in "
                f"[-1, {num_categories})"
            )
        assert joined.dtype is not None
        if joined.categories == self.kind.categories:
            return codes.astype(joined.dtype)
        if self._table is None:
            places = {category: place for place, category in enumerate(joined.categories)}
            # The last entry is for code -1, a missing value.
            table = [*(places[category] for category in self.kind.categories), -1]
            self._table = np.array(table, joined.dtype)
        return self._table[codes.astype(np.int64)]

    def _scan(self, node: Node, num_rows: int, max_bytes: int) -> Scan:
        if node.is_group or node.shape != (num_rows,):
            raise DamagedDataError(
                f"{node.where}: has shape {node.shape} but must have ({num_rows},), one value for "
                f"each row; repair it, or {_LEAVE_OUT}"
            )
        if not node.is_text:
            _ = node.dtype  # refuses objects before anything is read
        return Scan(node, max_bytes)


def join_kinds(columns: Sequence[SourceColumn]) -> ColumnKind:
    """Return the kind of the joined columns; categories are in order of appearance."""
    first = columns[0].kind
    for column in columns:
        if not first.is_like(column.kind):
            raise SourceFault(
                f"{column.where}: is {column.kind} but {columns[0].where} is {first}, or has other "
                f"ordered categories; convert them to one type, or {_LEAVE_OUT}"
            )
    if first.encoding != "categorical":
        return first
    met = dict.fromkeys(category for column in columns for category in column.kind.categories)
    sizes = (np.int8, np.int16, np.int32)
    dtype = next(np.dtype(size) for size in sizes if len(met) <= np.iinfo(size).max)
    return replace(first, dtype=dtype, categories=tuple(met))


def to_text(where: str, start: int, values: NDArray[Any]) -> Lists:
    """Return strings as UTF-8 bytes, or raise.

    Examples:
        >>> text = to_text("a", 0, np.array(["é", ""], object))
        >>> text.offsets.tolist(), text.values.tolist()
        ([0, 2, 2], [195, 169])
    """
    encoded = []
    for row, value in enumerate(values.tolist(), start):
        try:
            encoded.append(value.encode("utf-8"))
        except (AttributeError, UnicodeEncodeError):
            raise DamagedDataError(
                f"{where}: has {value!r:.80} at row {row}, which must be text; convert it, or "
                f"{_LEAVE_OUT}"
            ) from None
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return lists_of(np.frombuffer(b"".join(encoded), np.uint8), sizes, "text")


def check_path_name(name: Any, where: str) -> str:
    """Return the name of a column if it is a valid folder name, or raise."""
    is_sound = isinstance(name, str) and bool(name) and not set(name) & set("/\\\0")
    if not is_sound or name.startswith((".", "__")) or name == "zarr.json":
        raise InvalidValueError(
            f"{where}: has a column {name!r:.80}, which must be a name without slashes that does "
            f"not begin with a dot or '__'; rename it, or {_LEAVE_OUT}"
        )
    return str(name)


def _categorical(node: Node, codes: Node) -> ColumnKind:
    stored = node.child("categories")
    if stored.is_group or len(stored.shape) != 1 or stored.num_rows > _MAX_CATEGORIES:
        raise DamagedDataError(
            f"{stored.where}: has shape {stored.shape} and must be a list of at most "
            f"{_MAX_CATEGORIES} categories"
        )
    if codes.dtype.kind not in "iu":
        raise DamagedDataError(f"{codes.where}: is of type {codes.dtype} and must be integers")
    dtype = None if stored.is_text else stored.dtype
    categories = tuple(stored.read(0, stored.num_rows).tolist())
    if stored.is_text:
        to_text(stored.where, 0, np.array(categories, object))
    if len(set(categories)) != len(categories):
        raise DamagedDataError(f"{stored.where}: has a category twice")
    return ColumnKind(
        encoding="categorical",
        dtype=codes.dtype,
        is_ordered=bool(node.attribute("ordered")),
        categories=categories,
        category_dtype=dtype,
    )
