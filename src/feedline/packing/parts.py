"""Parts of a source, which processes read on their own, and in any order."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

from feedline.packing.rows import Batch, Source, part_of_rows


class Part(NamedTuple):
    """A range of the rows of a source, or of the bytes of one of its files of lines.

    Args:
        start: The first row or byte.
        stop: The end.
        file: The number of the file; None if this is a range of rows.
    """

    start: int
    stop: int
    file: int | None = None


@runtime_checkable
class PartedSource(Source, Protocol):
    """A source of which every process can read any part; it can be pickled."""

    def parts(self, num_bytes: int, row_bytes: int) -> Sequence[Part]:
        """Return all parts, in order; each has about so many bytes, or is read bit by bit."""
        ...

    def read(self, part: Part, row: int) -> Iterator[Batch]:
        """Yield the rows of a part; `row` is the number of its first row in its file."""
        ...


def for_one_core(source: Source) -> Source:
    """Return a source as a process reads it that has one core: there, more threads only wait."""
    if hasattr(source, "num_threads"):
        source = copy.copy(source)
        source.num_threads = 1
    return source


def parts_between(edges: Iterable[int], max_rows: int) -> list[Part]:
    """Return neighbouring ranges of rows that begin and end at edges, joined up to a size.

    Examples:
        >>> parts_between([0, 4, 6, 20], 10)
        [Part(start=0, stop=6, file=None), Part(start=6, stop=20, file=None)]
    """
    found: list[Part] = []
    for start, stop in pairwise(edges):
        if found and stop - found[-1].start <= max_rows:
            found[-1] = Part(found[-1].start, stop)
        elif stop > start:
            found.append(Part(start, stop))
    return found


def rows_between(source: Source, start: int, stop: int) -> Iterator[Batch]:
    """Yield a range of the rows of a source."""
    left = stop - start
    for batch in source.batches(start) if left else ():
        count = min(batch.num_rows, left)
        rows = batch.arrays if count == batch.num_rows else part_of_rows(batch.arrays, 0, count)
        yield Batch(batch.where, batch.row, rows, batch.type_names)
        left -= count
        if not left:
            return
