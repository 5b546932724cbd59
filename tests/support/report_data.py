"""Reports of all kinds: of plans, of resized plans, and of logs with and without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench_figures import figures_of
from feedline.feed import Wait
from feedline.plan import SamplePlan, Shuffled
from feedline.report import Report, report_config, report_logs
from feedline.report.bench_report import report_bench
from feedline.runs import ConsumptionLog, RunConfig
from feedline.runs.bench.advice import advise

MIXTURE: dict[str, Any] = {
    "ranks": 4,
    "batch_size": 8,
    "grad_acc_steps": 2,
    "data": {
        "mixture": [
            {"name": "web", "samples": 6000, "weight": 3},
            {"name": "books", "samples": 2000, "weight": 1},
            {"name": "code", "samples": 900, "weight": 1},
        ],
        "phases": [{"position": 4000, "weights": {"web": 1, "books": 1, "code": 2}}],
    },
}
BUCKETS: dict[str, Any] = {
    "ranks": 3,
    "batch_size": 16,
    "tail": "pad",
    "data": {
        "mode": "interleaved",
        "buckets": [
            {"name": "512x512", "samples": 1001, "batch_size": 16},
            {"name": "1024x1024", "samples": 403, "batch_size": 4},
        ],
    },
}
LONG_BUCKETS: dict[str, Any] = {
    "batch_size": 4,
    "data": {"buckets": [{"name": f"{'width' * 30}{n}", "samples": 40} for n in range(3)]},
}
WINDOWS: dict[str, Any] = {
    "ranks": 4,
    "batch_size": 16,
    "tail": "even",
    "data": {"chunks": {"num_chunks": 40, "chunk_size": 100, "preload": 4}},
}
HUGE: dict[str, Any] = {"ranks": 16384, "batch_size": 32, "data": {"samples": 10**12}}
TINY: dict[str, Any] = {"batch_size": 1, "data": {"samples": 1}}


def of_config(values: dict[str, Any], **options: Any) -> Report:
    return report_config(RunConfig.from_dict(values), **options)


def panel_of(report: Report, name: str) -> dict[str, Any]:
    """A panel, as JSON values."""
    found = [panel for panel in report.to_dict()["panels"] if panel["name"] == name]
    assert found, f"no panel {name}"
    return found[0]


def chart_of(report: Report, name: str, title: str) -> dict[str, Any]:
    """The chart of a panel whose title is this, or else begins so."""
    charts = panel_of(report, name)["charts"]
    found = [chart for chart in charts if chart["title"].startswith(title)]
    return min(found, key=lambda chart: len(chart["title"]))


def layer_of(chart: dict[str, Any], name: str) -> np.ndarray:
    """The numbers of one layer of a map; NaN where there is none."""
    layer = next(layer for layer in chart["layers"] if layer["name"] == name)
    return np.array(layer["values"], dtype=float)


def write_logs(folder: Path, *, names: tuple[str, str] = ("web", "books"), drop: int = 0) -> Path:
    """The logs of a training that is resized twice and killed once: 960 samples, batches of 4.

    What the ranks get is what a plan says, so that nothing is lost, unless `drop` samples are left
    out of the first batch.
    """
    plan = SamplePlan(order=Shuffled(num_samples=960, seed=3), tail="drop")
    sources = dict(zip(names, (640, 320), strict=True))
    info = {"sources": sources, "weights": sources, "tail": "drop", "batch_size": 4}
    segment, before = plan.segment(world_size=2, batch_size=4), 0
    # Batches that each run does, and those before its last checkpoint: 5 of the second are lost.
    for number, ranks, done, saved in [(1, 2, 40, 40), (2, 3, 25, 20), (3, 1, 100, 100)]:
        if number > 1:
            segment = plan.resume(segment.cursor(before), world_size=ranks, batch_size=4)
        first = step = {1: 0, 2: 40, 3: 60}[number]
        for rank in range(ranks):
            path = folder / f"run {number}" / f"rank{rank}.log"
            run = f"run {number}"
            with ConsumptionLog(path, rank=rank, world_size=ranks, run=run, info=info) as log:
                log.event("start" if number == 1 else "resume", step=first)
                for step, batch in enumerate(segment.block(rank, 0, done), first):
                    left_out = drop if (number, rank, step) == (1, 0, 0) else 0
                    wait = 0.2 if step == first else 0.001 * (rank + 1)
                    if number > 1:
                        # The first run is of a release that did not know the parts.
                        wait = Wait(wait, reading=0.6 * wait, copying=0.03 * wait * (step % 10))
                    ids = batch.indices[left_out:]
                    log.record(epoch=0, step=step, batch=batch.number, ids=ids, wait=wait)
                    if step % 10 == 9:
                        log.event("checkpoint", step=step + 1, loss=1 / (step + 1))
                if number == 3:
                    log.event("epoch_end", epoch=0, step=step)
                if number != 2:
                    log.event("stop", step=step + 1, reason="a signal" if number == 1 else None)
        before = saved
    return folder


def write_padded_logs(folder: Path) -> Path:
    """The logs of two epochs on two ranks, whose last batch is half padding."""
    for rank in range(2):
        info = {"num_samples": 30, "batch_size": 8}
        with ConsumptionLog(
            folder / f"rank{rank}.log", rank=rank, world_size=2, run="one", info=info
        ) as log:
            log.event("start")
            for epoch in range(2):
                ids = np.arange(rank, 32, 2)
                for batch in range(2):
                    own = ids[8 * batch : 8 * batch + 8]
                    log.record(
                        epoch=epoch,
                        step=2 * epoch + batch,
                        batch=batch,
                        ids=own % 30,
                        is_real=own < 30,
                        wait=0.01,
                    )
                log.event("epoch_end", epoch=epoch, step=2 * epoch + 1)
            log.event("stop", step=4)
    return folder


def write_log(
    path: Path,
    batches: Iterable[tuple[int, int, Sequence[int]]],
    *,
    events: Iterable[tuple[str, dict[str, Any]]] = (),
    waits: Sequence[float] = (0.0,),
    run: str = "one",
    **info: Any,
) -> Path:
    """The log of a run on one rank: its events, then batches of an epoch, a step and samples."""
    with ConsumptionLog(path, rank=0, world_size=1, run=run, info=info) as log:
        for name, fields in events:
            log.event(name, **fields)
        for number, (epoch, step, ids) in enumerate(batches):
            wait = waits[number % len(waits)]
            log.record(epoch=epoch, step=step, batch=number, ids=ids, wait=wait)
    return path


def write_logs_with_long_names(folder: Path) -> Path:
    """The logs of runs that have no names but long folders, and of a source with a long name."""
    for number in range(4):
        write_log(
            folder / ("a-folder-with-a-long-name-" * 3) / f"run{number}" / "rank0.log",
            [(0, 10 * number + step, [10 * number + step]) for step in range(12)],
            events=[("resume", {"step": 10 * number, "time": number, "reason": "x" * 300})],
            run="",
            sources={"a-source-of-many-letters-" * 5: 30, "b": 20},
        )
    return folder


def of_figures(**rates: Any) -> Report:
    """Return the report of figures that a machine might have."""
    found = figures_of(**rates)
    return report_bench(found, advise(found), title="packed")


#: How to make a report of each kind, in a folder that may be written to.
REPORTS: dict[str, Callable[[Path], Report]] = {
    "mixture": lambda _: of_config(MIXTURE),
    "mixture, resized": lambda _: of_config(MIXTURE, resize=[4, 3, 7]),
    "buckets": lambda _: of_config(BUCKETS),
    "windows": lambda _: of_config(WINDOWS),
    "windows, resized": lambda _: of_config(WINDOWS, resize=[4, 9]),
    "huge, resized": lambda _: of_config(HUGE, resize=[16384, 512, 7]),
    "tiny": lambda _: of_config(TINY),
    "logs": lambda folder: report_logs([write_logs(folder)]),
    "logs with a loss": lambda folder: report_logs([write_logs(folder, drop=1)]),
    "logs of two epochs": lambda folder: report_logs([write_padded_logs(folder)]),
    "logs with long names": lambda folder: report_logs([write_logs_with_long_names(folder)]),
    "buckets with long names": lambda _: of_config(LONG_BUCKETS),
    "data on a device": lambda _: of_figures(gathers={1: 3, 2: 6, 4: 10, 8: 17}, link=50),
}
