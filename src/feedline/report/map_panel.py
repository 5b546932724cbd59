"""The panel that shows who reads what when: a map of ranks and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from feedline.plan import Chunking
from feedline.report.charts import Layer, Map, Mark, Panel
from feedline.report.trace import Cell, Trace
from feedline.runs.words import num_ranks, several, shortened

_MOST_SHARES = 4


def map_panel(trace: Trace, buckets: Sequence[str] = (), chunks: Chunking | None = None) -> Panel:
    """Return the map. Buckets and chunks are colours where there are any."""
    text = "Each cell is one step of one rank; hover for its numbers. "
    if trace.is_whole:
        text += "All steps of all ranks are shown."
    else:
        shown = several(len(trace.columns), "step")
        text += f"{shown} and {num_ranks(len(trace.ranks))} are shown, spread evenly over all."
    is_faded = [not trace.is_counted(column) for column in trace.columns]
    if any(is_faded):
        text += " Faded steps do not count: the next run did them again."
    chart = Map(
        title="Ranks and steps",
        column_label="step",
        row_label="rank",
        columns=[column.step for column in trace.columns],
        rows=trace.ranks,
        layers=list(_layers(trace, buckets, chunks)),
        is_faded=is_faded if any(is_faded) else (),
        groups=list(_groups(trace)),
    )
    return Panel("map", "Who reads what when", text, [chart])


def _groups(trace: Trace) -> Iterator[Mark]:
    if len(trace.stretches) == 1:
        return
    seen: set[int] = set()
    for place, column in enumerate(trace.columns):
        if column.stretch not in seen:
            seen.add(column.stretch)
            stretch = trace.stretches[column.stretch]
            yield Mark(place, f"{stretch.name}: {num_ranks(stretch.world_size)}")


def _layers(trace: Trace, buckets: Sequence[str], chunks: Chunking | None) -> Iterator[Layer]:
    if buckets:
        # Of very many buckets, those that come in the cells.
        used = sorted({cell.bucket for cell in trace.cells.values() if cell.bucket is not None})
        names = [shortened(buckets[number]) for number in used]
        places: dict[int | None, int] = {bucket: place for place, bucket in enumerate(used)}
        yield _layer(trace, "bucket", lambda cell: places.get(cell.bucket), categories=names)
    yield _layer(trace, "index of the first sample", _first)
    if chunks is not None:
        yield _layer(trace, "chunk of the first sample", lambda cell: _chunk(cell, chunks))
        if all(cell.is_whole for cell in trace.cells.values()):
            yield _layer(trace, "chunks in a step", lambda cell: _num_chunks(cell, chunks))
    if len(trace.sources) > 1 and not buckets:
        for number, source in enumerate(trace.sources[:_MOST_SHARES]):
            share = partial(_share, trace, number)
            yield _layer(trace, f"share of {source.name}", share, format="share")
    if all(cell.num_real is not None for cell in trace.cells.values()):
        yield _layer(trace, "samples", lambda cell: cell.num_real)
        if any(cell.num_padded for cell in trace.cells.values()):
            yield _layer(trace, "padded", lambda cell: cell.num_padded)
    if any(cell.wait is not None for cell in trace.cells.values()):
        yield _layer(trace, "wait for data", lambda cell: cell.wait, format="seconds")


def _layer(
    trace: Trace,
    name: str,
    value: Callable[[Cell], float | None],
    categories: Sequence[str] = (),
    format: str = "number",
) -> Layer:
    columns = range(len(trace.columns))
    values = [
        [value(trace.cells[c, rank]) if (c, rank) in trace.cells else None for c in columns]
        for rank in trace.ranks
    ]
    return Layer(name=name, values=values, categories=categories, format=format)


def _first(cell: Cell) -> int | None:
    return int(cell.ids[0]) if len(cell.ids) else None


def _chunk(cell: Cell, chunks: Chunking) -> int | None:
    return int(chunks.rows_of(cell.ids[:1])[0][0]) if len(cell.ids) else None


def _num_chunks(cell: Cell, chunks: Chunking) -> int:
    return len(np.unique(chunks.rows_of(cell.ids)[0]))


def _share(trace: Trace, number: int, cell: Cell) -> float | None:
    known = trace.known(cell.ids)
    return float((trace.sources_of(known) == number).mean()) if len(known) else None
