"""Shuffled tables for small `n`, exactly uniform: sort the numbers by a keyed hash of each.

A Feistel network over a handful of values cannot reach every permutation equally often; sorting
independent hashes can. The hash's lowest bits are replaced by the number itself, so the sorted
words carry the table, no two words are equal, and every sorting algorithm gives the same answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["TABLE_LIMIT", "shuffled_tables"]

TABLE_LIMIT = 4096

_INDEX_BITS = np.uint64(TABLE_LIMIT - 1)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = np.uint64(32)


def shuffled_tables(n: int, key: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return one row per number: the permutation of `[0, n)` that belongs to (key, number).

    Examples:
        >>> rows = shuffled_tables(4, 7, np.array([0, 1], dtype=np.uint64))
        >>> [sorted(row) for row in rows.tolist()]
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    low, high = np.uint64(key & (2**64 - 1)), np.uint64(key >> 64)
    columns = np.arange(n, dtype=np.uint64)
    words = numbers[:, None] * np.uint64(n) + columns
    words ^= low
    for multiplier in (*_MULTIPLIERS, _MULTIPLIERS[0]):
        words *= multiplier
        words ^= words >> _SHIFT
        words += high
    words &= ~_INDEX_BITS
    words |= columns
    words.sort(axis=1)
    words &= _INDEX_BITS
    return words.astype(np.uint16)
