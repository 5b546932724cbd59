"""The panels about steps: the map of ranks and steps, buckets and batch sizes, and the tail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from feedline.plan import Chunking
from feedline.report.charts import Bars, Chart, Layer, Lines, Map, Mark, Panel, Series, Table
from feedline.report.trace import Cell, Trace
from feedline.runs.plan_report import BucketLine
from feedline.runs.words import num_ranks, shortened
from feedline.words import several

_MOST_SHARES, _MOST_BUCKETS = 4, 16
_TAILS = {
    "drop": "Samples that do not fill a batch on every rank are dropped.",
    "pad": "The last batches are padded with samples that were already consumed, and marked.",
    "even": "Every sample comes once; the last batch is split as evenly as possible.",
    "exact": "Every batch is full, or the plan would be refused.",
}


def map_panel(trace: Trace, buckets: Sequence[str] = (), chunks: Chunking | None = None) -> Panel:
    """Return the map of ranks and steps, coloured by bucket or chunk."""
    text = "Each cell is one step of one rank; hover for its numbers. "
    if trace.is_whole:
        text += "All steps of all ranks are shown."
    else:
        shown = several(len(trace.columns), "step")
        text += f"{shown} and {num_ranks(len(trace.ranks))} are shown, spread evenly over all."
    is_faded = [not trace.is_counted(column) for column in trace.columns]
    if any(is_faded):
        text += " Faded steps do not count: the next run repeated them."
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
    return Panel("map", "What each rank reads at each step", text, [chart])


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


def batch_panel(trace: Trace, buckets: Sequence[BucketLine] = (), note: str = "") -> Panel:
    """Return the buckets, with a note on their counts, and the batch sizes over the steps."""
    charts: list[Chart] = [_sizes(trace)]
    if buckets:
        charts = [*_bucket_charts(buckets, note), *charts]
    title = "Buckets and batch sizes" if buckets else "Batch sizes"
    text = "All ranks are in the same bucket at the same step." if buckets else ""
    return Panel("batches", title, text, charts)


def _bucket_charts(buckets: Sequence[BucketLine], note: str) -> list[Chart]:
    listed = sorted(buckets, key=lambda line: -line.num_samples)[:_MOST_BUCKETS]
    is_cut = len(buckets) > _MOST_BUCKETS
    table = Table(
        title="Buckets",
        note=f"The {_MOST_BUCKETS} largest of {len(buckets):,}. {note}" if is_cut else note,
        header=("bucket", "samples", "batch size", "batches", "dropped", "padded"),
        rows=[(shortened(line.name), *dataclasses.astuple(line)[1:]) for line in listed],
    )
    bars = Bars(
        title="Batches per rank in each bucket",
        note=note,
        names=[shortened(line.name) for line in listed],
        series=[Series("batches", [line.num_batches for line in listed])],
    )
    return [table, bars]


def _sizes(trace: Trace) -> Lines:
    """Return the mean number of samples in a batch, on the ranks with the most and the fewest."""
    fewest: list[float | None] = []
    most: list[float | None] = []
    counted = trace.counted
    for place in counted:
        cells = trace.cells_in(place).values()
        sizes = [(cell.num_known + cell.num_padded) / cell.num_batches for cell in cells]
        fewest.append(min(sizes, default=None))
        most.append(max(sizes, default=None))
    return Lines(
        title="Samples in a batch",
        note="The mean of a step, including padding.",
        x_label="step",
        y_label="samples",
        x=[trace.columns[place].step for place in counted],
        series=[
            Series("most", most, style="steps"),
            Series("fewest", fewest, style="dashed"),
        ],
    )


def tail_panel(trace: Trace, tail: str, num_dropped: int, num_padded: int) -> Panel:
    """Return the panel of the tail of an epoch."""
    last = trace.counted[-1] if trace.counted else len(trace.columns) - 1
    shown = trace.cells_in(last)
    title = f"Samples of each rank in step {trace.columns[last].step}, the last one"
    if any(cell.num_real is None for cell in shown.values()):
        num_batches = max(cell.num_batches for cell in shown.values())
        title += f": its first {several(num_batches, 'batch', 'batches')}"
    num_alive = trace.stretches[trace.columns[last].stretch].world_size
    bars = Bars(
        title=title,
        note="" if len(shown) == num_alive else f"{len(shown)} of {num_ranks(num_alive)}.",
        names=[f"rank {rank}" for rank in shown],
        series=[
            Series("samples", [cell.num_known for cell in shown.values()]),
            Series("padding", [cell.num_padded for cell in shown.values()]),
        ],
    )
    text = (
        f"{_TAILS.get(tail, '')} {several(num_dropped, 'sample')} dropped, {num_padded:,} padded."
    )
    return Panel("tail", "Tail and padding", text.strip(), [bars])
