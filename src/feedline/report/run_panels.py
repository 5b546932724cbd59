"""The panels about a run as it happened: its restarts and resizes, its waits, and its audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from feedline.report.charts import Chart, Lines, Mark, Panel, Series, Span, Table, Timeline
from feedline.report.log_trace import Waits
from feedline.report.trace import Stretch, Trace, num_ranks
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import Run
from feedline.runs.dry_run import DryRun

__all__ = ["audit_panel", "parts_panel", "runs_panel", "wait_panel"]

_MOST_EVENTS = 200
_SHOWN = ("start", "resume", "checkpoint", "stop")


def runs_panel(runs: Sequence[Run], trace: Trace) -> Panel:
    """Return when runs began, were saved and ended, and what of them does not count."""
    spans = [_span(run, s) for run, s in zip(runs, trace.stretches, strict=True)]
    charts: list[Chart] = [
        Timeline(
            title="Runs",
            note="Faded steps were done again by the next run, from a checkpoint before them.",
            x_label="step",
            spans=spans,
        )
    ]
    events = sorted(_events(runs), key=lambda row: str(row[0]))
    note = ""
    if len(events) > _MOST_EVENTS:
        note = f"The first {_MOST_EVENTS} of {len(events):,}."
    charts.append(
        Table(
            title="Events",
            note=note,
            header=("time (UTC)", "run", "event", "step", "more"),
            rows=events[:_MOST_EVENTS],
        )
    )
    return Panel(
        name="runs",
        title="Restarts and resizes",
        text="Each run goes on where a checkpoint of the one before left off.",
        charts=charts,
    )


def _span(run: Run, stretch: Stretch) -> Span:
    marks = []
    for event in _first_rank(run).events:
        step = event.fields.get("step")
        if event.name in _SHOWN and isinstance(step, int):
            marks.append(Mark(x=step, label=event.name))
    has_stopped = any(part.has_stopped for part in run.ranks.values())
    ranks = num_ranks(run.world_size)
    note = ranks if has_stopped else f"{ranks}, did not stop by itself"
    return Span(
        name=run.name,
        note=note,
        start=stretch.first,
        counted_end=stretch.counted_end,
        end=stretch.end,
        marks=marks,
    )


def _first_rank(run: Run) -> Any:
    return run.ranks[min(run.ranks)]


def _events(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, object, str]]:
    for run in runs:
        for event in _first_rank(run).events:
            fields = dict(event.fields)
            time, step = fields.pop("time", None), fields.pop("step", "")
            fields.pop("pid", None)
            more = ", ".join(f"{name} {_shown(value)}" for name, value in fields.items() if value)
            yield (_clock(time), run.name, event.name, step, more)


def _clock(time: object) -> str:
    if not isinstance(time, int | float):
        return ""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value!s:.80}"


def parts_panel(run: DryRun, trace: Trace) -> Panel:
    """Return the parts of an epoch that is resized on the way."""
    spans = [
        Span(
            name=stretch.name,
            note=num_ranks(stretch.world_size),
            start=stretch.first,
            counted_end=stretch.counted_end,
            end=stretch.end,
        )
        for stretch in trace.stretches
    ]
    rows = [
        (part.ranks, part.num_batches, part.num_consumed, part.num_padded, part.imbalance)
        for part in run.parts
    ]
    header = ("ranks", "batches of a rank", "consumed", "padded", "difference of ranks")
    return Panel(
        name="runs",
        title="Resizes",
        text="Each part goes on from the cursor of the one before, on another number of ranks.",
        charts=[
            Timeline(title="Parts of the epoch", x_label="step", spans=spans),
            Table(title="Parts", header=header, rows=rows),
        ],
    )


def wait_panel(waits: Waits) -> Panel:
    """Return how long ranks waited for data."""
    total, count = float(waits.total.sum()), int(waits.num_batches.sum())
    has = waits.num_batches > 0
    mean = waits.total[has] / waits.num_batches[has]
    return Panel(
        name="waits",
        title="Waiting for data",
        text=f"{count:,} batches were waited for {total:,.3g} seconds altogether, "
        f"{1000 * total / max(1, count):,.3g} ms each on average.",
        charts=[
            Lines(
                title="Wait for a batch",
                note="The first batch of a run includes the start of its workers.",
                x_label="step",
                y_label="time",
                x=waits.steps[has].tolist(),
                series=[
                    Series(name="longest of all ranks", values=waits.longest[has].tolist()),
                    Series(name="mean", values=mean.tolist()),
                ],
                format="seconds",
            )
        ],
    )


def audit_panel(result: AuditResult) -> Panel:
    """Return what the audit found, epoch by epoch."""
    header = (
        *("epoch", "expected", "once", "to come", "dropped", "padded", "lost", "repeated"),
        "state",
    )
    rows = [
        (
            *(e.epoch, e.num_expected, e.num_once, e.num_to_come, e.num_dropped, e.num_padded),
            *(e.num_lost, e.num_repeated, "ended" if e.is_finished else "not ended"),
        )
        for e in result.epochs
    ]
    charts: list[Chart] = [Table(title="Epochs", header=header, rows=rows)]
    found = [
        (epoch.epoch, what, index)
        for epoch in result.epochs
        for what, indices in (
            *(("lost", epoch.lost), ("repeated", epoch.repeated)),
            ("unknown", epoch.unknown),
        )
        for index in indices
    ]
    if found:
        charts.append(
            Table(
                title="Samples that did not come once",
                note="The first 20 of each kind.",
                header=("epoch", "what", "index"),
                rows=found,
            )
        )
    return Panel(
        name="audit",
        title="Audit",
        text="Every sample that the ranks received, counted from their logs.",
        charts=charts,
    )
