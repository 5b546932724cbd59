"""Slabs: the memory that many rows are gathered into at once, handed out batch by batch.

The memory comes from a `SlabPool`: it is used again as soon as nobody holds any of its batches.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feedline.store.columns import Arrays, Column

_ALIGNMENT = 64


def layout_of(columns: Mapping[str, Column], num_rows: int) -> dict[str, tuple[int, int]]:
    """Return where the bytes of each column begin and end when they lie one after another.

    Examples:
        >>> layout_of({"x": Column("x", "int64"), "y": Column("y", "int8")}, 3)
        {'x': (0, 24), 'y': (64, 67)}
    """
    layout = {}
    start = 0
    for column in columns.values():
        end = start + column.row_bytes * num_rows
        layout[column.name] = (start, end)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return layout


def bytes_for(columns: Mapping[str, Column], num_rows: int) -> int:
    """Return how much memory `arrays_in` needs for so many rows."""
    return max((end for _, end in layout_of(columns, num_rows).values()), default=0)


def arrays_in(memory: NDArray[np.uint8], columns: Mapping[str, Column], num_rows: int) -> Arrays:
    """Return an array per column, one after another in `memory`."""
    return {
        name: memory[start:end].view(columns[name].dtype).reshape(num_rows, *columns[name].shape)
        for name, (start, end) in layout_of(columns, num_rows).items()
    }
