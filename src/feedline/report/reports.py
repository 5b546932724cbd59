"""The reports: of a plan, of a plan with resizes, and of the logs of runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from feedline.errors import InvalidValueError
from feedline.report.charts import Fact, Panel, Report, Verdict
from feedline.report.coverage_panel import (
    Target,
    coverage_panel,
    mixture_panel,
    target_of_mixture,
    target_of_weights,
)
from feedline.report.fetch_panel import fetch_panel
from feedline.report.log_trace import counted_rows, trace_of_runs
from feedline.report.plan_trace import trace_of_config
from feedline.report.quality_panel import quality_panel, streams_of_trace
from feedline.report.run_panels import audit_panel, parts_panel, runs_panel
from feedline.report.step_panels import batch_panel, map_panel, tail_panel
from feedline.report.wait_panel import wait_panel
from feedline.runs.audit import audit_config, audit_logs, data_of, find_logs
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import Run, runs_of
from feedline.runs.dry_run import DryRun, check_sizes, dry_run_of, stretches_of
from feedline.runs.plan_report import PlanReport, report_plan
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo
from feedline.runs.shuffle_quality import streams_of
from feedline.runs.words import in_turn, num_ranks, seconds_of, shortened
from feedline.words import several

_MOST_WEIGHT = 1e100


def report_config(
    config: RunConfig,
    *,
    epoch: int = 0,
    resize: Sequence[int] | None = None,
    title: str = "A run, before it runs",
) -> Report:
    """Return the report of one epoch of a plan; no data is read.

    Args:
        config: The run.
        epoch: Its epoch.
        resize: Numbers of ranks on which the epoch is consumed in turn.
        title: The headline.

    Examples:
        >>> config = RunConfig.from_dict({"batch_size": 8, "data": {"samples": 1000}})
        >>> report = report_config(config, resize=[4, 3, 5])
        >>> report.origin, report.verdict.text
        ('simulation', 'No sample is lost or repeated over 2 resizes.')
    """
    counts = report_plan(config, epoch)
    parts = None if resize is None else stretches_of(config, check_sizes(resize), epoch)
    run = None if parts is None else dry_run_of(config, parts)
    trace = trace_of_config(config, epoch, parts)
    target = None if config.mixture is None else target_of_mixture(config.mixture)
    draws = [line.num_draws for line in counts.sources]
    throughout = "" if run is None else f"Without resizes, on {num_ranks(counts.ranks)}."
    last = counts if run is None else run.coverage
    panels = [
        map_panel(trace, [line.name for line in counts.buckets], config.chunks),
        None if run is None else parts_panel(run, trace),
        coverage_panel(trace, counts.naive if run is None else run.naive),
        None if target is None else mixture_panel(trace, target, draws),
        batch_panel(trace, counts.buckets, throughout),
        quality_panel(list(streams_of(config, epoch)), has_windows=config.chunks is not None),
        tail_panel(trace, counts.tail, last.num_dropped, last.num_padded),
    ]
    return Report(
        title=title,
        origin="plan" if run is None else "simulation",
        subtitle=f"Computed from the plan {counts.fingerprint[:12]}: no data was read.",
        verdict=_verdict_of_plan(counts, run),
        facts=_facts_of_plan(counts, run, is_budget=config.token_budget is not None),
        panels=[panel for panel in panels if panel is not None],
    )


def _verdict_of_plan(counts: PlanReport, run: DryRun | None) -> Verdict:
    if run is None:
        batches = several(counts.num_batches, "batch", "batches")
        return Verdict(True, f"{batches} on each of {num_ranks(counts.ranks)}.")
    found = run.coverage
    num_resizes = len(run.parts) - 1
    if found.num_missing or found.num_repeated:
        text = f"{several(found.num_missing, 'sample')} missing, {found.num_repeated:,} repeated."
        return Verdict(False, text)
    resizes = several(num_resizes, "resize")
    return Verdict(True, f"No sample is lost or repeated over {resizes}.")


def _facts_of_plan(counts: PlanReport, run: DryRun | None, *, is_budget: bool) -> list[Fact]:
    ranks: object = counts.ranks
    if run is not None:
        ranks = in_turn([part.ranks for part in run.parts])
    facts = [
        Fact("samples", counts.num_samples),
        Fact("ranks", ranks),
        Fact("tokens per batch" if is_budget else "batch size", counts.batch_size),
        Fact("tail", counts.tail),
    ]
    if run is None:
        facts += [
            Fact("batches per rank", counts.num_batches),
            Fact("steps in the epoch", counts.num_steps),
            Fact("epochs", counts.epochs, note=several(counts.num_steps_of_run, "step")),
        ]
    if counts.num_chunks is not None:
        note = f"{counts.preload} in a window" if counts.preload else ""
        facts.append(Fact("chunks", counts.num_chunks, note=note))
    return facts


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
        config: The run's config. It is required if samples may come more than once in an epoch.
        num_samples: The number of samples, if the logs do not contain it and there is no config.
        title: The headline.
        progress: Called with the number of batches read, and their total.
    """
    if config is not None and num_samples is not None:
        raise InvalidValueError(
            f"num_samples={num_samples} cannot be used with a config, which contains it; omit it"
        )
    logs = find_logs(paths)
    if config is None:
        result = audit_logs(logs, num_samples=num_samples)
    else:
        result = audit_config(logs, config)
    # Afterwards, because a run that has not ended adds to its logs: what was audited is among this.
    everything = runs_of(logs)
    sources = _sources_of(everything, config, num_samples)
    runs = [run for run in everything if any(part.rows for part in run.ranks.values())]
    total = sum(len(part.table) for run in runs for part in run.ranks.values())
    done = 0

    def count(num_batches: int) -> None:
        nonlocal done
        done += num_batches
        progress(done, total)

    num_positions = max(epoch.num_expected for epoch in result.epochs)
    trace = trace_of_runs(runs, sources, num_positions, count)
    first, last = result.epochs[0], result.epochs[-1]
    beginner = next(run for run in runs if run.num_batches(first.epoch))
    streams = list(streams_of_trace(trace, first.epoch, beginner.batch_size))
    tail = "" if config is None else config.plan.tail
    panels: list[Panel | None] = [
        runs_panel(runs, trace),
        audit_panel(result),
        map_panel(trace),
        coverage_panel(trace),
        mixture_panel(trace, _target_of_logs(config, runs)),
        batch_panel(trace),
        wait_panel(runs),
        fetch_panel(runs),
        quality_panel(streams),
        tail_panel(trace, tail, last.num_dropped, last.num_padded),
    ]
    return Report(
        title=title,
        origin="log",
        subtitle=f"From {several(len(logs), 'log')} of {several(len(runs), 'run')}.",
        verdict=_verdict_of_audit(result, is_planned=config is not None),
        facts=_facts_of_logs(result, runs),
        panels=[panel for panel in panels if panel is not None],
    )


def _sources_of(
    runs: list[Run], config: RunConfig | None, num_samples: int | None
) -> list[SourceInfo]:
    """Return the sources of a mixture in the config, or else those in the logs."""
    if config is not None and config.mixture is not None:
        return [source._replace(name=shortened(source.name)) for source in config.sources]
    known = num_samples if config is None else config.plan.num_indices
    sources = data_of(runs, known)
    return [source._replace(name=shortened(source.name) or "data") for source in sources]


def _verdict_of_audit(result: AuditResult, *, is_planned: bool) -> Verdict:
    names = ("num_once", "num_lost", "num_repeated", "num_unknown")
    once, *counts = (sum(getattr(epoch, name) for epoch in result.epochs) for name in names)
    if result.ok:
        each = "as often as planned" if is_planned else "exactly once"
        skipped = sum(epoch.num_skipped for epoch in result.epochs)
        beside = f" {several(skipped, 'sample')} failed and were skipped." if skipped else ""
        told = sum(epoch.num_in_skipped_batches for epoch in result.epochs)
        beside += f" The run was told to skip {several(told, 'sample')}." if told else ""
        came = f"{several(once, 'sample')} came {each} in {_epochs(result)}."
        return Verdict(True, came + beside)
    kinds = ("lost", "too often", "that are not in the data")
    faults = [f"{count:,} {what}" for count, what in zip(counts, kinds, strict=True) if count]
    parted = [run.parted_step for run in result.runs if run.parted_step is not None]
    if parted:
        faults.append(f"ranks diverged at step {min(parted):,}")
    if any(run.missing_ranks for run in result.runs):
        faults.append("logs of some ranks are missing")
    return Verdict(False, f"The audit fails: {', '.join(faults)}.")


def _epochs(result: AuditResult) -> str:
    count = len(result.epochs)
    if count == 1:
        return "an epoch" if result.is_finished else "an epoch that has not ended"
    whole = f"{several(count, 'epoch')}"
    return whole if result.is_finished else f"{whole}, the last of which has not ended"


def _facts_of_logs(result: AuditResult, runs: list[Run]) -> list[Fact]:
    everything = np.concatenate([part.table for run in runs for part in run.ranks.values()])
    counted = counted_rows(runs)
    num_counted, num_received = (int(rows["num_real"].sum()) for rows in (counted, everything))
    wait = seconds_of(float(counted["wait"][np.isfinite(counted["wait"])].sum()))
    padded = sum(epoch.num_padded for epoch in result.epochs)
    padding = f"and {padded:,} of padding" if padded else ""
    return [
        Fact("runs", len(runs)),
        Fact("ranks", in_turn([run.world_size for run in runs])),
        Fact("epochs", len(result.epochs)),
        Fact("samples that count", num_counted, note=padding),
        Fact("discarded", num_received - num_counted, note="repeated by the next run"),
        Fact("spent waiting for data", wait, note="all ranks together"),
    ]


def _target_of_logs(config: RunConfig | None, runs: list[Run]) -> Target | None:
    if config is not None:
        return None if config.mixture is None else target_of_mixture(config.mixture)
    weights, sources = runs[0].info.get("weights"), runs[0].info.get("sources")
    if not isinstance(weights, dict) or not isinstance(sources, dict):
        return None
    given = [weights.get(name) for name in sources]
    known = [w for w in given if isinstance(w, int | float) and 0 <= w <= _MOST_WEIGHT]
    if len(known) < len(given) or not sum(known):
        return None
    return target_of_weights(known)
