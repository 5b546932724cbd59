"""The panels about batches: buckets and sizes, and the tail with its padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from feedline.report.charts import Bars, Chart, Lines, Panel, Series, Table
from feedline.report.trace import Trace
from feedline.runs.plan_report import BucketLine
from feedline.runs.words import num_ranks, shortened

_MOST_BUCKETS = 16

_TAILS = {
    "drop": "What does not fill a batch on every rank is left out.",
    "pad": "The last batches are filled up with samples that were consumed already, and marked.",
    "even": "Every sample comes once; the last batch is split as evenly as possible.",
    "exact": "Everything fills up, or the plan would have been refused.",
}


def batch_panel(trace: Trace, buckets: Sequence[BucketLine] = (), note: str = "") -> Panel:
    """Return the buckets, with a note on their counts, and how large batches are over the steps."""
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
        title="Batches of a rank in each bucket",
        note=note,
        names=[shortened(line.name) for line in listed],
        series=[Series("batches", [line.num_batches for line in listed])],
    )
    return [table, bars]


def _sizes(trace: Trace) -> Lines:
    """Return the mean number of samples of a batch, on the ranks with the most and the fewest."""
    fewest: list[float | None] = []
    most: list[float | None] = []
    counted = trace.counted
    for place in counted:
        found = [trace.cells.get((place, rank)) for rank in trace.ranks]
        sizes = [
            (cell.num_known + cell.num_padded) / cell.num_batches
            for cell in found
            if cell is not None
        ]
        fewest.append(min(sizes, default=None))
        most.append(max(sizes, default=None))
    return Lines(
        title="Samples in a batch",
        note="The mean of a step. Padding counts, because it is computed too.",
        x_label="step",
        y_label="samples",
        x=[trace.columns[place].step for place in counted],
        series=[
            Series("most", most, style="steps"),
            Series("fewest", fewest, style="dashed"),
        ],
    )


def tail_panel(trace: Trace, tail: str, num_dropped: int, num_padded: int) -> Panel:
    """Return what happens at the end of an epoch."""
    last = trace.counted[-1] if trace.counted else len(trace.columns) - 1
    shown = [(rank, trace.cells[last, rank]) for rank in trace.ranks if (last, rank) in trace.cells]
    title = f"Samples of each rank in step {trace.columns[last].step}, the last one"
    if any(cell.num_real is None for _, cell in shown):
        num_batches = max(cell.num_batches for _, cell in shown)
        title += f": its first {num_batches:,} batches"
    num_alive = trace.stretches[trace.columns[last].stretch].world_size
    bars = Bars(
        title=title,
        note="" if len(shown) == num_alive else f"{len(shown)} of {num_ranks(num_alive)}.",
        names=[f"rank {rank}" for rank, _ in shown],
        series=[
            Series("samples", [cell.num_known for _, cell in shown]),
            Series("padding", [cell.num_padded for _, cell in shown]),
        ],
    )
    text = (
        f"{_TAILS.get(tail, '')} {num_dropped:,} samples are dropped and {num_padded:,} are padded."
    )
    return Panel("tail", "Tail and padding", text.strip(), [bars])
