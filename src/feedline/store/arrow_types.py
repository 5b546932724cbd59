"""The columns of Arrow schemas: which of them a store can hold, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.errors import StoreError

#: The remedy for a column that no store can hold.
OTHERS = "select other columns with columns=[...]"
_LISTS = ("is_list", "is_large_list", "is_list_view", "is_large_list_view")
_TEXTS = ("is_string", "is_large_string", "is_string_view")
_BYTES = ("is_binary", "is_large_binary", "is_binary_view")
_NUMBERS = ("is_boolean", "is_integer", "is_floating")
# A schema may nest types as deep as it likes, and Python may not.
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Form:
    """How values of an Arrow type are held.

    `axes` has the length of the lists at each level, outermost first; None if it differs from list
    to list, as far as the type tells.
    """

    kind: str
    type_name: str
    axes: tuple[int | None, ...] = ()

    @property
    def may_be_lists(self) -> bool:
        """Whether the data must tell if this is an array or a column of lists."""
        return bool(self.axes) and self.axes[0] is None

    @property
    def min_bytes(self) -> int:
        """The least number of bytes that a sample has in memory."""
        if self.kind != "array" or self.may_be_lists:
            return 4
        sizes = [size for size in self.axes if size is not None]
        return int(np.dtype(self.type_name).itemsize * np.prod(sizes, dtype=object))


@dataclass(frozen=True)
class Leaf:
    """A value of every sample: a column of a table, or a field of a struct in one.

    Args:
        steps: The name of the column, and of the field at each level of structs.
        type_: The Arrow type.
        is_nullable: Whether the schema allows nulls.
        leaf: Its number among all leaves, which are the columns of a parquet file.
        nodes: The numbers of its structs and of itself among all fields of a schema, depth first.
    """

    steps: tuple[str, ...]
    type_: Any
    is_nullable: bool
    leaf: int
    nodes: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the column in a store."""
        return "/".join(self.steps)


def leaves_of(arrow: Any, schema: Any) -> list[Leaf]:
    """Return all leaves of a schema, also of types that no store can hold."""
    return list(_leaves(arrow, schema, (), True, (0, ()), 0))


def _leaves(
    arrow: Any,
    fields: Any,
    steps: tuple[str, ...],
    is_top: bool,
    at: tuple[int, tuple[int, ...]],
    leaf: int,
    is_nullable: bool = False,
) -> Iterator[Leaf]:
    node, nodes = at
    _check_depth(len(steps))
    for field in fields:
        type_ = storage_type(arrow, field.type)
        here = (*steps, field.name)
        may_be_null = is_nullable or field.nullable
        if arrow.types.is_struct(type_) and type_.num_fields:
            inside = [type_.field(i) for i in range(type_.num_fields)]
            below = (node + 1, (*nodes, node))
            yield from _leaves(arrow, inside, here, False, below, leaf, may_be_null)
        else:
            yield Leaf(here, type_, may_be_null, leaf, (*nodes, node))
        num_leaves, num_nodes = count_parts(arrow, type_)
        leaf, node = leaf + num_leaves, node + num_nodes


def count_parts(arrow: Any, type_: Any, depth: int = 0) -> tuple[int, int]:
    """Return the number of leaves of a type in parquet, and of nodes in an Arrow message."""
    _check_depth(depth)
    type_ = storage_type(arrow, type_)
    if arrow.types.is_dictionary(type_):
        # The values of a dictionary are in messages of their own.
        return count_parts(arrow, type_.value_type, depth + 1)[0], 1
    parts = [
        count_parts(arrow, type_.field(number).type, depth + 1)
        for number in range(type_.num_fields)
    ]
    if not parts:
        return 1, 1
    return sum(leaves for leaves, _ in parts), 1 + sum(nodes for _, nodes in parts)


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"types are nested in more than {_MAX_DEPTH} levels")


def storage_type(arrow: Any, type_: Any) -> Any:
    """Return the type that values of an extension type are stored as; others as they are."""
    depth = 0
    while isinstance(type_, arrow.BaseExtensionType):
        _check_depth(depth := depth + 1)
        type_ = type_.storage_type
    return type_


def form_of(arrow: Any, where: str, type_: Any) -> Form:
    """Return how values of a type are held, or raise an error that says what to do."""
    axes: list[int | None] = []
    inner = storage_type(arrow, type_)
    while True:
        if is_any(arrow, inner, "is_dictionary"):
            inner = inner.value_type
        elif is_any(arrow, inner, "is_fixed_size_list"):
            axes.append(int(inner.list_size))
            inner = inner.value_type
        elif is_any(arrow, inner, *_LISTS):
            axes.append(None)
            inner = inner.value_type
        else:
            break
        inner = storage_type(arrow, inner)
        _check_depth(len(axes))
    if is_any(arrow, inner, *_TEXTS, *_BYTES) and not axes:
        return Form("text" if is_any(arrow, inner, *_TEXTS) else "bytes", "uint8")
    if is_any(arrow, inner, "is_fixed_size_binary") and not is_any(arrow, inner, "is_decimal"):
        return Form("array", "uint8", (*axes, int(inner.byte_width)))
    name = _type_name(arrow, inner)
    if name is None:
        raise StoreError(
            f"{where} has type {type_!s:.80}, which no column can have; {_remedy(arrow, inner)}, "
            f"or {OTHERS}"
        )
    return Form("array", name, tuple(axes))


def is_any(arrow: Any, type_: Any, *names: str) -> bool:
    """Whether a type is of one of some kinds; older versions of pyarrow lack some."""
    return any(getattr(arrow.types, name, _never)(type_) for name in names)


def _never(type_: Any) -> bool:
    return False


def _type_name(arrow: Any, type_: Any) -> str | None:
    if is_any(arrow, type_, *_NUMBERS):
        return str(np.dtype(type_.to_pandas_dtype()).name)
    if is_any(arrow, type_, "is_date32"):
        return "datetime64[D]"
    if is_any(arrow, type_, "is_date64"):
        return "datetime64[ms]"
    if is_any(arrow, type_, "is_timestamp"):
        return f"datetime64[{type_.unit}]"
    if is_any(arrow, type_, "is_time", "is_duration"):
        return f"timedelta64[{type_.unit}]"
    return None


def _remedy(arrow: Any, type_: Any) -> str:
    if is_any(arrow, type_, "is_decimal"):
        return "convert it to float64, or to int64 in the smallest unit"
    if is_any(arrow, type_, *_TEXTS, *_BYTES):
        return "join the texts of a list into one, or write them as lists of numbers"
    if is_any(arrow, type_, "is_struct", "is_map"):
        return "write a column for each of its fields"
    return "convert it to numbers, text, bytes or lists of numbers"
