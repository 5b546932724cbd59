"""The panel about waiting for data: how long, and for what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.feed.waits import PARTS
from feedline.report.charts import Bars, Chart, Lines, Panel, Series
from feedline.report.log_trace import counted_rows
from feedline.report.run_panels import MOST_SPANS, some_of
from feedline.runs.audit_runs import Run, Table
from feedline.runs.plan_report import spread
from feedline.runs.words import seconds_of, shortened
from feedline.words import several

_MOST_WAITS = 200
_LEGEND = {
    "reading": "reading the samples",
    "copying": "copying them to the device",
    "handing_over": "handing them over",
    "unknown": "unknown, from an older log",
}
_WHAT_PARTS_ARE = (
    "The mean of all ranks. Handing over is the rest: what the loop's own thread does for a batch "
    "that has arrived, such as a transform."
)

Numbers = NDArray[np.float64]


def wait_panel(runs: Sequence[Run]) -> Panel | None:
    """Return how long ranks waited for data, and for what; or None if unknown."""
    rows = counted_rows(runs)
    rows = rows[np.isfinite(rows["wait"])]
    if not len(rows):
        return None
    first, end = int(rows["step"].min()), int(rows["step"].max()) + 1
    width = max(1, -(-(end - first) // _MOST_WAITS))
    # At most a few hundred stretches of steps: those that have batches.
    starts, places = np.unique((rows["step"] - first) // width, return_inverse=True)
    counts = np.bincount(places)

    def mean(seconds: Numbers) -> list[float]:
        """Return the mean of each stretch."""
        return list((np.bincount(places, weights=seconds) / counts).tolist())

    longest = np.zeros(len(starts))
    np.maximum.at(longest, places, rows["wait"])
    steps = (first + starts * width).tolist()
    total, batches = float(rows["wait"].sum()), several(len(rows), "batch", "batches")
    text = f"Ranks waited {seconds_of(total)} in total, "
    text += f"{seconds_of(total / len(rows))} for each of {batches} on average"
    charts: list[Chart] = [
        Lines(
            title="Wait for a batch",
            note="The first batch of a run includes the start of its workers.",
            x_label="step",
            y_label="time",
            x=steps,
            series=[
                Series("longest of all ranks", longest.tolist()),
                Series("mean", mean(rows["wait"])),
            ],
            format="seconds",
        )
    ]
    parts = _parts_of(rows)
    if PARTS[0] in parts:
        text += f": {_shares(parts, total)}"
        charts.append(
            Lines(
                title="What a batch is waited for",
                note=_WHAT_PARTS_ARE,
                x_label="step",
                y_label="time",
                x=steps,
                series=[Series(_LEGEND[name], mean(own), "area") for name, own in parts.items()],
                format="seconds",
            )
        )
        charts.append(_sums_of(runs))
    return Panel("waits", "Waiting for data", f"{text}.", charts)


def _parts_of(rows: Table) -> dict[str, Numbers]:
    """Return the seconds of each part of waiting for each batch, and those of older logs.

    Parts that do not make the whole, in a log that was tampered with, are unknown too.
    """
    listed = np.stack([rows[part] for part in PARTS])
    with np.errstate(over="ignore", invalid="ignore"):
        is_whole = np.abs(listed.sum(axis=0) - rows["wait"]) <= 1e-6 + 1e-6 * np.abs(rows["wait"])
    is_known = is_whole & (listed >= 0).all(axis=0)
    parts = {}
    if is_known.any():
        parts = {part: np.where(is_known, rows[part], 0.0) for part in PARTS}
    if not is_known.all():
        parts["unknown"] = np.where(is_known, 0.0, rows["wait"])
    return parts


def _sums_of(runs: Sequence[Run]) -> Bars:
    """Return what all batches of each run were waited for."""
    shown = [runs[number] for number in spread(0, len(runs), MOST_SPANS)]
    sums: list[dict[str, float]] = []
    for run in shown:
        rows = counted_rows([run])
        parts = _parts_of(rows[np.isfinite(rows["wait"])])
        sums.append({name: float(seconds.sum()) for name, seconds in parts.items()})
    return Bars(
        title="What each run waited for",
        note="All ranks together." + some_of(len(runs)),
        names=[shortened(run.name) for run in shown],
        series=[
            Series(text, [own.get(name, 0.0) for own in sums])
            for name, text in _LEGEND.items()
            if any(name in own for own in sums)
        ],
        format="seconds",
    )


def _shares(parts: dict[str, Numbers], total: float) -> str:
    shares = {name: float(own.sum()) / (total or 1.0) for name, own in parts.items()}
    return ", ".join(f"{share:.0%} {name.replace('_', ' ')}" for name, share in shares.items())
