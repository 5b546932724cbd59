"""Gathering samples from the chunks of a store, straight into the memory of a batch.

A slab is memory that many rows are gathered into at once, delivered batch by batch. It comes from a
`SlabPool`: it is reused as soon as none of its batches is in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.feed.called import stopped
from feedline.feed.open_rows import Described, RowKeeper
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Block, Chunking, EqualChunks, UnequalChunks
from feedline.store import Store
from feedline.store.columns import Arrays, Column
from feedline.store.gather import scatter
from feedline.store.lists import Lists, Take, new_memory
from feedline.store.places import stable_order

_ALIGNMENT = 64
# Rows of one chunk that follow each other are read in place; shorter runs are sorted by chunk.
_MEAN_RUN = 16


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
    store: Store,
    chunking: Chunking,
    indices: NDArray[np.int64],
    arrays: Arrays,
    workplace: Workplace | None = None,
    take: Take = new_memory,
) -> None:
    """Write the samples at `indices` to `arrays`, in that order; lists are added to it.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        indices: Which samples.
        arrays: What they are written to, column by column.
        workplace: What is kept from one call to the next.
        take: Returns memory for the values of lists; they may lie elsewhere all the same.
    """
    if len(indices):
        bounds = np.array([0, len(indices)])
        (job,) = cut(Block(first=0, indices=indices, bounds=bounds), chunking, 1)
        gather(store, job, arrays, workplace or Workplace(), take)


class Workplace:
    """What the threads of a pass keep from one slab to the next.

    Args:
        num_sets: The sets of chunks that are kept open beside those that the store keeps.
    """

    def __init__(self, num_sets: int = 4) -> None:
        self._of_thread = local()
        self.rows = RowKeeper(num_sets)

    def scratch(self, like: Arrays) -> Arrays:
        """Return arrays of the same shapes and types as others, with any contents.

        A thread gathers rows into them before it puts them in order.
        """
        columns = {n: Column(n, a.dtype.name, a.shape[1:]) for n, a in like.items()}
        num_rows = len(next(iter(like.values()), ()))
        num_bytes = bytes_for(columns, num_rows)
        memory: NDArray[np.uint8] | None = getattr(self._of_thread, "memory", None)
        if memory is None or len(memory) < num_bytes:
            memory = self._of_thread.memory = np.empty(num_bytes, np.uint8)
        return arrays_in(memory, columns, num_rows)


def gather(
    store: Store,
    job: SlabJob,
    arrays: Arrays,
    workplace: Workplace,
    take: Take = new_memory,
    *,
    in_place: bool = False,
) -> None:
    """Write the samples of a job to `arrays`, and add the columns of lists to it.

    Where all chunks lie in memory or in mapped files, each column is copied in one call. A call for
    each chunk would cost more than the copy: all threads would wait for each other.

    Args:
        store: Where the samples are.
        job: Which rows of which chunks.
        arrays: What they are written to, column by column.
        workplace: What is kept from one slab to the next.
        take: Returns memory for the values of lists; they may lie elsewhere all the same.
        in_place: Whether bytes and texts may stay where they lie, as `PlacedLists`.
    """
    columns = store.columns
    opened = workplace.rows.rows_for(store, job, columns)
    if not columns or opened is None:
        _gather_by_chunk(store, job, arrays, workplace)
        return
    opened.gather(job, arrays, take, in_place=in_place)


def _gather_by_chunk(store: Store, job: SlabJob, arrays: Arrays, workplace: Workplace) -> None:
    """Read the rows of each chunk together, and put them in order."""
    chunks, rows = job.chunks, job.rows
    num_runs = 1 + np.count_nonzero(chunks[1:] != chunks[:-1])
    if len(rows) >= _MEAN_RUN * num_runs or not store.columns:
        arrays |= _read_runs(store, job, chunks, rows, arrays)
        return
    order = stable_order(chunks)
    read = workplace.scratch(arrays)
    lists = _read_runs(store, job, chunks[order], rows[order], read)
    for name, array in arrays.items():
        scatter(read[name], array, order)
    if lists:
        back = np.argsort(order)
        arrays |= {name: found.take(back) for name, found in lists.items()}


def _read_runs(
    store: Store, job: SlabJob, chunks: NDArray[np.int64], rows: NDArray[np.int64], out: Arrays
) -> dict[str, Lists]:
    """Read the rows of each run of one chunk, one run after another; return the lists in them."""
    starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
    lists: dict[str, list[Lists]] = {c.name: [] for c in store.columns.values() if c.has_lists}
    with Described(store, job) as described:
        for first, end in pairwise([0, *starts.tolist(), len(rows)]):
            part = {name: array[first:end] for name, array in out.items()}
            try:
                found = store.read(described.at(int(chunks[first])), rows[first:end], out=part)
            except StopIteration as error:
                raise stopped("store.read") from error
            for name, array in part.items():
                _put_in_place(store, name, array, found)
            for name, parts in lists.items():
                parts.append(found[name])
    return {name: Lists.joined(parts) for name, parts in lists.items()}


def _put_in_place(store: Store, name: str, array: NDArray[Any], found: Arrays) -> None:
    """Copy a column that a store has returned elsewhere; raise if it does not fit."""
    read = array if found is None else found.get(name, array)
    if read is array:
        return
    if read.shape != array.shape or read.dtype != array.dtype:
        raise InvalidValueError(
            f"{type(store).__name__}.read returned column {name!r:.80} as {read.dtype} of shape "
            f"{read.shape} but must return {array.dtype} of shape {array.shape}, as its columns say"
        )
    array[...] = read


def layout_of(columns: Mapping[str, Column], num_rows: int) -> dict[str, tuple[int, int]]:
    """Return where the bytes of each array begin and end when they lie one after another.

    Examples:
        >>> layout_of({"x": Column("x", "int64"), "y": Column("y", "int8")}, 3)
        {'x': (0, 24), 'y': (64, 67)}
    """
    layout = {}
    start = 0
    for column in columns.values():
        if column.has_lists:
            continue
        end = start + column.row_bytes * num_rows
        layout[column.name] = (start, end)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return layout


def bytes_for(columns: Mapping[str, Column], num_rows: int) -> int:
    """Return the number of bytes that `arrays_in` needs for `num_rows` rows."""
    return max((end for _, end in layout_of(columns, num_rows).values()), default=0)


def size_of(columns: Mapping[str, Column], num_rows: int) -> int:
    """Return about the number of bytes that `num_rows` rows take, lists included."""
    lists = sum(column.sample_bytes for column in columns.values() if column.has_lists)
    return bytes_for(columns, num_rows) + lists * num_rows


def arrays_in(memory: NDArray[np.uint8], columns: Mapping[str, Column], num_rows: int) -> Arrays:
    """Return an array per column that has one, one after another in `memory`."""
    return {
        name: memory[start:end].view(columns[name].dtype).reshape(num_rows, *columns[name].shape)
        for name, (start, end) in layout_of(columns, num_rows).items()
    }
