"""The rows of open chunks as those of one, so that each column of a slab is copied in one call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError, StoreError
from feedline.feed.slab_jobs import SlabJob
from feedline.store import Store
from feedline.store.gather import FlatRows, RowSource
from feedline.store.lists import FlatLists, ListSource
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

    def rows_for(self, store: Store, job: SlabJob, names: Iterable[str]) -> OpenRows | None:
        """Return the rows of a job's chunks, and maybe of others; None if they must be read."""
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
