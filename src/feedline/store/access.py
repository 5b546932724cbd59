"""Samples by number: `store[i]`, slices and iteration over a store."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.store.columns import Arrays, Column, as_numbers, make_out
from feedline.store.gather import scatter
from feedline.store.lists import Lists
from feedline.store.matrix import rows_by_part
from feedline.words import bytes_in_words, several

if TYPE_CHECKING:
    from feedline.store.protocol import Store

# The part of a chunk that is read at once in an iteration over all samples.
_WALK_BYTES = 2**22
_MOST_COLUMNS = 8


def sample_at(store: Store, index: int) -> dict[str, Any]:
    """Return one sample: a value or an array for each column."""
    number = check_index(index, store.num_samples)
    found = samples_at(store, np.array([number]))
    return {name: values[0] for name, values in found.items()}


def samples_at(store: Store, indices: NDArray[np.int64]) -> Arrays:
    """Return some samples, column by column; each chunk is read once."""
    columns = store.columns
    out: Arrays | None = None
    lists: dict[str, list[Lists]] = {c.name: [] for c in columns.values() if c.has_lists}
    at: list[NDArray[np.int64]] = []
    for chunk, places, rows in rows_by_part(indices, store.edges):
        found = store.read(chunk, rows)
        # After the first chunk, which shows that columns are as large as a manifest says.
        out = make_out(columns, len(indices), None) if out is None else out
        at.append(places)
        for name, array in found.items():
            if name in lists:
                lists[name].append(array)
            else:
                scatter(array, out[name], places)
    if out is None:
        out = make_out(columns, 0, None)
    return as_numbers(columns, with_lists(columns, out, lists, at))


def with_lists(
    columns: Mapping[str, Column],
    out: Arrays,
    lists: Mapping[str, Sequence[Lists]],
    places: Sequence[NDArray[np.int64]],
) -> Arrays:
    """Return arrays together with lists that were read in parts, each for some places."""
    if not lists:
        return out
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *places]), kind="stable")
    is_ordered = np.array_equal(order, np.arange(len(order)))
    for name, parts in lists.items():
        joined = Lists.joined(parts) if parts else Lists.none_of(columns[name])
        out[name] = joined if is_ordered else joined.take(order)
    return {name: out[name] for name in columns}


def samples_in(arrays: Arrays) -> Iterator[dict[str, Any]]:
    """Yield the samples that arrays hold, one after another."""
    names = list(arrays)
    for values in zip(*arrays.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def walk(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every sample in the order of the store, reading a piece of a chunk at a time."""
    columns = store.columns
    sample_bytes = sum(column.sample_bytes for column in columns.values())
    step = max(1, _WALK_BYTES // max(1, sample_bytes))
    for chunk, (first, end) in enumerate(pairwise(store.edges.tolist())):
        for start in range(0, end - first, step):
            rows = np.arange(start, min(start + step, end - first))
            yield from samples_in(as_numbers(columns, store.read(chunk, rows)))


def check_index(index: Any, num_samples: int) -> int:
    """Return the number of a sample, or raise; a negative number counts from the end."""
    try:
        number = operator.index(index)
        if isinstance(index, bool):
            raise TypeError
    except TypeError:
        raise InvalidValueError(
            f"store[{index!r:.80}] must be an integer, a slice or a list of integers"
        ) from None
    if not -num_samples <= number < num_samples:
        raise IndexError(f"store[{number}] must be in [0, {num_samples}), the samples of the store")
    return number % num_samples


def check_indices(indices: Sequence[int] | NDArray[Any], num_samples: int) -> NDArray[np.int64]:
    """Return the numbers of some samples, as `check_index` does for one."""
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidValueError(
            f"store[{indices!r:.80}] must be an integer, a slice or a list of integers"
        )
    if array.size:
        # The first that is out of range is named, like a single one.
        for end in (array.min(), array.max()):
            check_index(end, num_samples)
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + num_samples, numbers)


def describe(store: Store) -> str:
    """Return what a store holds in one line: samples, chunks, bytes and columns."""
    columns = list(store.columns.values())
    shown = ", ".join(f"{column.name} {column}" for column in columns[:_MOST_COLUMNS])
    if len(columns) > _MOST_COLUMNS:
        shown += f" and {len(columns) - _MOST_COLUMNS} more columns"
    num_bytes = sum(column.sample_bytes for column in columns) * store.num_samples
    num_chunks = len(store.chunk_sizes)
    return (
        f"{several(store.num_samples, 'sample')} in {several(num_chunks, 'chunk')}, "
        f"{bytes_in_words(num_bytes)}: {shown or 'no columns'}"
    )
