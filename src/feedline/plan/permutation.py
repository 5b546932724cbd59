"""Keyed permutations of `[0, n)`, computed per position in memory that does not grow with `n`.

Small ones are shuffled tables, exactly uniform: the numbers sorted by a keyed hash of each. A
Feistel network over a handful of values cannot reach every permutation equally often; sorting
independent hashes can. The hash's lowest bits are replaced by the number itself, so the sorted
words carry the table, no two words are equal, and every sorting algorithm gives the same answer.

Many permutations may come from one key, such as the windows of an epoch. They have numbers, and the
size is hashed with the key: otherwise two sizes would share hashed words, and shuffle alike.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.lazy import lazy
from feedline.plan.feistel import FeistelNetwork
from feedline.plan.feistel_tables import FeistelTables

MAX_SIZE = 2**63 - 1
TABLE_LIMIT = 4096

INDEX_BITS = np.uint64(TABLE_LIMIT - 1)
MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFT = np.uint64(32)
_MAX_TABLE_CELLS = 2**16
# Runs of fewer values than this are cheaper together, with keys of their own for every value.
_SHORT_RUN = 16


class Permutation:
    """A keyed bijection of `[0, n)` for any `1 <= n < 2**63`, forward and inverse.

    Below a few thousand values a shuffled table is used, above that a Feistel network.

    Args:
        n: The number of values.
        key: A number below `2**128`, as `derive_key` returns it.
        number: Which permutation of this key, where it has several, such as the windows of an
            epoch. Those of different numbers or sizes are independent. Without a number, the key
            must belong to this permutation alone: those of other sizes may be alike.

    Examples:
        >>> permutation = Permutation(10**12, key=7)
        >>> places = permutation.forward(np.array([0, 1, 999_999_999_999]))
        >>> permutation.inverse(places).tolist()
        [0, 1, 999999999999]
    """

    def __init__(self, n: int, key: int, number: int | None = None) -> None:
        self.n = check_integer("n", n, 1, MAX_SIZE)
        key = check_integer("key", key, 0, 2**128 - 1)
        if number is not None:
            number = check_integer("number", number, 0, 2**64 - 1)
        self._map: FeistelNetwork | NDArray[np.uint16]
        small = self.n <= TABLE_LIMIT
        self._map = _table(self.n, key, number) if small else FeistelNetwork(self.n, key, number)

    @classmethod
    def of_table(cls, table: NDArray[np.uint16]) -> Permutation:
        """Return the permutation that is written down in a table."""
        permutation = cls.__new__(cls)
        permutation.n, permutation._map = len(table), table
        return permutation

    def __repr__(self) -> str:
        return f"Permutation(n={self.n})"

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each position; positions must lie in `[0, n)`."""
        if isinstance(self._map, FeistelNetwork):
            return self._map.forward(positions)
        return self._map.take(positions).astype(np.int64)

    def stride(self, positions: range) -> NDArray[Any]:
        """Return the values at a range of positions, as integers of any width."""
        if positions.step == 1:
            return self.run(positions.start, positions.stop)
        if isinstance(self._map, FeistelNetwork):
            return self._map.stride(positions)
        return self._map[positions.start : positions.stop : positions.step]

    def words(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the value at each position, as integers of any width."""
        if isinstance(self._map, FeistelNetwork):
            return self._map.words(positions)
        return self._map.take(positions)

    def run(self, first: int, end: int) -> NDArray[Any]:
        """Return the values at positions `[first, end)`, as integers of any width."""
        if isinstance(self._map, FeistelNetwork):
            return self._map.run(first, end)
        return self._map[first:end]

    def tables_for(self, num_values: int) -> FeistelTables | None:
        """Return the tables that so many values go through, if they go through a network's."""
        if isinstance(self._map, FeistelNetwork):
            return self._map.tables_for(num_values)
        return None

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each value; values must lie in `[0, n)`."""
        if isinstance(self._map, FeistelNetwork):
            return self._map.inverse(values)
        places = np.empty(self.n, dtype=np.int64)
        places[self._map] = np.arange(self.n)
        return places[values]


class KeepLast:
    """A permutation of `[0, n)` that leaves the last value where it is.

    Examples:
        >>> KeepLast(5, key=7).forward(np.array([4])).tolist()
        [4]
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = check_integer("n", n, 1, MAX_SIZE)
        self._others = Permutation(max(1, n - 1), key)

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each position; positions must lie in `[0, n)`."""
        return self._but_last(positions, self._others.forward)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each value; values must lie in `[0, n)`."""
        return self._but_last(values, self._others.inverse)

    def _but_last(self, values: NDArray[np.int64], others: Any) -> NDArray[np.int64]:
        last = self.n - 1
        return np.where(values == last, last, others(np.minimum(values, max(0, last - 1))))


def numbered_permutations(
    sizes: NDArray[np.int64], key: int, numbers: NDArray[np.int64]
) -> list[Callable[[], Permutation]]:
    """Return what makes `Permutation(size, key, number)` of each pair.

    Tables of one size are made together, several at a time, when one of them is.

    Examples:
        >>> both = numbered_permutations(np.array([4, 5000]), 7, np.array([0, 1]))
        >>> [make() for make in both]
        [Permutation(n=4), Permutation(n=5000)]
    """
    if len(numbers) == 1 or sizes.min() > TABLE_LIMIT or np.any(sizes != sizes[0]):
        pairs = zip(sizes.tolist(), numbers.tolist(), strict=True)
        return [partial(Permutation, size, key, number) for size, number in pairs]
    n = int(sizes[0])
    at_once = max(1, _MAX_TABLE_CELLS // n)
    groups = (
        _Tables(n, key, numbers[first : first + at_once].astype(np.uint64))
        for first in range(0, len(numbers), at_once)
    )
    return [partial(group.permutation, row) for group in groups for row in range(len(group))]


class _Tables:
    """Permutations whose tables are made together."""

    def __init__(self, n: int, key: int, numbers: NDArray[np.uint64]) -> None:
        self._of = n, key, numbers

    def __len__(self) -> int:
        return len(self._of[2])

    @lazy
    def _rows(self) -> NDArray[np.uint16]:
        return shuffled_tables(*self._of)

    def permutation(self, row: int) -> Permutation:
        return Permutation.of_table(self._rows[row])


def permute_numbered(
    sizes: int | NDArray[np.int64],
    key: int,
    numbers: NDArray[np.int64],
    values: NDArray[np.int64],
    *,
    inverse: bool = False,
) -> NDArray[np.int64]:
    """Return `Permutation(n, key, number).forward(value)` for each pair, or the `inverse`.

    `sizes` is the n of all, or that of each.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64)
    if isinstance(sizes, np.ndarray) and np.any(sizes != sizes[0]):
        result = np.empty(len(values), dtype=np.int64)
        for size in np.unique(sizes).tolist():
            chosen = np.flatnonzero(sizes == size)
            result[chosen] = permute_numbered(
                size, key, numbers[chosen], values[chosen], inverse=inverse
            )
        return result
    n = int(sizes[0]) if isinstance(sizes, np.ndarray) else sizes
    if np.all(numbers[1:] >= numbers[:-1]):
        return _permute_runs(n, key, numbers, values, inverse)
    ascending = np.argsort(numbers, kind="stable")
    result = np.empty(len(values), dtype=np.int64)
    result[ascending] = _permute_runs(n, key, numbers[ascending], values[ascending], inverse)
    return result


def _permute_runs(
    n: int, key: int, numbers: NDArray[np.int64], values: NDArray[np.int64], inverse: bool
) -> NDArray[np.int64]:
    """Return the same for numbers that ascend, run by run of equal numbers."""
    changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    edges = [0, *changes.tolist(), len(numbers)]
    distinct = numbers[np.array(edges[:-1])]
    if n > TABLE_LIMIT and len(values) < _SHORT_RUN * len(distinct):
        network = FeistelNetwork(n, key, numbers)
        return network.inverse(values) if inverse else network.forward(values)
    if n > TABLE_LIMIT or len(distinct) == 1:
        permutations = (Permutation(n, key, number) for number in distinct.tolist())
        parts = [
            (permutation.inverse if inverse else permutation.forward)(values[start:stop])
            for permutation, (start, stop) in zip(permutations, pairwise(edges), strict=True)
        ]
        return np.concatenate(parts)
    result = np.empty(len(values), dtype=np.int64)
    rows = np.repeat(np.arange(len(distinct)), np.diff(edges))
    rows_at_once = max(1, _MAX_TABLE_CELLS // n)
    for first in range(0, len(distinct), rows_at_once):
        tables = shuffled_tables(n, key, distinct[first : first + rows_at_once].astype(np.uint64))
        part = slice(edges[first], edges[min(first + rows_at_once, len(distinct))])
        here = rows[part] - first, values[part]
        result[part] = np.argsort(tables, axis=1)[here] if inverse else tables[here]
    return result


def shuffled_tables(n: int, key: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return one row per number: the permutation of `[0, n)` that belongs to (key, number).

    Examples:
        >>> rows = shuffled_tables(4, 7, np.array([0, 1], dtype=np.uint64))
        >>> [sorted(row) for row in rows.tolist()]
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    return _sorted_words(n, key_of_size(n, key), numbers)


def key_of_size(n: int, key: int) -> int:
    name = b"feedline.table.2" + key.to_bytes(16, "little") + n.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


def _sorted_words(n: int, key: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint16]:
    low, high = np.uint64(key & (2**64 - 1)), np.uint64(key >> 64)
    columns = np.arange(n, dtype=np.uint64)
    words = numbers[:, None] * np.uint64(n) + columns
    words ^= low
    spare = np.empty_like(words)
    for multiplier in (*MULTIPLIERS, MULTIPLIERS[0]):
        words *= multiplier
        np.right_shift(words, SHIFT, out=spare)
        words ^= spare
        words += high
    words &= ~INDEX_BITS
    words |= columns
    words.sort(axis=1)
    words &= INDEX_BITS
    return words.astype(np.uint16)


@functools.lru_cache(maxsize=64)
def _table(n: int, key: int, number: int | None) -> NDArray[np.uint16]:
    of_number = _sorted_words if number is None else shuffled_tables
    table: NDArray[np.uint16] = of_number(n, key, np.array([number or 0], dtype=np.uint64))[0]
    table.flags.writeable = False
    return table
