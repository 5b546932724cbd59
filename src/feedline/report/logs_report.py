"""The report of what the runs of a training really did, as their logs say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from feedline.errors import InvalidValueError
from feedline.report.batch_panels import batch_panel, tail_panel
from feedline.report.charts import Fact, Panel, Report, Verdict
from feedline.report.coverage_panel import coverage_panel
from feedline.report.log_panels import audit_panel, wait_panel
from feedline.report.log_trace import Received, trace_of_runs
from feedline.report.map_panel import map_panel
from feedline.report.mixture_panel import (
    Target,
    mixture_panel,
    target_of_mixture,
    target_of_weights,
)
from feedline.report.quality_panel import quality_panel, streams_of_trace
from feedline.report.runs_panel import runs_panel
from feedline.runs.audit import audit_config, audit_logs, find_logs
from feedline.runs.audit_counts import batch_size_of, data_of
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import Run, runs_of
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo
from feedline.runs.words import in_turn, seconds_of, several, shortened

_MOST_WEIGHT = 1e100


def report_logs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    config: RunConfig | None = None,
    num_samples: int | None = None,
    title: str = "A run, as it happened",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Report:
    """Return the report of what all ranks of all runs of a training received.

    Args:
        paths: The logs, or folders of logs.
        config: The run's config, which says what was planned. It is needed where samples may come
            more than once in an epoch.
        num_samples: The number of samples, if the logs do not say it and there is no config.
        title: The headline.
        progress: Is told how many batches have been read, and of how many.
    """
    if config is not None and num_samples is not None:
        raise InvalidValueError(
            f"num_samples={num_samples} must be left out beside a config, which says it"
        )
    logs = find_logs(paths)
    if config is None:
        result = audit_logs(logs, num_samples=num_samples)
    else:
        result = audit_config(logs, config)
    # Afterwards, because a run that has not ended adds to its logs: what was audited is among this.
    everything = runs_of(logs)
    sources = _sources_of(everything, config, num_samples)
    runs = [run for run in everything if any(part.numbers for part in run.ranks.values())]
    total = sum(len(part.table) for run in runs for part in run.ranks.values())
    done = 0

    def count(num_batches: int) -> None:
        nonlocal done
        done += num_batches
        progress(done, total)

    num_positions = max(epoch.num_expected for epoch in result.epochs)
    received = trace_of_runs(runs, sources, num_positions, count)
    trace = received.trace
    first, last = result.epochs[0], result.epochs[-1]
    beginner = next(run for run in runs if run.num_batches(first.epoch))
    streams = list(streams_of_trace(trace, first.epoch, batch_size_of(beginner)))
    tail = "" if config is None else config.plan.tail
    panels: list[Panel | None] = [
        runs_panel(runs, trace),
        audit_panel(result),
        map_panel(trace),
        coverage_panel(trace),
        mixture_panel(trace, _target_of_logs(config, runs)),
        batch_panel(trace),
        wait_panel(received.waits),
        quality_panel(streams),
        tail_panel(trace, tail, last.num_dropped, last.num_padded),
    ]
    return Report(
        title=title,
        origin="log",
        subtitle=f"From {several(len(logs), 'log')} of {several(len(runs), 'run')}.",
        verdict=_verdict_of_audit(result, is_planned=config is not None),
        facts=_facts_of_logs(result, runs, received),
        panels=[panel for panel in panels if panel is not None],
    )


def _sources_of(
    runs: list[Run], config: RunConfig | None, num_samples: int | None
) -> list[SourceInfo]:
    """Return the sources as a mixture in the config has them, or else as the logs say."""
    if config is not None and config.mixture is not None:
        return [source._replace(name=shortened(source.name)) for source in config.sources]
    known = num_samples if config is None else config.plan.num_indices
    sources = data_of(runs, known)
    return [source._replace(name=shortened(source.name) or "data") for source in sources]


def _verdict_of_audit(result: AuditResult, *, is_planned: bool) -> Verdict:
    lost = sum(epoch.num_lost for epoch in result.epochs)
    repeated = sum(epoch.num_repeated for epoch in result.epochs)
    once = sum(epoch.num_once for epoch in result.epochs)
    parted = [run.parted_step for run in result.runs if run.parted_step is not None]
    if result.ok:
        each = "as often as planned" if is_planned else "exactly once"
        text = f"{several(once, 'sample')} came {each} in {_epochs(result)}."
        return Verdict(True, text)
    unknown = sum(epoch.num_unknown for epoch in result.epochs)
    counts = ((lost, "lost"), (repeated, "too often"), (unknown, "that are not in the data"))
    faults = [f"{count:,} {what}" for count, what in counts if count]
    if parted:
        faults.append(f"ranks diverged at step {min(parted):,}")
    if any(run.missing_ranks for run in result.runs):
        faults.append("logs of some ranks are missing")
    return Verdict(False, f"The audit fails: {', '.join(faults)}.")


def _epochs(result: AuditResult) -> str:
    count = len(result.epochs)
    if count == 1:
        return "an epoch" if result.is_finished else "an epoch that has not ended"
    whole = f"{count:,} epochs"
    return whole if result.is_finished else f"{whole}, the last of which has not ended"


def _facts_of_logs(result: AuditResult, runs: list[Run], received: Received) -> list[Fact]:
    wait = seconds_of(float(received.waits.total.sum()))
    padded = sum(epoch.num_padded for epoch in result.epochs)
    padding = f"and {padded:,} of padding" if padded else ""
    return [
        Fact("runs", len(runs)),
        Fact("ranks", in_turn([run.world_size for run in runs])),
        Fact("epochs", len(result.epochs)),
        Fact("samples that count", received.num_counted, note=padding),
        Fact("thrown away", received.num_discarded, note="done again by the next run"),
        Fact("waited for data", wait, note="all ranks together"),
    ]


def _target_of_logs(config: RunConfig | None, runs: list[Run]) -> Target | None:
    if config is not None:
        return None if config.mixture is None else target_of_mixture(config.mixture)
    info: Any = next(iter(runs[0].ranks.values())).header.info
    weights = info.get("weights")
    sources = info.get("sources")
    if not isinstance(weights, dict) or not isinstance(sources, dict):
        return None
    given = [weights.get(name) for name in sources]
    known = [w for w in given if isinstance(w, int | float) and 0 <= w <= _MOST_WEIGHT]
    if len(known) < len(given) or not sum(known):
        return None
    return target_of_weights(known)
