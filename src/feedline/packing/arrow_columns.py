"""Columns of Arrow tables as arrays and lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.rows import Flat, SourceFault, Values, as_column, lists_of
from feedline.store.extras import import_arrow

_EXCLUDE = "exclude it with columns=[…]"


def paths_in(schema: Any) -> list[tuple[str, str]]:
    """Return the path of each column of a table, and the name of the field that it is in.

    A field of records has a path for each of their values, such as `a/b`.
    """
    types = import_arrow("pyarrow").types

    def walk(path: str, type_: Any) -> list[str]:
        if not types.is_struct(type_) or not type_.num_fields:
            return [path]
        inner = [type_.field(number) for number in range(type_.num_fields)]
        return [found for field in inner for found in walk(f"{path}/{field.name}", field.type)]

    return [(path, field.name) for field in schema for path in walk(field.name, field.type)]


def to_columns(where: str, row: int, name: str, values: Any) -> Flat:
    """Return a column of a table, or raise an error that names file, row and column.

    `row` is the number of the first row of the table in the file. Records become a column for each
    of their values.
    """
    arrow = import_arrow("pyarrow")
    array = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    if isinstance(array, arrow.ChunkedArray):
        array = arrow.concat_arrays(array.chunks or [arrow.array([], array.type)])
    return _flat(arrow, where, row, name, array)


def _flat(arrow: Any, where: str, row: int, name: str, array: Any) -> Flat:
    types = arrow.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_struct(array.type) and array.type.num_fields:
        found = Flat({}, {})
        # A record that is missing has no value in any of its columns.
        for number, inner in enumerate(array.flatten()):
            path = f"{name}/{array.type.field(number).name}"
            found.add(_flat(arrow, where, row, path, inner), where)
        return found
    is_missing = array.is_null().to_numpy(zero_copy_only=False)
    values = _values(arrow, where, row, name, array)
    return Flat({name: values}, {name: is_missing} if is_missing.any() else {})


def _values(arrow: Any, where: str, row: int, name: str, array: Any) -> Values:
    types, type_ = arrow.types, array.type
    if types.is_null(type_):
        return np.full(len(array), None, object)
    for kind, names in (
        ("text", ("string", "large_string")),
        ("bytes", ("binary", "large_binary")),
    ):
        views = (f"{names[0]}_view", "fixed_size_binary" if kind == "bytes" else "")
        checks = [getattr(types, f"is_{one}", None) for one in (*names, *views)]
        if any(check is not None and check(type_) for check in checks):
            flat = array.cast(arrow.large_binary()).fill_null(b"")
            edges = np.frombuffer(flat.buffers()[1], np.int64)[flat.offset :][: len(flat) + 1]
            data = flat.buffers()[2]
            memory = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            return lists_of(memory[edges[0] : edges[-1]], np.diff(edges), kind)
    if _is_list(types, type_):
        return _list_values(arrow, where, row, name, array)
    return as_column(where, row, name, _plain(arrow, where, row, name, array))


def _list_values(arrow: Any, where: str, row: int, name: str, array: Any) -> Values:
    """Return lists: as an array if they are equally long, or as lists."""
    types = arrow.types
    is_fixed = types.is_fixed_size_list(array.type)
    if is_fixed:
        sizes = np.full(len(array), array.type.list_size)
        if array.null_count:
            # What lies where a list is missing is arbitrary.
            sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    else:
        sizes = array.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    present = array.drop_null() if array.null_count else array
    owners = np.repeat(np.arange(len(sizes)), sizes)
    inner = _inner(arrow, where, row, name, present.flatten(), owners)
    filled = ~array.is_null().to_numpy(zero_copy_only=False)
    if len(array) and not filled.any() and not is_fixed:
        # These rows do not tell whether all lists have one length.
        return np.full(len(array), None, object)
    lengths = np.unique(sizes[filled])
    if inner.dtype == object or (len(lengths) != 1 and not is_fixed):
        return lists_of(inner, sizes)
    length = array.type.list_size if is_fixed else int(lengths[0])
    out = np.zeros((len(array), length, *inner.shape[1:]), inner.dtype)
    out[filled] = inner.reshape(int(filled.sum()), length, *inner.shape[1:])
    return out


def _inner(
    arrow: Any, where: str, row: int, name: str, array: Any, owners: NDArray[Any]
) -> NDArray[Any]:
    """Return what is in lists, with an axis for each level of lists in them."""
    types = arrow.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count and not types.is_null(array.type):
        missing = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise SourceFault(
            f"{where}: column {name!r:.80} has no value inside the list at row "
            f"{row + int(owners[missing])}; only whole lists may be missing; add the value, or "
            f"{_EXCLUDE}"
        )
    if types.is_null(array.type) and not len(array):
        return np.empty(0, object)
    if not _is_list(types, array.type):
        return as_column(where, row, name, _plain(arrow, where, row, name, array))
    if types.is_fixed_size_list(array.type):
        length = int(array.type.list_size)
    else:
        sizes = array.value_lengths().to_numpy()
        length = int(sizes[0]) if len(sizes) else 0
        if (others := np.flatnonzero(sizes != length)).size:
            raise SourceFault(
                f"{where}: column {name!r:.80} has lists of {sizes[others[0]]} and of {length} "
                f"values inside the list at row {row + int(owners[others[0]])}; only the outer "
                f"lists may differ in length; pad or cut the inner ones, or {_EXCLUDE}"
            )
    inner = _inner(arrow, where, row, name, array.flatten(), np.repeat(owners, length))
    return inner.reshape(len(array), length, *inner.shape[1:])


def _plain(arrow: Any, where: str, row: int, name: str, array: Any) -> NDArray[Any]:
    """Return numbers, bools and dates, with 0 where values are missing."""
    types, type_ = arrow.types, array.type
    if types.is_date(type_):
        array = array.cast(arrow.date32()).cast(arrow.int32())
        return _filled(arrow, array).astype("M8[D]")
    if types.is_timestamp(type_) or types.is_duration(type_):
        letter = "M" if types.is_timestamp(type_) else "m"
        return _filled(arrow, array.cast(arrow.int64())).view(f"{letter}8[{type_.unit}]")
    if types.is_time(type_):
        number = array.cast(arrow.int32() if type_.bit_width == 32 else arrow.int64())
        return _filled(arrow, number).astype(np.int64).view(f"m8[{type_.unit}]")
    if types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_):
        return _filled(arrow, array)
    raise SourceFault(
        f"{where}: column {name!r:.80} is of type {type_} at row {row} and must be of booleans, "
        "integers, floats, dates, bytes or texts, lists of numbers, or records of these; convert "
        f"it, or {_EXCLUDE}"
    )


def _filled(arrow: Any, array: Any) -> NDArray[Any]:
    if array.null_count:
        array = array.fill_null(arrow.scalar(0).cast(array.type))
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _is_list(types: Any, type_: Any) -> bool:
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(check(type_) for check in kinds)
