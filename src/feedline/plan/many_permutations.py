"""A few values of each of very many permutations, such as those of a mixture's sources.

One permutation at a time would cost a call for every few values. Here those of all that share a
kind go through it together: tables as rows of one array, networks with keys for every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.plan.feistel import FeistelNetwork
from feedline.plan.feistel_tables import walk_together
from feedline.plan.permutation import (
    INDEX_BITS,
    MULTIPLIERS,
    SHIFT,
    TABLE_LIMIT,
    Permutation,
    key_of_size,
)

Integers = NDArray[np.int64]

# As many values of one permutation are worth a call of their own.
_LONG_RUN = 256
# The arrays of so many cells stay in the cache of one core.
_CELLS_AT_ONCE = 2**14
_LOW = 2**64 - 1


def permute_each(
    sizes: Integers, keys: Sequence[int], numbers: Integers, counts: Integers, values: Integers
) -> Integers:
    """Return `Permutation(size, key, number).forward` of `counts` values of each permutation.

    Values of one permutation lie together, in the order of the permutations.

    Examples:
        >>> sizes, numbers, counts = np.array([9, 5000]), np.array([0, 3]), np.array([1, 2])
        >>> permute_each(sizes, [7, 8], numbers, counts, np.array([4, 0, 1])).tolist() == [
        ...     *Permutation(9, 7, 0).forward(np.array([4])).tolist(),
        ...     *Permutation(5000, 8, 3).forward(np.array([0, 1])).tolist(),
        ... ]
        True
    """
    result = np.empty(len(values), dtype=np.int64)
    ends = np.cumsum(counts)
    starts = ends - counts
    for one in np.flatnonzero(counts >= _LONG_RUN).tolist():
        part = slice(int(starts[one]), int(ends[one]))
        permutation = Permutation(int(sizes[one]), keys[one], int(numbers[one]))
        result[part] = permutation.forward(values[part])
    is_short = (counts > 0) & (counts < _LONG_RUN)
    narrow, small = sizes <= 2**32, sizes <= TABLE_LIMIT
    for is_own, permute in (
        (small, _through_tables),
        (narrow & ~small, _through_networks),
        (~narrow, _through_networks),
    ):
        chosen = np.flatnonzero(is_short & is_own)
        if len(chosen):
            # Ascending sizes, because tables of about one size fit together in an array.
            chosen = chosen[np.argsort(sizes[chosen], kind="stable")]
            own = sizes[chosen].tolist(), [keys[one] for one in chosen.tolist()]
            places = _places(starts[chosen], counts[chosen])
            every = (*own, numbers[chosen].tolist(), counts[chosen])
            result[places] = permute(*every, values[places])
    return result


def permute_runs(
    permutations: Sequence[Permutation], edges: list[int], values: NDArray[Any]
) -> Integers:
    """Return where values `[edges[i], edges[i + 1])` go in permutation i, of not too many.

    Examples:
        >>> both = [Permutation(9, 7), Permutation(5000, 8)]
        >>> permute_runs(both, [0, 1, 3], np.array([4, 0, 1])).tolist() == [
        ...     *both[0].forward(np.array([4])).tolist(),
        ...     *both[1].forward(np.array([0, 1])).tolist(),
        ... ]
        True
    """
    runs = [(own, slice(*run)) for own, run in zip(permutations, pairwise(edges), strict=True)]
    tables = [own.tables_for(part.stop - part.start) for own, part in runs]
    small = [own for own in tables if own is not None and own.kind == np.uint16]
    if len(small) == len(runs):
        return walk_together(small, edges, values)
    result = np.empty(len(values), dtype=np.int64)
    for own, part in runs:
        result[part] = own.forward(values[part].astype(np.int64, copy=False))
    return result


def _through_networks(
    sizes: list[int], keys: list[int], numbers: list[int], counts: Integers, values: Integers
) -> Integers:
    return FeistelNetwork.of_each(sizes, keys, numbers, counts).forward(values)


def _through_tables(
    sizes: list[int], keys: list[int], numbers: list[int], counts: Integers, values: Integers
) -> Integers:
    rows = np.repeat(np.arange(len(sizes)), counts)
    edges = np.concatenate([[0], np.cumsum(counts)]).tolist()
    result = np.empty(len(values), dtype=np.int64)
    for first, end in pairwise([0, *_cuts(sizes), len(sizes)]):
        tables = _tables(sizes[first:end], keys[first:end], numbers[first:end])
        part = slice(edges[first], edges[end])
        result[part] = tables[rows[part] - first, values[part]]
    return result


def _places(starts: Integers, counts: Integers) -> Integers:
    """Return the places `[start, start + count)` of each pair, end to end."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.repeat(shifts, counts) + np.arange(int(counts.sum()))


def _cuts(sizes: list[int]) -> list[int]:
    """Return where to cut ascending sizes, so that rows of the longest fit in little memory."""
    cuts, first = [], 0
    for place, size in enumerate(sizes):
        if (place - first + 1) * size > _CELLS_AT_ONCE and place > first:
            cuts.append(place)
            first = place
    return cuts


def _tables(sizes: list[int], keys: list[int], numbers: list[int]) -> NDArray[np.uint16]:
    """Return one row per permutation, as `shuffled_tables` does, for sizes and keys of their own.

    Sizes ascend; a row is valid up to its size.
    """
    hashed = [key_of_size(size, key) for size, key in zip(sizes, keys, strict=True)]
    low = np.array([key & _LOW for key in hashed], dtype=np.uint64)[:, None]
    high = np.array([key >> 64 for key in hashed], dtype=np.uint64)[:, None]
    each = np.array(sizes, dtype=np.uint64)[:, None]
    columns = np.arange(sizes[-1], dtype=np.uint64)
    words = np.array(numbers, dtype=np.uint64)[:, None] * each + columns
    words ^= low
    spare = np.empty_like(words)
    for multiplier in (*MULTIPLIERS, MULTIPLIERS[0]):
        words *= multiplier
        np.right_shift(words, SHIFT, out=spare)
        words ^= spare
        words += high
    words &= ~INDEX_BITS
    words |= columns
    # Columns beyond a row's size come last.
    if sizes[0] < sizes[-1]:
        np.putmask(words, columns >= each, np.uint64(_LOW))
    words.sort(axis=1)
    words &= INDEX_BITS
    return words.astype(np.uint16)
