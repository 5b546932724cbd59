"""Gathering samples from the chunks of a store, straight into the memory of a batch.

A slab is memory that many rows are gathered into at once, delivered batch by batch. It comes from a
`SlabPool`: it is reused as soon as none of its batches is in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, StoreError
from feedline.plan import Chunking, EqualChunks, UnequalChunks
from feedline.store import Store
from feedline.store.columns import Arrays, Column
from feedline.store.gather import scatter

# Rows of one chunk that follow each other are read in place; shorter runs are sorted by chunk,
# read together and then spread, in portions that stay in a core's own cache.
_MEAN_RUN = 16
_PORTION_BYTES = 2**20
_ALIGNMENT = 64


def chunking_of(store: Store) -> Chunking:
    """Return how a store's samples are cut into chunks.

    Chunks of one size cost nothing to look up; those of several sizes cost a search.

    Args:
        store: Where the samples are.
    """
    sizes = store.chunk_sizes
    if len(sizes) and sizes[0] and np.all(sizes[:-1] == sizes[0]) and 0 < sizes[-1] <= sizes[0]:
        return EqualChunks(num_samples=store.num_samples, chunk_size=int(sizes[0]))
    return UnequalChunks(sizes)


def gather_samples(
    store: Store, chunking: Chunking, indices: NDArray[np.int64], arrays: Arrays
) -> None:
    """Write the samples at `indices` to `arrays`, in that order.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        indices: Which samples.
        arrays: What they are written to, column by column.
    """
    if not len(indices):
        return
    chunks, rows = chunking.rows_of(indices)
    starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
    if len(indices) >= _MEAN_RUN * len(starts):
        edges = [0, *starts.tolist(), len(indices)]
        for first, end in pairwise(edges):
            part = {name: array[first:end] for name, array in arrays.items()}
            _read(store, int(chunks[first]), rows[first:end], part)
        return
    order = np.argsort(chunks, kind="stable")
    sorted_chunks = chunks[order]
    edges = [0, *(np.flatnonzero(np.diff(sorted_chunks)) + 1).tolist(), len(indices)]
    portion = _Portion(arrays)
    for first, end in pairwise(edges):
        chunk = int(sorted_chunks[first])
        for start in range(first, end, portion.num_rows):
            places = order[start : min(start + portion.num_rows, end)]
            part = portion.arrays(len(places))
            _read(store, chunk, rows[places], part)
            for name, array in part.items():
                scatter(array, arrays[name], places)


class _Portion:
    """Memory for a few rows, used again and again."""

    def __init__(self, arrays: Arrays) -> None:
        row_bytes = sum(array[:1].nbytes for array in arrays.values())
        self.num_rows = max(1, _PORTION_BYTES // max(row_bytes, 1))
        self._arrays = {
            name: np.empty((self.num_rows, *array.shape[1:]), array.dtype)
            for name, array in arrays.items()
        }

    def arrays(self, num_rows: int) -> Arrays:
        return {name: array[:num_rows] for name, array in self._arrays.items()}


def _read(store: Store, chunk: int, rows: NDArray[np.int64], out: Arrays) -> None:
    try:
        store.read(chunk, rows, out=out)
    except StoreError as error:
        where = store.describe_row(chunk, int(rows[0]))
        raise type(error)(f"{error} (while reading {where})") from error
    except FeedlineError:
        raise
    except (OSError, ValueError) as error:
        where = store.describe_row(chunk, int(rows[0]))
        raise StoreError(f"{where}: cannot be read ({error})") from error


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
    """Return the number of bytes that `arrays_in` needs for `num_rows` rows."""
    return max((end for _, end in layout_of(columns, num_rows).values()), default=0)


def arrays_in(memory: NDArray[np.uint8], columns: Mapping[str, Column], num_rows: int) -> Arrays:
    """Return an array per column, one after another in `memory`."""
    return {
        name: memory[start:end].view(columns[name].dtype).reshape(num_rows, *columns[name].shape)
        for name, (start, end) in layout_of(columns, num_rows).items()
    }
