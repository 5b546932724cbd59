"""The panels about a run as it happened: its restarts and resizes, its waits, and its audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice

from feedline.report.charts import Chart, Lines, Mark, Panel, Series, Span, Table, Timeline
from feedline.report.log_cells import Waits
from feedline.report.trace import Stretch, Trace, num_ranks, shortened, spread
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import RankPart, Run
from feedline.runs.dry_run import DryRun
from feedline.runs.log_entries import LoggedEvent

__all__ = ["audit_panel", "parts_panel", "runs_panel", "seconds_of", "wait_panel"]

_MOST_EVENTS = _MOST_ROWS = 200
_MOST_SPANS = 40
_MOST_MARKS = 1000
_MOST_FIELDS = 20
_SHOWN = ("start", "resume", "checkpoint", "stop")


def runs_panel(runs: Sequence[Run], trace: Trace) -> Panel:
    """Return when runs began, were saved and ended, and what of them does not count."""
    shown = spread(0, len(runs), _MOST_SPANS)
    num_marks = _MOST_MARKS // len(shown)
    charts: list[Chart] = [
        Timeline(
            title="Runs",
            note="Faded steps were done again by the next run, from a checkpoint before them."
            + _cut_to(_MOST_SPANS, len(runs)),
            x_label="step",
            spans=[_span(runs[number], trace.stretches[number], num_marks) for number in shown],
        )
    ]
    # All are sorted, and only those that are shown are put into words.
    events = sorted(
        ((run, event) for run in runs for event in _first_rank(run).events),
        key=lambda pair: _clock(pair[1].fields.get("time")),
    )
    charts.append(
        Table(
            title="Events",
            note=_first_of(_MOST_EVENTS, len(events)),
            header=("time (UTC)", "run", "event", "step", "more"),
            rows=[_described(run, event) for run, event in events[:_MOST_EVENTS]],
        )
    )
    return Panel(
        name="runs",
        title="Restarts and resizes",
        text="Each run goes on where a checkpoint of the one before left off.",
        charts=charts,
    )


def _first_of(most: int, count: int) -> str:
    return f"The first {most:,} of {count:,}." if count > most else ""


def _cut_to(most: int, count: int) -> str:
    return f" {most:,} of {count:,} are shown, spread evenly." if count > most else ""


def _span(run: Run, stretch: Stretch, num_marks: int) -> Span:
    found = [
        (event.fields["step"], event.name)
        for event in _first_rank(run).events
        if event.name in _SHOWN and type(event.fields.get("step")) is int
    ]
    marks = [
        Mark(x=step, label=name)
        for step, name in (found[place] for place in spread(0, len(found), num_marks))
    ]
    has_stopped = any(part.has_stopped for part in run.ranks.values())
    ranks = num_ranks(run.world_size)
    note = ranks if has_stopped else f"{ranks}, did not stop by itself"
    return Span(
        name=stretch.name,
        note=note,
        start=stretch.first,
        counted_end=stretch.counted_end,
        end=stretch.end,
        marks=marks,
    )


def _first_rank(run: Run) -> RankPart:
    return run.ranks[min(run.ranks)]


def _described(run: Run, event: LoggedEvent) -> tuple[str, str, str, object, str]:
    """Return the row of an event: its time, its run, its name, its step, and what else it says."""
    step = event.fields.get("step")
    more = [
        f"{name:.80} {_shown(value)}"
        for name, value in islice(event.fields.items(), _MOST_FIELDS)
        if name not in ("time", "step", "pid") and value is not None
    ]
    return (
        _clock(event.fields.get("time")),
        shortened(run.name),
        shortened(event.name),
        step if type(step) is int else "" if step is None else _shown(step),
        ", ".join(more),
    )


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
    shown = spread(0, len(trace.stretches), _MOST_SPANS)
    spans = [
        Span(
            name=stretch.name,
            note=num_ranks(stretch.world_size),
            start=stretch.first,
            counted_end=stretch.counted_end,
            end=stretch.end,
        )
        for stretch in (trace.stretches[number] for number in shown)
    ]
    rows = [
        (
            *(number, part.ranks, part.num_batches, part.num_consumed, part.num_padded),
            part.imbalance,
        )
        for number, part in enumerate(run.parts[:_MOST_ROWS], 1)
    ]
    header = ("part", "ranks", "batches of a rank", "consumed", "padded", "difference of ranks")
    return Panel(
        name="runs",
        title="Resizes",
        text="Each part goes on from the cursor of the one before, on another number of ranks.",
        charts=[
            Timeline(
                title="Parts of the epoch",
                note=_cut_to(_MOST_SPANS, len(trace.stretches)).strip(),
                x_label="step",
                spans=spans,
            ),
            Table(
                title="Parts",
                note=_first_of(_MOST_ROWS, len(run.parts)),
                header=header,
                rows=rows,
            ),
        ],
    )


def seconds_of(value: float) -> str:
    """Return seconds in words.

    Examples:
        >>> seconds_of(12345.6), seconds_of(1.25), seconds_of(0.0005)
        ('12,346 s', '1.25 s', '0.5 ms')
    """
    if 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.0f} s" if abs(value) >= 1000 else f"{value:.3g} s"


def wait_panel(waits: Waits) -> Panel:
    """Return how long ranks waited for data."""
    total, count = float(waits.total.sum()), int(waits.num_batches.sum())
    has = waits.num_batches > 0
    mean = waits.total[has] / waits.num_batches[has]
    return Panel(
        name="waits",
        title="Waiting for data",
        text=f"{count:,} batches were waited for {seconds_of(total)} altogether, "
        f"{seconds_of(total / max(1, count))} each on average.",
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
    # Of very many epochs, those with faults.
    listed = sorted(result.epochs, key=lambda epoch: epoch.ok)[:_MOST_ROWS]
    rows = [
        (
            *(e.epoch, e.num_expected, e.num_once, e.num_to_come, e.num_dropped, e.num_padded),
            *(e.num_lost, e.num_repeated, "ended" if e.is_finished else "not ended"),
        )
        for e in sorted(listed, key=lambda epoch: epoch.epoch)
    ]
    is_cut = len(result.epochs) > _MOST_ROWS
    note = f"{_MOST_ROWS} of {len(result.epochs):,}, faults before others." if is_cut else ""
    charts: list[Chart] = [Table(title="Epochs", note=note, header=header, rows=rows)]
    found = [
        (epoch.epoch, what, index)
        for epoch in listed
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
                note="The first 20 of each kind in an epoch. "
                + _first_of(_MOST_ROWS, len(found)),
                header=("epoch", "what", "index"),
                rows=found[:_MOST_ROWS],
            )
        )
    return Panel(
        name="audit",
        title="Audit",
        text="Every sample that the ranks received, counted from their logs.",
        charts=charts,
    )
