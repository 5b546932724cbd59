"""Gathering samples from the chunks of a store, straight into the memory of a batch.

A slab is memory that many rows are gathered into at once, delivered batch by batch. It comes from a
`SlabPool`: it is reused as soon as none of its batches is in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import local

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, StoreError
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Block, Chunking, EqualChunks, UnequalChunks
from feedline.store import Store
from feedline.store.columns import Arrays, Column
from feedline.store.gather import as_items

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
    if len(indices):
        bounds = np.array([0, len(indices)])
        (job,) = cut(Block(first=0, indices=indices, bounds=bounds), chunking, 1)
        gather(store, job, arrays, Scratch())


class Scratch:
    """Memory that a thread gathers rows into before it puts them in order; one for each thread."""

    def __init__(self) -> None:
        self._of_thread = local()

    def arrays(self, like: Arrays) -> Arrays:
        """Return arrays of the same shapes and types as others, with any contents."""
        columns = {n: Column(n, a.dtype.name, a.shape[1:]) for n, a in like.items()}
        num_rows = len(next(iter(like.values())))
        num_bytes = bytes_for(columns, num_rows)
        memory: NDArray[np.uint8] | None = getattr(self._of_thread, "memory", None)
        if memory is None or len(memory) < num_bytes:
            memory = self._of_thread.memory = np.empty(num_bytes, np.uint8)
        return arrays_in(memory, columns, num_rows)


def gather(store: Store, job: SlabJob, arrays: Arrays, scratch: Scratch) -> None:
    """Write the samples of a job to `arrays`.

    Args:
        store: Where the samples are.
        job: Which rows of which chunks.
        arrays: What they are written to, column by column.
        scratch: Memory for rows that are not in order yet.
    """
    if not arrays:
        return
    out = arrays if job.places is None else scratch.arrays(arrays)
    _read_runs(store, job, out)
    if job.places is not None:
        for name, array in arrays.items():
            if array.size:
                as_items(out[name]).take(job.places, out=as_items(array), mode="clip")


def _read_runs(store: Store, job: SlabJob, out: Arrays) -> None:
    """Read the rows of each run, one run after another."""
    rows = job.rows
    # A store of the user's own may have `read` only.
    sources_of = getattr(store, "row_sources", _none)
    items = {name: as_items(array) for name, array in out.items() if array.size}
    for chunk, first, end in job.runs:
        try:
            sources = sources_of(chunk)
            if sources is None:
                part = {name: array[first:end] for name, array in out.items()}
                store.read(chunk, rows[first:end], out=part)
                continue
            for name, into in items.items():
                sources[name].take(rows[first:end], into[first:end])
        except StoreError as error:
            where = store.describe_row(chunk, int(rows[first]))
            raise type(error)(f"{error} (while reading {where})") from error
        except FeedlineError:
            raise
        except (OSError, ValueError) as error:
            where = store.describe_row(chunk, int(rows[first]))
            raise StoreError(f"{where}: cannot be read ({error})") from error


def _none(chunk: int) -> None:
    return None


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
