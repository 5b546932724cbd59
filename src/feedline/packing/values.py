"""Python values as columns: numbers, arrays, dates, texts, bytes, lists and records in records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError
from feedline.packing.arrow_columns import to_columns
from feedline.packing.rows import Flat, SourceFault, Values, as_column, lists_of
from feedline.store.extras import import_arrow
from feedline.store.lists import Lists, ListSource

_BYTES = (bytes, bytearray, memoryview)
_NUMBERS = (bool, int, float)


def column_from(where: str, name: str, values: Any) -> Flat:
    """Return a column that is given as a whole: an array, a list, `Lists`, or columns in it.

    Examples:
        >>> found = column_from("source", "x", ["a", None, "bc"])
        >>> found.values["x"].tolist(), found.missing["x"].tolist()
        (['a', '', 'bc'], [False, True, False])
    """
    if isinstance(values, Lists):
        return Flat({name: _checked_lists(where, name, values)}, {})
    if isinstance(values, Mapping):
        found = Flat({}, {})
        for key, inner in values.items():
            found.add(column_from(where, f"{name}/{_key(where, name, key)}", inner), where)
        return found
    if isinstance(values, list | tuple) and not _are_plain(values):
        return column_of_items(where, 0, name, values)
    if isinstance(values, np.ma.MaskedArray):
        return _masked(where, name, values)
    if (nullable := _with_nulls(values)) is not None:
        return to_columns(where, 0, name, nullable)
    array = as_array(where, name, values)
    if array.ndim == 0:
        raise SourceFault(
            f"{where}: column {name!r:.80} is a single value and must have at least 1 axis, which "
            "counts the rows; use an array of shape (1,)"
        )
    if array.dtype.kind in "OUST" and array.ndim == 1:
        return column_of_items(where, 0, name, array.tolist())
    as_column(where, 0, name, array[:0])
    return Flat({name: array}, {})


def column_of_items(where: str, row: int, name: str, items: Sequence[Any]) -> Flat:
    """Return the values of a column, one for each row; `row` is the number of the first.

    None is a missing value. Values of one shape become an array, and others lists. If no value
    tells the type, the column is one of objects.
    """
    is_missing = np.fromiter((item is None for item in items), np.bool_, len(items))
    missing = {name: is_missing} if is_missing.any() else {}
    places = np.flatnonzero(~is_missing)
    present = [items[place] for place in places.tolist()] if missing else list(items)
    first = present[0] if present else None
    if first is None:
        return Flat({name: np.full(len(items), None, object)}, missing)
    for kind, types in (("text", (str,)), ("bytes", _BYTES), ("record", (Mapping,))):
        is_this = [isinstance(item, types) for item in present]
        if all(is_this):
            if kind == "record":
                return _records(where, row, name, items)
            return Flat({name: _strings(where, row, name, kind, items)}, missing)
        if any(is_this):
            odd = is_this.index(not is_this[0])
            raise SourceFault(
                f"{_at(where, row + int(places[odd]))}: column {name!r:.80} is "
                f"{_said(present[odd])} but {_said(present[0])} before; all values of a column "
                "must be of one kind; convert them"
            )
    return Flat({name: _numbers(where, row, name, present, places, len(items))}, missing)


def as_array(where: str, name: str, values: Any) -> NDArray[Any]:
    """Return values as an array, or raise."""
    try:
        array = np.asarray(values)
    except TypeError as error:
        raise SourceFault(
            f"{where}: column {name!r:.80} has no numpy type ({error!s:.200}); convert it, such as "
            "by tensor.float()"
        ) from None
    except (ValueError, OverflowError) as error:
        raise SourceFault(
            f"{where}: column {name!r:.80} is not an array of one shape ({error!s:.200}); pad or "
            "cut its inner lists to one length"
        ) from None
    if isinstance(values, list | tuple) and array.dtype.kind == "f":
        _refuse_rounded(where, name, values, array)
    return array


def _refuse_rounded(where: str, name: str, values: Any, array: NDArray[Any]) -> None:
    """Refuse integers that numpy made floats of, because they are beside floats, or too large."""
    for place in np.argwhere(np.abs(array) >= 2.0**53).tolist():
        value = values
        for number in place:
            value = value[number]
        if isinstance(value, int | np.integer) and int(value) != float(array[tuple(place)]):
            raise SourceFault(
                f"{where}: column {name!r:.80} has {value!s:.40}, which the type of the column, "
                f"{array.dtype.name}, would round; convert it, for example with "
                "numpy.asarray(values, dtype)"
            )


def _with_nulls(values: Any) -> Any:
    """Return an array of pyarrow or pandas with missing values, which numpy would make NaN."""
    inner = getattr(values, "array", values)
    if hasattr(inner, "__arrow_array__"):
        return import_arrow().array(inner) if values.isna().any() else None
    is_arrow = type(values).__module__.split(".")[0] == "pyarrow"
    return values if is_arrow and getattr(values, "null_count", False) else None


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether numpy makes an array of these by itself: numbers, or equal lists of numbers."""
    if not values or all(type(value) in _NUMBERS for value in values):
        return True
    first = values[0]
    if not isinstance(first, list | tuple) or not first:
        return False
    is_equal = all(isinstance(v, list | tuple) and len(v) == len(first) for v in values)
    return is_equal and all(_are_plain(value) for value in values)


def _checked_lists(where: str, name: str, lists: Lists) -> Lists:
    try:
        ListSource.of(lists, where=f"{where}: column {name!r:.80}")
    except FeedlineError as error:
        raise SourceFault(str(error)) from None
    values = as_column(where, 0, name, lists.values)
    # Values before the first list and behind the last one are left out.
    return Lists(values, lists.offsets.astype(np.int64), lists.kind)[:]


def _masked(where: str, name: str, values: np.ma.MaskedArray[Any, Any]) -> Flat:
    """Return an array of which some rows are masked."""
    data = np.array(values.data)
    if not values.ndim:
        return column_from(where, name, data)
    mask = np.ma.getmaskarray(values)
    axes = tuple(range(1, mask.ndim))
    is_missing: NDArray[np.bool_] = np.asarray(mask.any(axis=axes))
    if not np.array_equal(is_missing, mask.all(axis=axes)):
        raise SourceFault(
            f"{where}: column {name!r:.80} has masked values inside of rows; fill them, and keep "
            "the mask as another column if it matters"
        )
    data[is_missing] = np.zeros((), data.dtype)
    found = column_from(where, name, data)
    return Flat(found.values, {name: is_missing} if is_missing.any() else {})


def _strings(where: str, row: int, name: str, kind: str, items: Sequence[Any]) -> Lists:
    try:
        encoded = [
            b"" if item is None else item.encode() if kind == "text" else bytes(item)
            for item in items
        ]
    except UnicodeEncodeError as error:
        raise SourceFault(
            f"{where}: column {name!r:.80} has a text that cannot be written as UTF-8 after row "
            f"{row} ({error.reason}); correct it, or pass bytes"
        ) from None
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return lists_of(np.frombuffer(b"".join(encoded), np.uint8), sizes, kind)


def _records(where: str, row: int, name: str, items: Sequence[Any]) -> Flat:
    """Return the columns of records, each with the path to it as name."""
    first = next(item for item in items if item is not None)
    found = Flat({}, {})
    for number, item in enumerate(items):
        if item is not None and item.keys() != first.keys():
            odd = sorted(map(str, item.keys() ^ first.keys()))
            raise SourceFault(
                f"{_at(where, row + number)}: column {name!r:.80} and the one before differ by "
                f"{', '.join(map(repr, odd)):.200}; all records must have the same keys; use None "
                "for missing values"
            )
    for key in first:
        inner = [None if item is None else item[key] for item in items]
        path = f"{name}/{_key(where, name, key)}"
        found.add(column_of_items(where, row, path, inner), where)
    return found


def _key(where: str, name: str, key: Any) -> str:
    if not isinstance(key, str):
        raise SourceFault(f"{where}: column {name!r:.80} has the key {key!r:.80}, not a text")
    return key


def _numbers(
    where: str, row: int, name: str, present: list[Any], places: NDArray[np.int64], num_rows: int
) -> Values:
    """Return numbers, dates, arrays or lists of them, one for each place."""
    at = [_at(where, row + place) for place in places.tolist()]
    cells = [_cell(where, name, value) for where, value in zip(at, present, strict=True)]
    # An empty list of Python has no type.
    typed = [c for c, v in zip(cells, present, strict=True) if c.size or isinstance(v, np.ndarray)]
    first = (typed or cells)[0]
    for number, (cell, value) in enumerate(zip(cells, present, strict=True)):
        is_untyped = not cell.size and not isinstance(value, np.ndarray)
        is_alike = (is_untyped or cell.dtype == first.dtype) and cell.ndim == first.ndim
        if not is_alike or (not is_untyped and cell.shape[1:] != first.shape[1:]):
            found, wanted = (f"{a.dtype.name}{list(a.shape)}" for a in (cell, first))
            raise SourceFault(
                f"{at[number]}: column {name!r:.80} is {found} but {wanted} before; all values of "
                "a column must have one type, and differ in length at most; convert it, for "
                "example with numpy.asarray(value, dtype)"
            )
    sizes = np.zeros(num_rows, np.int64)
    if first.ndim and (len({cell.shape for cell in cells}) > 1 or not typed):
        sizes[places] = [len(cell) for cell in cells]
        if not typed:
            return lists_of(np.empty(0, object), sizes)
        return lists_of(np.concatenate(typed), sizes)
    out = np.zeros((num_rows, *first.shape), first.dtype)
    out[places] = cells
    return out


def _cell(where: str, name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, date | timedelta) and hasattr(value, "to_numpy"):
        # Those of pandas have nanoseconds.
        value = value.to_numpy()
    if isinstance(value, datetime):
        plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return np.asarray(np.datetime64(plain, "us"))
    if isinstance(value, date):
        return np.asarray(np.datetime64(value, "D"))
    if isinstance(value, timedelta):
        return np.asarray(np.timedelta64(value, "us"))
    array = as_array(where, name, value)
    return array if not array.size and array.dtype == object else as_column(where, 0, name, array)


def _at(where: str, row: int) -> str:
    return f"{where}: record {row}"


def _said(value: Any) -> str:
    return f"{value!r:.40} ({type(value).__name__})"
