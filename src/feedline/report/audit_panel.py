"""The panel that shows what the audit of a run's logs found."""

from __future__ import annotations

from feedline.report.charts import Chart, Panel, Table
from feedline.runs.audit_result import AuditResult

__all__ = ["audit_panel"]

_MOST_ROWS = 200


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
    cut = _cut_to(len(result.epochs))
    note = f"Faults before others{cut}." if cut else ""
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
                note=f"The first 20 of each kind in an epoch{_cut_to(len(found))}.",
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


def _cut_to(count: int) -> str:
    return f"; {_MOST_ROWS} of {count:,} are shown" if count > _MOST_ROWS else ""
