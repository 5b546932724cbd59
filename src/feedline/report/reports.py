"""Reports of a plan, of a plan that is resized on the way, and of what a run really did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.plan import BucketPlan
from feedline.report.batch_panels import batch_panel, tail_panel
from feedline.report.charts import Fact, Panel, Report, Verdict
from feedline.report.coverage_panel import coverage_panel
from feedline.report.log_trace import trace_of_runs
from feedline.report.map_panel import map_panel
from feedline.report.mixture_panel import (
    Target,
    mixture_panel,
    target_of_mixture,
    target_of_weights,
)
from feedline.report.plan_trace import trace_of_config
from feedline.report.quality_panel import quality_panel, streams_of_trace
from feedline.report.run_panels import audit_panel, parts_panel, runs_panel, wait_panel
from feedline.report.trace import num_ranks
from feedline.runs.audit import audit_logs, find_logs
from feedline.runs.audit_counts import batch_size_of, data_of
from feedline.runs.audit_result import AuditResult
from feedline.runs.audit_runs import Run, runs_of
from feedline.runs.dry_run import DryRun, dry_run
from feedline.runs.plan_report import PlanReport, report_plan
from feedline.runs.run_config import RunConfig
from feedline.runs.shuffle_streams import streams_of

__all__ = ["report_config", "report_logs"]


def report_config(
    config: RunConfig,
    *,
    epoch: int = 0,
    resize: Sequence[int] | None = None,
    title: str = "A run, before it runs",
) -> Report:
    """Return the report of one epoch of a plan; nothing is read, and its size does not matter.

    Args:
        config: The run.
        epoch: Its epoch.
        resize: Numbers of ranks that the epoch is consumed on in turn, as after resumes.
        title: The headline.

    Examples:
        >>> config = RunConfig.from_dict({"batch_size": 8, "data": {"samples": 1000}})
        >>> report = report_config(config, resize=[4, 3, 5])
        >>> report.origin, report.verdict.text
        ('simulation', 'Nothing is lost and nothing is repeated over 2 resizes.')
    """
    counts = report_plan(config, epoch)
    run = None if resize is None else dry_run(config, resize, epoch)
    trace = trace_of_config(config, epoch, resize)
    plan = config.plan
    names = [str(bucket.key) for bucket in plan.buckets] if isinstance(plan, BucketPlan) else []
    target = None if config.mixture is None else target_of_mixture(config.mixture)
    quality, _ = quality_panel(list(streams_of(config, epoch)))
    dropped = counts.num_dropped if run is None else run.coverage.num_dropped
    padded = counts.num_padded if run is None else run.coverage.num_padded
    panels = [
        map_panel(trace, names, config.chunks),
        None if run is None else parts_panel(run, trace),
        coverage_panel(trace, counts.naive if run is None else run.naive),
        None if target is None else mixture_panel(trace, target),
        batch_panel(trace, counts.buckets),
        quality,
        tail_panel(trace, config.tail, dropped, padded),
    ]
    return Report(
        title=title,
        origin="plan" if run is None else "simulation",
        subtitle=f"Computed from the plan {counts.fingerprint[:12]}: no data was read.",
        verdict=_verdict_of_plan(counts, run),
        facts=_facts_of_plan(counts, run),
        panels=[panel for panel in panels if panel is not None],
    )


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
        num_samples: The number of samples, if neither the logs nor a config say it.
        title: The headline.
        progress: Is told how many batches have been read, and of how many.
    """
    plan = None if config is None else config.plan
    result = audit_logs(paths, num_samples=num_samples, plan=plan)
    if plan is not None and num_samples is None:
        num_samples = plan.num_indices
    everything = runs_of(find_logs(paths))
    data = data_of(everything, num_samples)
    runs = [run for run in everything if any(part.numbers for part in run.ranks.values())]
    total = sum(len(part.table) for run in runs for part in run.ranks.values())
    done = 0

    def count(num_batches: int) -> None:
        nonlocal done
        done += num_batches
        progress(done, total)

    num_positions = max(epoch.num_expected for epoch in result.epochs)
    trace, waits = trace_of_runs(runs, data, num_positions, count)
    first = result.epochs[0].epoch
    streams = list(streams_of_trace(trace, first, batch_size_of(runs[-1])))
    quality, _ = quality_panel(streams)
    last = result.epochs[-1]
    tail = None if config is None else config.tail
    panels: list[Panel | None] = [
        runs_panel(runs, trace),
        audit_panel(result),
        map_panel(trace),
        coverage_panel(trace),
        mixture_panel(trace, _target_of_logs(config, runs)),
        batch_panel(trace),
        wait_panel(waits),
        quality,
        tail_panel(trace, tail, last.num_dropped, last.num_padded),
    ]
    return Report(
        title=title,
        origin="log",
        subtitle=f"From {result.num_logs} logs of {len(runs)} runs.",
        verdict=_verdict_of_audit(result, is_planned=config is not None),
        facts=_facts_of_logs(result, runs, float(waits.total.sum())),
        panels=[panel for panel in panels if panel is not None],
    )


def _verdict_of_plan(counts: PlanReport, run: DryRun | None) -> Verdict:
    if run is None:
        batches = "1 batch" if counts.num_batches == 1 else f"{counts.num_batches:,} batches"
        return Verdict(is_good=True, text=f"{batches} on each of {num_ranks(counts.ranks)}.")
    found = run.coverage
    num_resizes = len(run.parts) - 1
    if found.num_missing or found.num_repeated:
        text = f"{found.num_missing:,} samples are missing and {found.num_repeated:,} repeated."
        return Verdict(is_good=False, text=text)
    resizes = f"{num_resizes:,} resize" + ("s" if num_resizes > 1 else "")
    return Verdict(is_good=True, text=f"Nothing is lost and nothing is repeated over {resizes}.")


def _facts_of_plan(counts: PlanReport, run: DryRun | None) -> list[Fact]:
    ranks: object = counts.ranks
    if run is not None:
        ranks = " → ".join(f"{part.ranks:,}" for part in run.parts)
    facts = [
        Fact(label="samples", value=counts.num_samples),
        Fact(label="ranks", value=ranks),
        Fact(label="batch size", value=counts.batch_size),
        Fact(label="tail", value=counts.tail),
    ]
    if run is None:
        facts += [
            Fact(label="batches of a rank", value=counts.num_batches),
            Fact(label="steps of the epoch", value=counts.num_steps),
            Fact(label="epochs", value=counts.epochs, note=f"{counts.num_steps_of_run:,} steps"),
        ]
    if counts.num_chunks is not None:
        note = f"{counts.preload} in a window" if counts.preload else ""
        facts.append(Fact(label="chunks", value=counts.num_chunks, note=note))
    return facts


def _verdict_of_audit(result: AuditResult, *, is_planned: bool) -> Verdict:
    lost = sum(epoch.num_lost for epoch in result.epochs)
    repeated = sum(epoch.num_repeated for epoch in result.epochs)
    once = sum(epoch.num_once for epoch in result.epochs)
    parted = [run.parted_step for run in result.runs if run.parted_step is not None]
    if result.ok:
        each = "as often as planned" if is_planned else "exactly once"
        return Verdict(is_good=True, text=f"{once:,} samples came {each} in {_epochs(result)}.")
    faults = []
    if lost:
        faults.append(f"{lost:,} lost")
    if repeated:
        faults.append(f"{repeated:,} too often")
    if unknown := sum(epoch.num_unknown for epoch in result.epochs):
        faults.append(f"{unknown:,} that are not in the data")
    if parted:
        faults.append(f"ranks parted at step {min(parted):,}")
    if any(run.missing_ranks for run in result.runs):
        faults.append("logs of some ranks are missing")
    return Verdict(is_good=False, text=f"The audit fails: {', '.join(faults)}.")


def _epochs(result: AuditResult) -> str:
    count = len(result.epochs)
    whole = "an epoch" if count == 1 else f"{count:,} epochs"
    return whole if result.is_finished else f"{whole}, the last of which has not ended"


def _facts_of_logs(result: AuditResult, runs: list[Run], wait: float) -> list[Fact]:
    discarded = sum(run.num_discarded_samples for run in result.runs)
    sizes = " → ".join(str(run.world_size) for run in runs)
    return [
        Fact(label="runs", value=len(runs)),
        Fact(label="ranks", value=sizes),
        Fact(label="epochs", value=len(result.epochs)),
        Fact(label="samples that count", value=sum(run.num_samples for run in result.runs)),
        Fact(label="thrown away", value=discarded, note="after the checkpoint that was loaded"),
        Fact(label="waited for data", value=f"{wait:,.3g} s", note="all ranks together"),
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
    known = [float(weight) for weight in given if isinstance(weight, int | float) and weight >= 0]
    if len(known) < len(given) or not sum(known):
        return None
    return target_of_weights(known)
