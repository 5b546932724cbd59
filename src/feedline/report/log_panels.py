"""The panels that only logs have: what their audit found, and how long ranks waited for data."""

from __future__ import annotations

from feedline.report.charts import Chart, Lines, Panel, Series, Table
from feedline.report.log_trace import Waits
from feedline.runs.audit_result import AuditResult
from feedline.runs.words import seconds_of

_MOST_ROWS = 200


def audit_panel(result: AuditResult) -> Panel:
    """Return what the audit found, epoch by epoch."""
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
    cut = _cut_to(len(result.epochs))
    note = f"Faults before others{cut}." if cut else ""
    charts: list[Chart] = [Table(title="Epochs", note=note, header=(*header, "state"), rows=rows)]
    found = [
        (epoch.epoch, what, index)
        for epoch in listed
        for what in ("lost", "repeated", "unknown")
        for index in getattr(epoch, what)
    ]
    if found:
        table = Table(
            title="Samples that did not come once",
            note=f"The first 20 of each kind in an epoch{_cut_to(len(found))}.",
            header=("epoch", "what", "index"),
            rows=found[:_MOST_ROWS],
        )
        charts.append(table)
    text = "Every sample that the ranks received, counted from their logs."
    return Panel("audit", "Audit", text, charts)


def _cut_to(count: int) -> str:
    return f"; {_MOST_ROWS} of {count:,} are shown" if count > _MOST_ROWS else ""


def wait_panel(waits: Waits) -> Panel | None:
    """Return how long ranks waited for data, or None if no wait is known."""
    total, count = float(waits.total.sum()), int(waits.num_batches.sum())
    if not count:
        return None
    has = waits.num_batches > 0
    mean = waits.total[has] / waits.num_batches[has]
    chart = Lines(
        title="Wait for a batch",
        note="The first batch of a run includes the start of its workers.",
        x_label="step",
        y_label="time",
        x=waits.steps[has].tolist(),
        series=[
            Series("longest of all ranks", waits.longest[has].tolist()),
            Series("mean", mean.tolist()),
        ],
        format="seconds",
    )
    text = f"{count:,} batches were waited for {seconds_of(total)} altogether, "
    text += f"{seconds_of(total / count)} each on average."
    return Panel("waits", "Waiting for data", text, [chart])
