"""Arrow columns as numpy arrays of one shape per row, and the refusal of those that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.batch import SourceFault, as_column
from feedline.store.arrow import import_arrow

__all__ = ["to_array"]


def to_array(where: str, row: int, name: str, values: Any) -> NDArray[Any]:
    """Return a column of a table as an array, or raise an error that names file, row and column.

    `row` is the number of the first row of the table in the file.
    """
    types = import_arrow("pyarrow").types
    array = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    shape = [len(array)]
    per_row = 1
    while True:
        if array.null_count:
            missing = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise SourceFault(
                f"{where}: column {name!r:.80} has no value at row {row + missing // per_row}; "
                "every row must have one, so fill it in, or leave the column out by columns=[…]"
            )
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif types.is_fixed_size_list(array.type):
            shape.append(array.type.list_size)
            array = array.flatten()
        elif types.is_list(array.type) or types.is_large_list(array.type):
            lengths = array.value_lengths().to_numpy()
            shape.append(int(lengths[0]) if len(lengths) else 0)
            if (others := np.flatnonzero(lengths != shape[-1])).size:
                raise SourceFault(
                    f"{where}: column {name!r:.80} has {lengths[others[0]]} values at row "
                    f"{row + int(others[0]) // per_row} but {shape[-1]} before; all lists of a "
                    "column must have one length, so pad or cut them, or leave the column out by "
                    "columns=[…]"
                )
            array = array.flatten()
        else:
            break
        per_row = max(1, int(np.prod(shape[1:])))
    kind = array.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise SourceFault(
            f"{where}: column {name!r:.80} is of type {kind} at row {row} and must be of booleans, "
            "integers or floats; convert it, or leave it out by columns=[…]"
        )
    numbers = array.to_numpy(zero_copy_only=False)
    return as_column(where, row, name, numbers.reshape(shape))
