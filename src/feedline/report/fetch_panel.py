"""The panel about data at URLs: what each run has fetched."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedline.report.charts import Panel, Table
from feedline.report.run_panels import MOST_SPANS, some_of
from feedline.runs.audit_runs import Run
from feedline.runs.plan_report import spread
from feedline.runs.words import seconds_of, shortened
from feedline.words import bytes_in_words, several

# What the event `fetched` counts, and how it is named here.
_COUNTS = {
    "num_bytes": "bytes",
    "num_requests": "requests",
    "num_retries": "retries",
    "num_stalls": "stalls",
    "num_hits": "hits of the cache",
    "num_misses": "misses",
    "wait_seconds": "waited for files",
}
_MOST = 2.0**62


def fetch_panel(runs: Sequence[Run]) -> Panel | None:
    """Return what runs have fetched of data at URLs, all ranks together; None if nothing."""
    sums = [_sums_of(run) for run in runs]
    found = [counts for counts in sums if counts is not None]
    if not found:
        return None
    total = {name: sum(counts[name] for counts in found) for name in _COUNTS}
    shown = spread(0, len(runs), MOST_SPANS)
    rows = [
        (shortened(runs[n].name), *(_cell(name, counts[name]) for name in _COUNTS))
        for n in shown
        if (counts := sums[n]) is not None
    ]
    num_asked = total["num_hits"] + total["num_misses"]
    text = (
        f"Ranks fetched {bytes_in_words(round(total['num_bytes']))} in "
        f"{several(round(total['num_requests']), 'request')}; "
        f"{several(round(total['num_retries']), 'request')} had to be made again, and "
        f"{several(round(total['num_stalls']), 'connection')} stalled. "
        f"{total['num_hits'] / max(1, num_asked):.0%} of files were in the cache already."
    )
    note = "All ranks together, as their passes ended; what worker processes fetch is not counted."
    table = Table(
        title="Fetched by each run",
        note=note + some_of(len(runs)),
        header=("run", *_COUNTS.values()),
        rows=rows,
    )
    return Panel("fetched", "Data from object storage", text, [table])


def _sums_of(run: Run) -> dict[str, float] | None:
    """Return the sums of what the ranks of a run have logged; None if they have not."""
    events = [e for part in run.ranks.values() for e in part.events if e.name == "fetched"]
    if not events:
        return None
    return {name: sum(_number(event.fields.get(name)) for event in events) for name in _COUNTS}


def _number(value: object) -> float:
    """Return a count from a log, which may contain anything."""
    if not isinstance(value, int | float) or not 0 <= value <= _MOST or not math.isfinite(value):
        return 0.0
    return float(value)


def _cell(name: str, value: float) -> str:
    if name == "num_bytes":
        return bytes_in_words(round(value))
    return seconds_of(value) if name == "wait_seconds" else f"{round(value):,}"
