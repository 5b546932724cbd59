"""Parquet chunks: lists, bytes, texts and dates in the types that parquet has for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.rows import Rows, Values
from feedline.store.extras import import_arrow
from feedline.store.lists import Lists

_UNIT = "ms"


def parquet_type(type_name: str) -> str:
    """Return the type that parquet holds values of a type as: it has no dates of seconds."""
    return f"datetime64[{_UNIT}]" if type_name == "datetime64[s]" else type_name


def write_parquet(path: Path, rows: Rows) -> None:
    """Write columns as a parquet file of one row group."""
    arrow = import_arrow()
    table = {
        name: _lists(arrow, path, name, column)
        if isinstance(column, Lists)
        else _numbers(arrow, path, name, column)
        for name, column in rows.items()
    }
    num_rows = len(next(iter(rows.values())))
    import_arrow("pyarrow.parquet").write_table(
        arrow.table(table), path, row_group_size=max(1, num_rows), use_dictionary=False
    )


def to_arrow(where: str, name: str, values: Values) -> Any:
    """Return a column as an array of Arrow.

    Args:
        where: What it is of, for errors.
        name: Its name.
        values: An array, or lists. Dates of seconds become those of milliseconds.
    """
    make: Any = _lists if isinstance(values, Lists) else _numbers
    return make(import_arrow(), Path(where), name, values)


def _numbers(arrow: Any, path: Path, name: str, array: NDArray[Any]) -> Any:
    """Return an array, with a list of one length for each axis after the first."""
    flat = np.ascontiguousarray(array).reshape(-1)
    found = _dates(arrow, path, name, flat) if flat.dtype.kind in "mM" else arrow.array(flat)
    for size in reversed(array.shape[1:]):
        found = arrow.FixedSizeListArray.from_arrays(found, size)
    return found


def _lists(arrow: Any, path: Path, name: str, lists: Lists) -> Any:
    if lists.kind == "list":
        values = _numbers(arrow, path, name, lists.values)
        return arrow.LargeListArray.from_arrays(arrow.array(lists.offsets), values)
    kind = arrow.large_string() if lists.kind == "text" else arrow.large_binary()
    parts = (np.ascontiguousarray(part) for part in (lists.offsets, lists.values))
    return arrow.Array.from_buffers(kind, len(lists), [None, *map(arrow.py_buffer, parts)])


def _dates(arrow: Any, path: Path, name: str, flat: NDArray[Any]) -> Any:
    """Return dates; one that is no date (NaT) is a value too, not a missing one."""
    unit, _ = np.datetime_data(flat.dtype)
    if unit == "D":
        days = flat.view(np.int64)
        if len(days) and (days.min() < -(2**31) or days.max() >= 2**31):
            raise PackError(
                f"{path}: column {name!r:.80} has a date that is NaT or beyond 32 bits of days, "
                "which format='parquet' cannot hold; use another format"
            )
        return arrow.Array.from_buffers(
            arrow.date32(), len(days), [None, arrow.py_buffer(days.astype(np.int32))]
        )
    if flat.dtype.kind == "M" and unit == "s":
        flat, unit = flat.astype(f"M8[{_UNIT}]"), _UNIT
    kind = arrow.timestamp(unit) if flat.dtype.kind == "M" else arrow.duration(unit)
    return arrow.Array.from_buffers(kind, len(flat), [None, arrow.py_buffer(flat.view(np.int64))])
