"""The panel that shows how long ranks waited for data."""

from __future__ import annotations

from feedline.report.charts import Lines, Panel, Series
from feedline.report.log_cells import Waits
from feedline.report.words import seconds_of

__all__ = ["wait_panel"]


def wait_panel(waits: Waits) -> Panel | None:
    """Return how long ranks waited for data, or None if no wait is known."""
    total, count = float(waits.total.sum()), int(waits.num_batches.sum())
    if not count:
        return None
    has = waits.num_batches > 0
    mean = waits.total[has] / waits.num_batches[has]
    return Panel(
        name="waits",
        title="Waiting for data",
        text=f"{count:,} batches were waited for {seconds_of(total)} altogether, "
        f"{seconds_of(total / count)} each on average.",
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
