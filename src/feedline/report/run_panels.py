"""The panels about runs: restarts and resizes, and what an audit found."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice

from feedline.report.charts import Chart, Mark, Panel, Span, Table, Timeline
from feedline.report.trace import Stretch, Trace
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import Run
from feedline.runs.dry_run import DryRun
from feedline.runs.log_records import LoggedEvent
from feedline.runs.plan_report import spread
from feedline.runs.words import num_ranks, shortened

_MOST_ROWS, MOST_SPANS, _MOST_MARKS, _MOST_FIELDS = 200, 40, 1000, 20
_SHOWN = ("start", "resume", "checkpoint", "stop")


def runs_panel(runs: Sequence[Run], trace: Trace) -> Panel:
    """Return the panel of starts, checkpoints and ends of runs, and steps that do not count."""
    shown = spread(0, len(runs), MOST_SPANS)
    num_marks = _MOST_MARKS // len(shown)
    timeline = Timeline(
        title="Runs",
        note=(
            "Triangles are starts, checkpoints and ends. Faded steps do not count: the next run "
            "repeated them."
        )
        + some_of(len(runs)),
        x_label="step",
        spans=[
            _span(trace.stretches[n], _note_on(runs[n]), _marks(runs[n], num_marks)) for n in shown
        ],
    )
    # All are sorted, and only those that are shown are put into words.
    events = sorted(
        ((run, event) for run in runs for event in run.first_rank.events),
        key=lambda pair: _clock(pair[1].fields.get("time")),
    )
    table = Table(
        title="Events",
        note=_first_of(len(events)),
        header=("time (UTC)", "run", "event", "step", "more"),
        rows=[_described(run, event) for run, event in events[:_MOST_ROWS]],
    )
    text = "Each run resumes from a checkpoint of the one before."
    return Panel("runs", "Restarts and resizes", text, [timeline, table])


def parts_panel(run: DryRun, trace: Trace) -> Panel:
    """Return the parts of an epoch with resizes."""
    stretches = [trace.stretches[n] for n in spread(0, len(trace.stretches), MOST_SPANS)]
    timeline = Timeline(
        title="Parts of the epoch",
        note=some_of(len(trace.stretches)).strip(),
        x_label="step",
        spans=[_span(stretch, num_ranks(stretch.world_size)) for stretch in stretches],
    )
    rows = [
        (number, p.ranks, p.num_batches, p.num_consumed, p.num_padded, p.imbalance)
        for number, p in enumerate(run.parts[:_MOST_ROWS], 1)
    ]
    table = Table(
        title="Parts",
        note=_first_of(len(run.parts)),
        header=(
            "part",
            "ranks",
            "batches per rank",
            "consumed",
            "padded",
            ("difference between ranks"),
        ),
        rows=rows,
    )
    text = "Each part resumes from the cursor of the one before, on another number of ranks."
    return Panel("runs", "Resizes", text, [timeline, table])


def _first_of(count: int) -> str:
    return f"The first {_MOST_ROWS:,} of {count:,}." if count > _MOST_ROWS else ""


def some_of(count: int) -> str:
    """Return a sentence for a note if some of very many runs are shown."""
    if count <= MOST_SPANS:
        return ""
    return f" {MOST_SPANS:,} of {count:,} are shown, spread evenly."


def _span(stretch: Stretch, note: str, marks: Sequence[Mark] = ()) -> Span:
    name, _, start, counted_end, end = stretch
    return Span(name=name, note=note, start=start, counted_end=counted_end, end=end, marks=marks)


def _note_on(run: Run) -> str:
    has_stopped = any(part.has_stopped for part in run.ranks.values())
    return num_ranks(run.world_size) + ("" if has_stopped else ", killed or crashed")


def _marks(run: Run, most: int) -> list[Mark]:
    found = [
        Mark(event.fields["step"], event.name)
        for event in run.first_rank.events
        if event.name in _SHOWN and type(event.fields.get("step")) is int
    ]
    return [found[place] for place in spread(0, len(found), most)]


def _described(run: Run, event: LoggedEvent) -> tuple[str, str, str, object, str]:
    """Return the row of an event: its time, run, name, step and other fields."""
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


def audit_panel(result: AuditResult) -> Panel:
    """Return the result of the audit, epoch by epoch."""
    header = ("epoch", "expected", "once", "to come", "dropped", "padded", "lost", "repeated")
    # Of very many epochs, those with faults.
    listed = sorted(result.epochs, key=lambda epoch: epoch.ok)[:_MOST_ROWS]
    rows = [
        (
            *(e.epoch, e.num_expected, e.num_once, e.num_to_come, e.num_dropped, e.num_padded),
            *(e.num_lost, e.num_repeated, "ended" if e.is_finished else "not ended"),
        )
        for e in sorted(listed, key=lambda epoch: epoch.epoch)
    ]
    num_epochs = len(result.epochs)
    note = ""
    if num_epochs > _MOST_ROWS:
        note = f"Epochs with faults come first; {_MOST_ROWS} of {num_epochs:,} are shown."
    charts: list[Chart] = [Table(title="Epochs", note=note, header=(*header, "state"), rows=rows)]
    found = [
        (epoch.epoch, what.replace("_", " "), index)
        for epoch in listed
        for what in ("lost", "repeated", "unknown", "skipped", "in_skipped_batches")
        for index in getattr(epoch, what)
    ]
    if found:
        table = Table(
            title="Samples that did not come once",
            note=f"The first 20 of each kind in an epoch. {_first_of(len(found))}".strip(),
            header=("epoch", "what", "index"),
            rows=found[:_MOST_ROWS],
        )
        charts.append(table)
    text = "Every sample that the ranks received, counted from their logs."
    return Panel("audit", "Audit", text, charts)
