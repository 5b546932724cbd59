"""Where rows go: the runs that the order of a split is made of, and the chunks of that order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.settings import Cut

_NUM_AT_ONCE = 2**16


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rows that are neighbours in the order of a split.

    Args:
        start: The position of the first.
        num_rows: The number of rows.
        num_bytes: The number of bytes that they take in blocks.
        cell: Their cell in the blocks; None if they are read from the source, in its order.
        blocks: The blocks that they are in; sorted by their keys if there may be several.
    """

    start: int
    num_rows: int
    num_bytes: int = 0
    cell: int | None = None
    blocks: slice | None = None

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.start + self.num_rows


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A chunk of a split: its number, and its first position and its end."""

    number: int
    start: int
    stop: int


def runs_of_cells(totals: NDArray[np.int64], cells: Sequence[int]) -> list[Run]:
    """Return the runs of a shuffled split: its cells, each in any number of blocks."""
    return _in_turn(totals[cells, 1:].tolist(), [{"cell": cell} for cell in cells])


def runs_of_files(tables: Sequence[NDArray[np.int64]], cell: int) -> list[Run]:
    """Return the runs of a split in the order of the source: its cell in each block."""
    sizes = [table[cell, 1:].tolist() for table in tables]
    blocks = [slice(place, place + 1) for place in range(len(tables))]
    return _in_turn(sizes, [{"cell": cell, "blocks": some} for some in blocks])


def _in_turn(sizes: Sequence[Sequence[int]], places: Sequence[dict[str, Any]]) -> list[Run]:
    starts = accumulate((num_rows for num_rows, _ in sizes), initial=0)
    return [
        Run(start=start, num_rows=num_rows, num_bytes=num_bytes, **place)
        for start, (num_rows, num_bytes), place in zip(starts, sizes, places, strict=False)
        if num_rows
    ]


def runs_together(runs: Sequence[Run], num_rows: int) -> Iterator[list[Run]]:
    """Yield neighbouring runs, about so many rows at a time."""
    group: list[Run] = []
    for run in runs:
        group.append(run)
        if run.stop - group[0].start >= num_rows:
            yield group
            group = []
    if group:
        yield group


def chunks_between(edges: Sequence[int]) -> list[Chunk]:
    """Return the chunks between positions."""
    return [Chunk(number=n, start=a, stop=b) for n, (a, b) in enumerate(pairwise(edges))]


def even_edges(num_rows: int, chunk_samples: int) -> list[int]:
    """Return where chunks begin that have one number of samples, and the end of the last."""
    return [*range(0, num_rows, chunk_samples), num_rows]


class Cutting:
    """Cuts rows into chunks as their sizes become known.

    Args:
        cut: Where chunks end.
        number: The number of the first chunk.
        start: The position of its first row.
    """

    def __init__(self, cut: Cut, number: int = 0, start: int = 0) -> None:
        self._cut = cut
        self._number, self._start = number, start
        self._num_bytes = 0
        #: The position after the last row.
        self.position = start

    def add(self, sizes: NDArray[np.int64]) -> Iterator[Chunk]:
        """Take the bytes of the next rows; yield the chunks that end before the last of these."""
        for some in _pieces([sizes]):
            done = 0
            while done < len(some):
                held = self.position - self._start
                count = self._cut.num_that_fit(some[done:], held, self._num_bytes)
                self._num_bytes += int(some[done : done + count].sum())
                self._cut.check_bytes(self._num_bytes)
                done += count
                self.position += count
                if done < len(some):
                    yield from self.end()

    def end(self) -> Iterator[Chunk]:
        """Yield the chunk that the last rows are in, if there are any."""
        if self.position > self._start:
            yield Chunk(number=self._number, start=self._start, stop=self.position)
            self._number, self._start, self._num_bytes = self._number + 1, self.position, 0


def edges_by_bytes(cut: Cut, sizes: Iterable[NDArray[np.int64]]) -> list[int]:
    """Return where chunks begin that hold as many rows as fit, and the end of the last."""
    cutting = Cutting(cut)
    chunks = [chunk for some in sizes for chunk in cutting.add(some)]
    return [0, *(chunk.stop for chunk in (*chunks, *cutting.end()))]


def _pieces(sizes: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    for some in sizes:
        for first in range(0, len(some), _NUM_AT_ONCE):
            yield some[first : first + _NUM_AT_ONCE]


def grouped(
    chunks: Sequence[Chunk], runs: Sequence[Run], num_rows: int
) -> Iterator[tuple[list[Chunk], list[Run]]]:
    """Yield neighbouring chunks, about so many rows at a time, with the runs that they are in."""
    first = 0
    group: list[Chunk] = []
    for place, chunk in enumerate(chunks):
        group.append(chunk)
        following = chunks[place + 1] if place + 1 < len(chunks) else None
        is_cut = following is None or following.start != chunk.stop
        if is_cut or chunk.stop - group[0].start >= num_rows:
            while runs[first].stop <= group[0].start:
                first += 1
            last = first
            while runs[last].stop < chunk.stop:
                last += 1
            yield group, list(runs[first : last + 1])
            group = []
