"""The rows of open chunks as those of one, so that each column of a slab is copied in one call."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, StoreError
from feedline.feed.slab_jobs import SlabJob
from feedline.store import Store
from feedline.store.columns import Arrays
from feedline.store.gather import FlatPieces, FlatRows, RowSource
from feedline.store.lists import FlatLists, ListSource, Take
from feedline.store.placed_lists import PlacedLists
from feedline.store.row_tables import RowTable, RowTables, Stacked, TableColumn
from feedline.store.scattered import FlatScattered, Rows, ScatteredRows

# Chunks that may be open for one copy, whatever they hold; all of them have to be.
_MOST_AT_ONCE = 128
# More chunks than that are opened so many at a time, as long as the store keeps all open.
_OPENED_AT_ONCE = 16

logger = logging.getLogger("feedline")

Flat = FlatRows | FlatLists | FlatScattered
Sources = Mapping[str, Rows]


class OpenRows:
    """The columns of some chunks that are open.

    Args:
        sources: The columns of each chunk, by its number.
        num_chunks: The number of all chunks.
        columns: The rows of all these chunks, column by column.
    """

    def __init__(
        self, sources: Mapping[int, Sources], num_chunks: int, columns: Mapping[str, Flat]
    ) -> None:
        self.sources = sources
        self.columns = columns
        self._slots = np.full(num_chunks, -1, np.int64)
        self._slots[list(sources)] = np.arange(len(sources))

    @classmethod
    def of(
        cls, sources: Mapping[int, Sources], num_chunks: int, names: Iterable[str]
    ) -> OpenRows | None:
        """Return some chunks as one; None if a column cannot be copied so."""
        columns: dict[str, Flat] = {}
        for name in names:
            flat = _flat([of_chunk[name] for of_chunk in sources.values()])
            if flat is None:
                return None
            columns[name] = flat
        return cls(sources, num_chunks, columns)

    def slots(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each chunk among these; -1 where it is none of them."""
        return self._slots.take(chunks)

    def gather(self, job: SlabJob, arrays: Arrays, take: Take, *, in_place: bool = False) -> None:
        """Write the samples of a job to `arrays`, and add the columns of lists to it.

        Nothing stays in place: some chunks are decoded, and their memory is counted.
        """
        slots = self.slots(job.chunks)
        for name, flat in self.columns.items():
            if isinstance(flat, FlatLists):
                arrays[name] = flat.gather(slots, job.rows, take)
            else:
                flat.take(slots, job.rows, arrays[name])


class OpenTables:
    """The columns of some tables that are open, each of many chunks.

    Args:
        tables: Which chunks each table has.
        opened: The open tables, by number.
        names: The columns.
    """

    def __init__(self, tables: RowTables, opened: Mapping[int, RowTable], names: Collection[str]):
        self.opened = opened
        self._tables = tables
        chunks = [tables.chunks_of(number) for number in opened]
        counts = [len(of_table) for of_table in chunks]
        # Where the first chunk of each table is among all that are open.
        ends: NDArray[np.int64] = np.cumsum(np.array(counts, np.int64))
        self._first_slots = ends - np.array(counts, np.int64)
        self._slots = np.full(len(tables.firsts), -1, np.int64)
        self._slots[list(opened)] = np.arange(len(opened))
        columns = {name: [table.columns[name] for table in opened.values()] for name in names}
        self._columns = {name: _flat_column(parts, tables) for name, parts in columns.items()}
        self._by_chunk = {name for name in names if isinstance(columns[name][0], Stacked)}

    def has_all(self, chunks: NDArray[np.int64]) -> bool:
        """Whether the tables of all of these chunks are among them."""
        return bool(self._slots.take(self._tables.of_chunk.take(chunks)).min() >= 0)

    def gather(self, job: SlabJob, arrays: Arrays, take: Take, *, in_place: bool = False) -> None:
        """Write the samples of a job to `arrays`, and add the columns of lists to it.

        With `in_place`, bytes and texts stay in their files: those of tables are all mapped.
        """
        tables = self._tables
        numbers = tables.of_chunk.take(job.chunks)
        slots = self._slots.take(numbers)
        rows = tables.first_rows.take(job.chunks) + job.rows
        for name, flat in self._columns.items():
            if isinstance(flat, FlatLists) and in_place and flat.kind != "list":
                placed = PlacedLists(*flat.places(slots, rows), flat.kind, flat)
                placed.touch()
                arrays[name] = placed
            elif isinstance(flat, FlatLists):
                arrays[name] = flat.gather(slots, rows, take)
            elif name in self._by_chunk:
                chunks = job.chunks - tables.firsts.take(numbers) + self._first_slots.take(slots)
                flat.take(chunks, job.rows, arrays[name])
            else:
                flat.take(slots, rows, arrays[name])


class RowKeeper:
    """Keeps rows of chunks ready from one slab to the next; threads share it.

    Args:
        num_sets: The sets of chunks that are kept.
    """

    def __init__(self, num_sets: int) -> None:
        self._num_sets = num_sets
        # Slabs that are near each other often need the same chunks.
        self._sets: dict[tuple[int, ...], OpenRows | None] = {}
        # Slabs of a full shuffle need almost all chunks, each of them others.
        self._many: OpenRows | None = None
        self._has_room = True
        self._tables: OpenTables | None = None
        self._has_tables = True

    def rows_for(
        self, store: Store, job: SlabJob, names: Collection[str]
    ) -> OpenRows | OpenTables | None:
        """Return the rows of a job's chunks, and maybe of others; None if they must be read."""
        if self._has_tables:
            of_tables = self._rows_of_tables(store, job, names)
            if of_tables is not None:
                return of_tables
        # A store of the user's own may have `read` only.
        if getattr(store, "row_sources", None) is None:
            return None
        if len(job.needed) > _MOST_AT_ONCE:
            return self._rows_of_many(store, job, names)
        # Other threads read the dict meanwhile, so it is replaced, never changed.
        known = self._sets
        if job.needed in known:
            return known[job.needed]
        kept = list(known.items())[max(0, len(known) - self._num_sets + 1) :]
        # What is no longer kept is closed before others are opened.
        self._sets = dict(kept)
        sources = _opened(store, job, job.needed)
        found = None if sources is None else OpenRows.of(sources, job.num_chunks, names)
        self._sets = dict([*kept, (job.needed, found)])
        return found

    def _rows_of_tables(
        self, store: Store, job: SlabJob, names: Collection[str]
    ) -> OpenTables | None:
        """Return the rows of a job's tables; None if there are none, or if they do not fit."""
        ask = getattr(store, "row_tables", None)
        tables: RowTables | None = None if ask is None else ask()
        kept = self._tables
        if tables is not None:
            if kept is not None and kept.has_all(job.chunks):
                return kept
            needed = np.unique(tables.of_chunk[list(job.needed)]).tolist()
            # With those that are open, or else without them.
            for before in [{}] if kept is None else [kept.opened, {}]:
                opened = dict(before)
                for number in needed:
                    table = opened.get(number) or tables.get(number)
                    if table is None:
                        break
                    opened[number] = table
                else:
                    if tables.has_all(list(opened)):
                        found = self._tables = OpenTables(tables, opened, names)
                        return found
        # They would not be there for a later slab either.
        self._tables, self._has_tables = None, False
        return None

    def _rows_of_many(self, store: Store, job: SlabJob, names: Iterable[str]) -> OpenRows | None:
        kept = self._many
        if kept is not None and kept.slots(np.array(job.needed)).min() >= 0:
            return kept
        if not self._has_room or getattr(store, "keeps_open", None) is None:
            return None
        sources = dict(kept.sources) if kept is not None else {}
        more = [chunk for chunk in job.needed if chunk not in sources]
        found = None
        for first in range(0, len(more), _OPENED_AT_ONCE):
            opened = _opened(store, job, more[first : first + _OPENED_AT_ONCE])
            if opened is None:
                break
            sources |= opened
            if not store.keeps_open(list(sources)):
                # What the store has closed again would be held here beyond its limits.
                logger.warning(
                    "%d samples lie in %d chunks, more than are kept open at once, so reading them "
                    "is slow: use window=, or pack the data into fewer chunks with `feedline pack`",
                    len(job.rows),
                    len(job.needed),
                )
                break
        else:
            found = OpenRows.of(sources, job.num_chunks, names)
        self._many, self._has_room = found, found is not None
        return found


def _opened(store: Store, job: SlabJob, chunks: Iterable[int]) -> dict[int, Sources] | None:
    """Open chunks; return None if the rows of one must be read."""
    opened = {}
    with Described(store, job) as described:
        for chunk in chunks:
            sources = store.row_sources(described.at(chunk))
            if sources is None:
                return None
            opened[chunk] = sources
    return opened


def _flat_column(columns: Sequence[TableColumn], tables: RowTables) -> FlatLists | FlatPieces:
    """Return a column of several tables as one."""
    lists = [column for column in columns if isinstance(column, ListSource)]
    stacked = [column for column in columns if isinstance(column, Stacked)]
    if lists:
        return FlatLists(lists)
    if stacked:
        addresses = np.concatenate([column.addresses for column in stacked])
        return FlatPieces(stacked, addresses, tables.most_rows, stacked[0].row_bytes)
    arrays = [column for column in columns if isinstance(column, RowSource)]
    starts = np.array([array.address for array in arrays], np.int64)
    return FlatPieces(arrays, starts, max(map(len, arrays)), arrays[0].row_bytes)


def _flat(sources: list[Rows]) -> Flat | None:
    arrays = [source for source in sources if isinstance(source, RowSource)]
    if arrays:
        return FlatRows.of(arrays) if len(arrays) == len(sources) else None
    scattered = [source for source in sources if isinstance(source, ScatteredRows)]
    if scattered:
        return FlatScattered(scattered)
    return FlatLists([source for source in sources if isinstance(source, ListSource)])


class Described:
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
