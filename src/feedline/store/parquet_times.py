"""Times of parquet's old type INT96: pyarrow lets those wrap that nanoseconds cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError

_NANOSECONDS = 10**9


def fields_with_int96(file: Any) -> list[str]:
    """Return the names of the fields of a parquet file that have times of the old type."""
    leaves = map(file.schema.column, range(len(file.schema)))
    paths = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    # Names may have dots, as paths do.
    return [
        name
        for name in dict.fromkeys(file.schema_arrow.names)
        if any(path == name or path.startswith(f"{name}.") for path in paths)
    ]


def refuse_wrapped(where: object, arrow: Any, table: Any, seconds: Any) -> None:
    """Raise if times of a table are not those that were decoded in seconds, in another table."""
    for name in seconds.schema.names:
        both = (_times(arrow, found.column(name)) for found in (table, seconds))
        for fine, coarse in zip(*both, strict=True):
            # Beside old times there may be others, which are the same in both.
            if fine.type != coarse.type and np.any(
                _counts(fine) // _NANOSECONDS != _counts(coarse)
            ):
                raise InvalidValueError(
                    f"{where}: column {name!r:.80} has times of parquet's old type INT96 before "
                    "1677 or after 2262, which would come out wrong; write it again with times in "
                    "microseconds, or select other columns with columns=[...]"
                )


def _counts(array: Any) -> NDArray[np.int64]:
    found: NDArray[np.int64] = array.drop_null().view("int64").to_numpy()
    return found


def _times(arrow: Any, array: Any) -> Iterator[Any]:
    """Yield the times in a column; they may be inside of lists and structs."""
    types = arrow.types
    parts: Iterable[Any] = ()
    if isinstance(array, arrow.ChunkedArray):
        parts = array.chunks
    elif types.is_struct(array.type):
        parts = array.flatten()
    elif types.is_list(array.type) or types.is_large_list(array.type):
        parts = [array.flatten()]
    elif types.is_timestamp(array.type):
        yield array
    for part in parts:
        yield from _times(arrow, part)
