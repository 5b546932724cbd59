"""The panel about the restarts and resizes of a run, as they happened or as they would."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice

from feedline.report.charts import Mark, Panel, Span, Table, Timeline
from feedline.report.trace import Stretch, Trace, spread
from feedline.runs.audit_runs import RankPart, Run
from feedline.runs.dry_run import DryRun
from feedline.runs.log_entries import LoggedEvent
from feedline.runs.words import num_ranks, shortened

_MOST_ROWS, _MOST_SPANS, _MOST_MARKS, _MOST_FIELDS = 200, 40, 1000, 20
_SHOWN = ("start", "resume", "checkpoint", "stop")


def runs_panel(runs: Sequence[Run], trace: Trace) -> Panel:
    """Return when runs began, were saved and ended, and what of them does not count."""
    shown = spread(0, len(runs), _MOST_SPANS)
    num_marks = _MOST_MARKS // len(shown)
    timeline = Timeline(
        title="Runs",
        note="Triangles are starts, checkpoints and ends. Faded steps do not count: the next "
        "run did them again." + _cut_to(_MOST_SPANS, len(runs)),
        x_label="step",
        spans=[
            _span(trace.stretches[n], _note_on(runs[n]), _marks(runs[n], num_marks)) for n in shown
        ],
    )
    # All are sorted, and only those that are shown are put into words.
    events = sorted(
        ((run, event) for run in runs for event in _first_rank(run).events),
        key=lambda pair: _clock(pair[1].fields.get("time")),
    )
    table = Table(
        title="Events",
        note=_first_of(_MOST_ROWS, len(events)),
        header=("time (UTC)", "run", "event", "step", "more"),
        rows=[_described(run, event) for run, event in events[:_MOST_ROWS]],
    )
    text = "Each run resumes from a checkpoint of the one before."
    return Panel("runs", "Restarts and resizes", text, [timeline, table])


def parts_panel(run: DryRun, trace: Trace) -> Panel:
    """Return the parts of an epoch that is resized on the way."""
    stretches = [trace.stretches[n] for n in spread(0, len(trace.stretches), _MOST_SPANS)]
    timeline = Timeline(
        title="Parts of the epoch",
        note=_cut_to(_MOST_SPANS, len(trace.stretches)).strip(),
        x_label="step",
        spans=[_span(stretch, num_ranks(stretch.world_size)) for stretch in stretches],
    )
    rows = [
        (number, p.ranks, p.num_batches, p.num_consumed, p.num_padded, p.imbalance)
        for number, p in enumerate(run.parts[:_MOST_ROWS], 1)
    ]
    table = Table(
        title="Parts",
        note=_first_of(_MOST_ROWS, len(run.parts)),
        header=("part", "ranks", "batches of a rank", "consumed", "padded", "difference of ranks"),
        rows=rows,
    )
    text = "Each part resumes from the cursor of the one before, on another number of ranks."
    return Panel("runs", "Resizes", text, [timeline, table])


def _first_of(most: int, count: int) -> str:
    return f"The first {most:,} of {count:,}." if count > most else ""


def _cut_to(most: int, count: int) -> str:
    return f" {most:,} of {count:,} are shown, spread evenly." if count > most else ""


def _span(stretch: Stretch, note: str, marks: Sequence[Mark] = ()) -> Span:
    name, _, start, counted_end, end = stretch
    return Span(name=name, note=note, start=start, counted_end=counted_end, end=end, marks=marks)


def _note_on(run: Run) -> str:
    has_stopped = any(part.has_stopped for part in run.ranks.values())
    return num_ranks(run.world_size) + ("" if has_stopped else ", did not stop by itself")


def _marks(run: Run, most: int) -> list[Mark]:
    found = [
        Mark(event.fields["step"], event.name)
        for event in _first_rank(run).events
        if event.name in _SHOWN and type(event.fields.get("step")) is int
    ]
    return [found[place] for place in spread(0, len(found), most)]


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
