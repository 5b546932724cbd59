"""Many record batches of an Arrow file as one table, from what their metadata says.

pyarrow would take a call, and some objects, for each batch. Here the places of all values are
computed at once, for the types that lie in a file as they are used. For others, and where anything
is unusual, there is no table: batches are opened one by one then, which also tells what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.store.arrow_batches import Batches
from feedline.store.arrow_chunk import leaves_to_read
from feedline.store.arrow_files import MessageFile, opened_file
from feedline.store.arrow_types import Form, Leaf, is_any, storage_type
from feedline.store.columns import MISSING, Column
from feedline.store.extras import import_arrow
from feedline.store.gather import RowSource
from feedline.store.lists import ListSource
from feedline.store.row_tables import RowTable, Stacked, TableColumn
from feedline.store.slices import Numbers, copy_slices

_STRINGS = ("is_string", "is_binary")
_LARGE_STRINGS = ("is_large_string", "is_large_binary")
_WIDE_NUMBERS = ("is_timestamp", "is_date64", "is_time64", "is_duration")
_NUMBERS = ("is_integer", "is_floating", "is_fixed_size_binary", *_WIDE_NUMBERS)
_THREE_BUFFERS = (*_STRINGS, *_LARGE_STRINGS)
_TWO_BUFFERS = (*_NUMBERS, "is_boolean", "is_decimal", "is_dictionary", "is_date32", "is_time32")


class _UnusualError(Exception):
    """Batches must be opened one by one."""


class _At(NamedTuple):
    """The numbers of the node and of the first buffer of a field."""

    node: int
    buffer: int


def may_be_table(name: str) -> bool:
    """Whether a file may have record batches that can be opened as one table."""
    return name.endswith((".arrow", ".feather"))


def open_table(
    path: Path,
    groups: range,
    sizes: Numbers,
    names: Sequence[str],
    expected: Mapping[str, Column],
) -> RowTable | None:
    """Return some record batches of a file as a table; None if they must be opened one by one.

    Args:
        path: The file.
        groups: The record batches.
        sizes: The number of rows that each of them should have.
        names: The columns to read.
        expected: The columns of the whole data.
    """
    arrow = import_arrow()
    with opened_file(path) as file:
        if not isinstance(file, MessageFile) or getattr(path, "image", None) is not None:
            return None
        batches = file.batches
        if batches.is_compressed or batches.nodes is None or batches.buffers is None:
            return None
        if not np.array_equal(batches.sizes[groups.start : groups.stop], sizes):
            return None
        leaves = leaves_to_read(arrow, path, file.schema, names)
        try:
            reader = _Reader(arrow, path, file.bytes_, batches, groups)
            at = reader.places_of(file.schema)
            columns: dict[str, TableColumn] = {}
            for name, (leaf, form) in leaves.items():
                columns |= reader.column(name, leaf, form, expected, at[leaf.steps])
            columns = {name: columns[name] for name in names}
        except _UnusualError:
            return None
    held = sum(_bytes_held(column, file.bytes_) for column in columns.values())
    return RowTable(path, columns, held)


class _Edges(NamedTuple):
    """The places of lists, their lengths, the batches that have some, and the first of each."""

    starts: Numbers
    counts: Numbers
    filled: Numbers
    firsts: Numbers


class _Reader:
    """Reads columns of some batches of a file."""

    def __init__(
        self, arrow: Any, path: Path, bytes_: NDArray[np.uint8], batches: Batches, groups: range
    ) -> None:
        assert batches.nodes is not None
        assert batches.buffers is not None
        self._arrow, self._path, self._bytes = arrow, path, bytes_
        self._address: int = bytes_.__array_interface__["data"][0]
        part = slice(groups.start, groups.stop)
        self._sizes = batches.sizes[part]
        self._nodes = batches.nodes[part]
        self._buffers = batches.buffers[part]
        # No value takes less than a bit.
        _check(((self._sizes >= 0) & (self._sizes <= 8 * bytes_.size)).all())

    def places_of(self, schema: Any) -> dict[tuple[str, ...], _At]:
        """Return where the leaves of a schema are among nodes and buffers."""
        found: dict[tuple[str, ...], _At] = {}
        end = self._add(found, (), schema, _At(0, 0))
        _check(end == _At(self._nodes.shape[1], self._buffers.shape[1]))
        return found

    def _add(
        self, found: dict[tuple[str, ...], _At], steps: tuple[str, ...], fields: Any, at: _At
    ) -> _At:
        for field in fields:
            here = (*steps, field.name)
            type_ = storage_type(self._arrow, field.type)
            found[here] = at
            if is_any(self._arrow, type_, "is_struct"):
                inside = [type_.field(number) for number in range(type_.num_fields)]
                at = self._add(found, here, inside, _At(at.node + 1, at.buffer + 1))
            else:
                at = self._after(type_, at)
        return at

    def _after(self, type_: Any, at: _At) -> _At:
        """Return the numbers after those of a field of a type."""
        type_ = storage_type(self._arrow, type_)
        if is_any(self._arrow, type_, *_THREE_BUFFERS):
            return _At(at.node + 1, at.buffer + 3)
        if is_any(self._arrow, type_, *_TWO_BUFFERS):
            return _At(at.node + 1, at.buffer + 2)
        if is_any(self._arrow, type_, "is_list", "is_large_list", "is_map"):
            return self._after(type_.field(0).type, _At(at.node + 1, at.buffer + 2))
        if is_any(self._arrow, type_, "is_fixed_size_list"):
            return self._after(type_.value_type, _At(at.node + 1, at.buffer + 1))
        if is_any(self._arrow, type_, "is_struct"):
            after = _At(at.node + 1, at.buffer + 1)
            for number in range(type_.num_fields):
                after = self._after(type_.field(number).type, after)
            return after
        raise _UnusualError

    def column(
        self, name: str, leaf: Leaf, form: Form, expected: Mapping[str, Column], at: _At
    ) -> dict[str, TableColumn]:
        """Return a column, and where it is missing if that is a column too."""
        arrow, column, mask = self._arrow, expected[name], name + MISSING
        _check(column.type_name == form.type_name)
        _check((self._nodes[:, leaf.nodes, 0] == self._sizes[:, None]).all())
        # A field may be missing because a struct around it is.
        _check((self._nodes[:, leaf.nodes[:-1], 1] == 0).all())
        nulls = self._nodes[:, at.node, 1]
        has_mask = mask in expected
        _check((nulls >= 0).all() and (has_mask or not nulls.any()))
        type_ = storage_type(arrow, leaf.type_)
        found: TableColumn
        if is_any(arrow, type_, *_THREE_BUFFERS):
            _check(column.kind == form.kind)
            wide = is_any(arrow, type_, *_LARGE_STRINGS)
            found = self._lists(column, at.buffer + 1, at.buffer + 2, wide, nulls)
        elif is_any(arrow, type_, "is_list", "is_large_list"):
            items = _At(at.node + 1, at.buffer + 2)
            values, _ = self._values(type_.value_type, items, None)
            _check(column.kind in ("array", "list"))
            _check(form.axes[1:] == column.shape[0 if column.has_lists else 1 :])
            wide = is_any(arrow, type_, "is_large_list")
            lay = self._lists if column.has_lists else self._equal_lists
            found = lay(column, at.buffer + 1, values, wide, nulls)
        else:
            # Where values are missing there must be zeros.
            _check(not nulls.any() and not column.has_lists and form.axes == column.shape)
            found = self._rows(type_, column, at)
        if not has_mask:
            return {name: found}
        return {name: found, mask: RowSource(~self._bits(at.buffer, nulls > 0))}

    def _bits(self, buffer: int, is_stored: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bits as bools, for all rows; those of batches without them are set."""
        starts, lengths = self._buffers[:, buffer].T
        num_bytes = -(-self._sizes // 8)
        _check((num_bytes <= lengths)[is_stored].all())
        found = np.ones(int(self._sizes.sum()), np.bool_)
        ends = np.cumsum(self._sizes)
        for number in np.flatnonzero(is_stored & (self._sizes > 0)).tolist():
            size, end = int(self._sizes[number]), int(ends[number])
            data = self._bytes[starts[number] : starts[number] + num_bytes[number]]
            found[end - size : end] = np.unpackbits(data, count=size, bitorder="little")
        return found

    def _values(self, type_: Any, at: _At, num_rows: Numbers | None) -> tuple[int, int]:
        """Return the buffer with values that lie in the file as they are used, and their number."""
        arrow, num_values = self._arrow, 1
        while True:
            type_ = storage_type(arrow, type_)
            _check((self._nodes[:, at.node, 1] == 0).all())
            if num_rows is not None:
                _check((self._nodes[:, at.node, 0] == num_rows).all())
            if not is_any(arrow, type_, "is_fixed_size_list"):
                break
            num_values *= int(type_.list_size)
            num_rows = None if num_rows is None else num_rows * int(type_.list_size)
            type_, at = type_.value_type, _At(at.node + 1, at.buffer + 1)
        is_decimal = is_any(arrow, type_, "is_decimal")
        _check(is_any(arrow, type_, *_NUMBERS) and not is_decimal)
        if is_any(arrow, type_, "is_fixed_size_binary"):
            num_values *= int(type_.byte_width)
        return at.buffer + 1, num_values

    def _rows(self, type_: Any, column: Column, at: _At) -> TableColumn:
        """Return a column of equal rows."""
        if is_any(self._arrow, type_, "is_boolean"):
            return RowSource(self._bits(at.buffer + 1, np.ones(len(self._sizes), np.bool_)))
        buffer, num_values = self._values(type_, at, self._sizes)
        # Those of tensors are stored as flat lists.
        _check(num_values == math.prod(column.shape) and column.row_bytes > 0)
        starts, lengths = self._buffers[:, buffer].T
        _check((self._sizes <= lengths // column.row_bytes).all())
        return Stacked(self._bytes, self._address + starts, column.row_bytes)

    def _lists(
        self, column: Column, offsets: int, values: int, is_wide: bool, nulls: Numbers
    ) -> ListSource:
        """Return a column of lists, bytes or text, from its buffers of offsets and of values."""
        edges = self._edges(offsets, values, is_wide, column.value_bytes)
        counts = edges.counts
        if nulls.any():
            # The buffer before that of the offsets.
            counts = np.where(self._bits(offsets - 1, nulls > 0), counts, 0)
        return ListSource(
            self._bytes,
            edges.starts,
            counts * column.value_bytes,
            kind=column.kind,
            type_name=column.type_name,
            shape=column.shape,
            where=str(self._path),
        )

    def _equal_lists(
        self, column: Column, offsets: int, values: int, is_wide: bool, nulls: Numbers
    ) -> Stacked:
        """Return lists of one length, which are an array."""
        item_bytes = column.dtype.itemsize * math.prod(column.shape[1:])
        _check(not nulls.any() and column.row_bytes > 0)
        edges = self._edges(offsets, values, is_wide, item_bytes)
        _check((edges.counts == column.shape[0]).all())
        addresses = np.full(len(self._sizes), self._address)
        addresses[edges.filled] += edges.starts[edges.firsts]
        return Stacked(self._bytes, addresses, column.row_bytes)

    def _edges(self, offsets: int, values: int, is_wide: bool, item_bytes: int) -> _Edges:
        """Return where lists begin in the file, and the number of their items."""
        # Buffers of batches without rows may be empty.
        filled = np.flatnonzero(self._sizes > 0)
        sizes = self._sizes[filled]
        starts, lengths = self._buffers[filled, offsets].T
        width = 8 if is_wide else 4
        _check(item_bytes > 0 and len(filled) and (sizes < lengths // width).all())
        ends = np.cumsum(sizes + 1)
        memory = np.empty(width * int(ends[-1]), np.uint8)
        copy_slices(self._address + starts, width * (sizes + 1), memory)
        found = memory.view("<i8" if is_wide else "<i4").astype(np.int64)
        is_last = np.zeros(len(found), np.bool_)
        is_last[ends - 1] = True
        counts = np.diff(found, append=0)[~is_last]
        bases, room = self._buffers[filled, values].T
        _check((found[ends - sizes - 1] >= 0).all() and (counts >= 0).all())
        _check((found[ends - 1] <= room // item_bytes).all())
        places = found[~is_last] * item_bytes + np.repeat(bases, sizes)
        return _Edges(places, counts, filled, np.cumsum(sizes) - sizes)


def _check(is_usual: Any) -> None:
    if not is_usual:
        raise _UnusualError


def _bytes_held(column: TableColumn, bytes_: NDArray[np.uint8]) -> int:
    if isinstance(column, ListSource):
        return column.nbytes - bytes_.nbytes
    return column.nbytes
