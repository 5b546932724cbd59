"""Gathering samples from the chunks of a store, straight into the memory of a batch.

A slab is memory that many rows are gathered into at once, delivered batch by batch. It comes from a
`SlabPool`: it is reused as soon as none of its batches is in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from threading import local
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, StoreError
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Block, Chunking, EqualChunks, UnequalChunks
from feedline.store import Store
from feedline.store.columns import Arrays, Column
from feedline.store.gather import FlatRows, RowSource, scatter
from feedline.store.lists import FlatLists, Lists, ListSource
from feedline.store.scattered import FlatScattered, Rows, ScatteredRows

_ALIGNMENT = 64
# Rows of one chunk that follow each other are read in place; shorter runs are sorted by chunk.
_MEAN_RUN = 16
# Chunks that may be open for one copy; all of them have to be.
_MOST_AT_ONCE = 128
# Lists whose places may be kept for one copy.
_MOST_LISTS = 2**20
# Sets of chunks whose rows are kept ready.
_MOST_OPENED = 4

Flat = dict[str, FlatRows | FlatLists | FlatScattered]


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
    """Write the samples at `indices` to `arrays`, in that order; lists are added to it.

    Args:
        store: Where the samples are.
        chunking: How they are cut into chunks.
        indices: Which samples.
        arrays: What they are written to, column by column.
    """
    if len(indices):
        bounds = np.array([0, len(indices)])
        (job,) = cut(Block(first=0, indices=indices, bounds=bounds), chunking, 1)
        gather(store, job, arrays, Workplace())


class Workplace:
    """What the threads of a pass keep from one slab to the next."""

    def __init__(self) -> None:
        self._of_thread = local()
        # Slabs that are near each other often need the same chunks.
        self._opened: dict[tuple[int, ...], Flat | None] = {}

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

    def flat_rows(self, store: Store, job: SlabJob, names: Iterable[str]) -> Flat | None:
        """Return the rows of a job's chunks, column by column; None if they must be read."""
        opened = self._opened
        if job.needed in opened:
            return opened[job.needed]
        found = _flat_rows(store, job, names)
        # Other threads read the dict meanwhile, so it is replaced, never changed.
        kept = list(opened.items())[1 - _MOST_OPENED :]
        self._opened = dict([*kept, (job.needed, found)])
        return found


def gather(store: Store, job: SlabJob, arrays: Arrays, workplace: Workplace) -> None:
    """Write the samples of a job to `arrays`, and add the columns of lists to it.

    Where all chunks lie in memory or in mapped files, each column is copied in one call. A call for
    each chunk would cost more than the copy: all threads would wait for each other.

    Args:
        store: Where the samples are.
        job: Which rows of which chunks.
        arrays: What they are written to, column by column.
        workplace: What is kept from one slab to the next.
    """
    columns = store.columns
    flat = workplace.flat_rows(store, job, columns)
    if not columns or flat is None:
        _gather_by_chunk(store, job, arrays, workplace)
        return
    slots = np.empty(job.num_chunks, np.int64)
    slots[list(job.needed)] = np.arange(len(job.needed))
    slots = slots[job.chunks]
    for name, rows in flat.items():
        if isinstance(rows, FlatLists):
            arrays[name] = rows.gather(slots, job.rows)
        else:
            rows.take(slots, job.rows, arrays[name])


def _flat_rows(store: Store, job: SlabJob, names: Iterable[str]) -> Flat | None:
    # A store of the user's own may have `read` only.
    sources_of = getattr(store, "row_sources", None)
    if sources_of is None or len(job.needed) > _MOST_AT_ONCE:
        return None
    with _Described(store, job) as described:
        opened = [sources_of(described.at(chunk)) for chunk in job.needed]
    if None in opened:
        return None
    flat: Flat = {}
    for name in names:
        rows = _flat([sources[name] for sources in opened])
        if rows is None:
            return None
        flat[name] = rows
    return flat


def _flat(sources: list[Rows]) -> FlatRows | FlatLists | FlatScattered | None:
    arrays = [source for source in sources if isinstance(source, RowSource)]
    if arrays:
        return FlatRows.of(arrays) if len(arrays) == len(sources) else None
    if sum(map(len, sources)) > _MOST_LISTS:
        return None
    scattered = [source for source in sources if isinstance(source, ScatteredRows)]
    if scattered:
        return FlatScattered(scattered)
    return FlatLists([source for source in sources if isinstance(source, ListSource)])


def _gather_by_chunk(store: Store, job: SlabJob, arrays: Arrays, workplace: Workplace) -> None:
    """Read the rows of each chunk together, and put them in order."""
    chunks, rows = job.chunks, job.rows
    num_runs = 1 + np.count_nonzero(chunks[1:] != chunks[:-1])
    if len(rows) >= _MEAN_RUN * num_runs or not store.columns:
        arrays |= _read_runs(store, job, chunks, rows, arrays)
        return
    # Short integers are sorted several times faster.
    keys = chunks.astype(np.uint16) if job.num_chunks <= 2**16 else chunks
    order = np.argsort(keys, kind="stable")
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
    with _Described(store, job) as described:
        for first, end in pairwise([0, *starts.tolist(), len(rows)]):
            part = {name: array[first:end] for name, array in out.items()}
            found = store.read(described.at(int(chunks[first])), rows[first:end], out=part)
            for name, parts in lists.items():
                parts.append(found[name])
    return {name: Lists.joined(parts) for name, parts in lists.items()}


class _Described:
    """Adds to an error where the first row was that could not be read."""

    def __init__(self, store: Store, job: SlabJob) -> None:
        self._store = store
        self._job = job
        self._chunk = 0

    def at(self, chunk: int) -> int:
        """Note that a chunk is read now, and return it."""
        self._chunk = chunk
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, StoreError | OSError | ValueError):
            return
        if isinstance(error, FeedlineError) and not isinstance(error, StoreError):
            return
        row = int(self._job.rows[np.argmax(self._job.chunks == self._chunk)])
        where = self._store.describe_row(self._chunk, row)
        if isinstance(error, StoreError):
            raise type(error)(f"{error} (while reading {where})") from error
        raise StoreError(f"{where}: cannot be read ({error})") from error


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
