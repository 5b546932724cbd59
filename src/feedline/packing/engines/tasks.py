"""The tasks of a pack, which any process of any node can do: read, deal, measure and write.

Each is a function of its arguments and of files, and may be done again: files appear whole, under
names that the arguments tell.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.chunk_files import Filling, write_whole_chunk
from feedline.packing.engines.blocks import (
    KEY,
    SIZE,
    Table,
    block_name,
    cells_of,
    read_table,
    write_block,
)
from feedline.packing.engines.ordering import Chunk, Run
from feedline.packing.fitting import Fitting, nothing_of
from feedline.packing.formats import chunk_name
from feedline.packing.keys import row_keys
from feedline.packing.parts import Part, PartedSource, rows_between
from feedline.packing.rows import (
    Rows,
    Source,
    concatenate_rows,
    num_bytes_of,
    num_rows_of,
    part_of_rows,
    row_sizes,
    take_rows,
)
from feedline.packing.settings import Cut
from feedline.packing.shuffle import part_of
from feedline.packing.splits import Splits
from feedline.packing.workshop import Entry
from feedline.plan.seeds import Seed
from feedline.store.writing import remove, reported, sync_chunk


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all tasks of a pack share.

    Args:
        source: The source, if every process can read it.
        fitting: Brings rows to the columns.
        splits: Deals rows to splits.
        cut: Where chunks end.
        format: The format of chunks.
        seed: The seed of the shuffle; None without one.
        num_parts: The number of ranges of keys.
        folder: The folder of blocks and of unfinished chunks.
        data: The folder of each split.
        num_bytes: The bytes of rows that a task holds at once; with copies, three times as many.
    """

    source: Source | None
    fitting: Fitting
    splits: Splits
    cut: Cut
    format: str
    seed: Seed | None
    num_parts: int
    folder: Path
    data: list[Path]
    num_bytes: int

    @property
    def num_cells(self) -> int:
        """The number of cells of a block."""
        return self.num_parts * len(self.splits.names)

    @property
    def has_sizes(self) -> bool:
        """Whether the bytes of rows decide where chunks end."""
        return self.cut.num_samples is None

    @property
    def sorts_like(self) -> Rows:
        """The sort columns, without rows."""
        keys = {} if self.seed is None else {KEY: np.empty(0, np.uint64)}
        return {**keys, **({SIZE: np.empty(0, np.int64)} if self.has_sizes else {})}

    @property
    def like(self) -> Rows:
        """The columns, without rows."""
        return {column.name: nothing_of(column, 0) for column in self.fitting.columns}

    def labels(self, start: int, stop: int, num_known: int) -> NDArray[np.uint8]:
        """Return the splits of rows; so many rows are known to be there, or all there are."""
        size = self.splits.block_rows
        first = start // size
        blocks = [
            self.splits.labels(block, min(size, num_known - block * size))
            for block in range(first, -(-stop // size))
        ]
        return np.concatenate(blocks)[start - first * size : stop - first * size]


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A block that was dealt: the place and number of its rows; its files, and what is in them."""

    start: int
    num_rows: int
    tables: list[Table]
    sizes: list[int]

    def entry(self) -> Entry:
        """Return what the journal says about it."""
        return {"start": self.start, "rows": self.num_rows, "sizes": self.sizes}

    @classmethod
    def from_entry(cls, number: int, entry: Entry, work: Work) -> Dealt | None:
        """Return what the journal says about a block; None if its files are not all there."""
        tables = []
        for place, size in enumerate(entry["sizes"]):
            table = read_table(work.folder / block_name(number, place), work.num_cells, size)
            if table is None:
                return None
            tables.append(table)
        return cls(
            start=entry["start"], num_rows=entry["rows"], tables=tables, sizes=entry["sizes"]
        )


def read_part(work: Work, part: Part) -> tuple[int, list[Rows]]:
    """Return the number of rows in a part of the source, and the rows."""
    assert isinstance(work.source, PartedSource)
    row = part.start if part.file is None else 0
    rows = list(work.fitting.fitted(work.source.read(part, row)))
    return sum(map(num_rows_of, rows)), rows


def read_sized_part(work: Work, part: Part) -> tuple[int, NDArray[np.int64], list[Rows]]:
    """Return the number of rows in a part of the source, their bytes if these count, and them."""
    num_rows, rows = read_part(work, part)
    sizes = [row_sizes(some) for some in rows] if work.has_sizes else []
    return num_rows, np.concatenate([np.empty(0, np.int64), *sizes]), rows


def deal_part(work: Work, number: int, part: Part, num_known: int) -> Dealt:
    """Deal the rows of a part of the source, which has its place among all rows."""
    assert isinstance(work.source, PartedSource)
    rows = work.fitting.fitted(work.source.read(part, part.start))
    return deal_rows(work, number, rows, part.start, num_known)


def deal_rows(work: Work, number: int, rows: Iterable[Rows], start: int, num_known: int) -> Dealt:
    """Write rows to the files of a block; `start` is the place of the first among all rows."""
    if not work.folder.is_dir():
        raise PackError(
            f"{work.folder}: does not exist on {os.uname().nodename}; every node must see the "
            "folder to pack to: use shared storage"
        )
    tables: list[Table] = []
    sizes: list[int] = []
    place = start
    for held in _held(rows, work.num_bytes):
        count = num_rows_of(held)
        stop = place + count
        cells = np.zeros(count, np.int64)
        sorts: dict[str, NDArray[Any]] = {}
        if work.seed is not None:
            sorts[KEY] = row_keys(work.seed, place, stop)
            cells += part_of(sorts[KEY], work.num_parts)
        if work.has_sizes:
            sorts[SIZE] = row_sizes(held)
        if len(work.splits.names) > 1:
            cells += work.labels(place, stop, num_known).astype(np.int64) * work.num_parts
        path = work.folder / block_name(number, len(tables))
        tables.append(write_block(path, sorts, held, cells, work.num_cells))
        sizes.append(path.stat().st_size)
        place = stop
    return Dealt(start=start, num_rows=place - start, tables=tables, sizes=sizes)


def measure(work: Work, names: Sequence[str], runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return the bytes of all rows of some runs, in order."""
    found = []
    for run in runs:
        assert run.cell is not None
        paths = _paths(work, names, run)
        sorts = [one for one, _ in cells_of(paths, run.cell, work.sorts_like, None)]
        sizes = np.concatenate([np.asarray(one[SIZE]) for one in sorts])
        if work.seed is not None:
            keys = np.concatenate([np.asarray(one[KEY]) for one in sorts])
            sizes = sizes[np.argsort(keys, kind="stable")]
        found.append(sizes)
    return np.concatenate(found)


def write_chunks(
    work: Work, names: Sequence[str], split: int, chunks: Sequence[Chunk], runs: Sequence[Run]
) -> list[Entry]:
    """Write neighbouring chunks of a split; return what the journal says about them."""
    rows = _between(work, names, runs, chunks[0].start, chunks[-1].stop)
    return _write_all(work, split, chunks, rows)


def write_read_chunks(
    work: Work, chunks: Sequence[Chunk], start: int, *parts: Sequence[Rows]
) -> list[Entry]:
    """Write neighbouring chunks of rows that were read; `start` is the position of the first."""
    return _write_all(work, 0, chunks, _behind(parts, chunks[0].start - start))


def _behind(parts: Iterable[Sequence[Rows]], num_rows: int) -> Iterator[Rows]:
    """Yield the rows of parts, without so many of the first."""
    for rows in (rows for part in parts for rows in part):
        skipped = min(num_rows, num_rows_of(rows))
        num_rows -= skipped
        if skipped < num_rows_of(rows):
            yield part_of_rows(rows, skipped, num_rows_of(rows))


def _write_all(
    work: Work, split: int, chunks: Sequence[Chunk], rows: Iterator[Rows]
) -> list[Entry]:
    """Write chunks, each while the rows of the next one are read."""
    columns = work.fitting.columns
    type_names = {column.name: column.type_name for column in columns}
    entries: list[Entry] = []
    held: Rows | None = None
    writing: Future[Entry] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="feedline-pack") as writer:
        for chunk in chunks:
            wanted = chunk.stop - chunk.start
            filling = Filling(columns, wanted)
            while filling.num_rows < wanted:
                held = next(rows) if held is None else held
                count = min(num_rows_of(held), wanted - filling.num_rows)
                part = part_of_rows(held, 0, count)
                num_bytes = int(row_sizes(part).sum())
                work.cut.check_bytes(filling.num_bytes + num_bytes)
                filling.add(part, count, num_bytes)
                rest = part_of_rows(held, count, num_rows_of(held))
                held = rest if num_rows_of(rest) else None
            # Memory has room for one that is filled and one that is written.
            if writing is not None:
                entries.append(writing.result())
            writing = writer.submit(_write_chunk, work, split, chunk, filling, type_names)
        if writing is not None:
            entries.append(writing.result())
    return entries


def _write_chunk(
    work: Work, split: int, chunk: Chunk, filling: Filling, type_names: dict[str, str]
) -> Entry:
    name = chunk_name(work.format, chunk.number)
    # Where another run finds it, that removes it, and what is left of this run cannot move it.
    folder = work.folder / f".{uuid.uuid4().hex}"
    path, target = folder / name, work.data[split] / name
    with reported(path):
        folder.mkdir()
        try:
            entry = write_whole_chunk(work.format, path, filling.rows(), chunk.start, type_names)
            sync_chunk(path)
            if path.is_dir():
                # Of a task that was done before, and did not live to tell.
                remove(target)
            os.replace(path, target)
        finally:
            remove(folder)
    return {"chunk": chunk.number, "split": split, **entry}


def _between(
    work: Work, names: Sequence[str], runs: Sequence[Run], start: int, stop: int
) -> Iterator[Rows]:
    """Yield the rows of a split between two positions, in order."""
    for run in runs:
        first, last = max(start, run.start) - run.start, min(stop, run.stop) - run.start
        if run.cell is None:
            assert work.source is not None
            batches = rows_between(work.source, run.start + first, run.start + last)
            yield from work.fitting.fitted(batches)
        elif work.seed is None:
            for _, rows in cells_of(_paths(work, names, run), run.cell, work.sorts_like, work.like):
                yield part_of_rows(rows, first, last)
        else:
            yield from _sorted(work, _paths(work, names, run), run, first, last)


def _sorted(work: Work, paths: Sequence[Path], run: Run, first: int, last: int) -> Iterator[Rows]:
    """Yield the rows of a cell between two places, in the order of their keys.

    What does not fit in memory is read several times, each time for a finer range of keys.
    """
    assert run.cell is not None
    num_finer = -(-2 * run.num_bytes // work.num_bytes)
    part, start = run.cell % work.num_parts, 0
    for finer in range(part * num_finer, (part + 1) * num_finer):
        parts = []
        for sorts, rows in cells_of(paths, run.cell, work.sorts_like, work.like):
            found: Rows = {KEY: sorts[KEY], **rows}
            if num_finer > 1:
                is_in = part_of(np.asarray(sorts[KEY]), work.num_parts * num_finer) == finer
                found = take_rows(found, np.flatnonzero(is_in))
            parts.append(found)
        joined = concatenate_rows(parts)
        del parts
        # Blocks came in the order of the rows, so equal keys stay in that order.
        order = np.argsort(np.asarray(joined[KEY]), kind="stable")
        stop = start + len(order)
        order = order[max(0, first - start) : max(0, last - start)]
        step = max(1, len(order) // max(1, 4 * num_bytes_of(joined) // work.num_bytes))
        for place in range(0, len(order), step):
            rows = take_rows(joined, order[place : place + step])
            yield {name: column for name, column in rows.items() if name != KEY}
        start = stop


def _paths(work: Work, names: Sequence[str], run: Run) -> list[Path]:
    return [work.folder / name for name in (names if run.blocks is None else names[run.blocks])]


def _held(rows: Iterable[Rows], max_bytes: int) -> Iterator[Rows]:
    """Yield rows joined up to a size."""
    held: list[Rows] = []
    num_bytes = 0
    for some in rows:
        held.append(some)
        num_bytes += num_bytes_of(some)
        if num_bytes >= max_bytes:
            yield concatenate_rows(held)
            held, num_bytes = [], 0
    if held:
        yield concatenate_rows(held)
