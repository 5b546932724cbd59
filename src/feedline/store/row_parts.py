"""Rows of matrices that lie one below the other: which of them are in which matrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["rows_by_part"]

Indices = NDArray[np.int64]


def rows_by_part(rows: Indices, edges: Indices) -> Iterator[tuple[int, Indices, Indices]]:
    """Yield each part that has some of the rows: its number, their places, and their rows in it.

    Args:
        rows: Rows of all parts together.
        edges: The first row of each part, and the number of all rows.

    Examples:
        >>> for number, places, inside in rows_by_part(np.array([7, 1, 9]), np.array([0, 5, 10])):
        ...     print(number, places, inside)
        0 [1] [1]
        1 [0 2] [2 4]
    """
    which = np.searchsorted(edges, rows, side="right") - 1
    for number in np.unique(which).tolist():
        places = np.flatnonzero(which == number)
        yield number, places, rows[places] - edges[number]
