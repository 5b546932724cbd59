"""The report of a plan, or of a plan that is resized on the way."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.report.batch_panels import batch_panel, tail_panel
from feedline.report.charts import Fact, Report, Verdict
from feedline.report.coverage_panel import coverage_panel
from feedline.report.map_panel import map_panel
from feedline.report.mixture_panel import mixture_panel, target_of_mixture
from feedline.report.plan_trace import trace_of_config
from feedline.report.quality_panel import quality_panel
from feedline.report.runs_panel import parts_panel
from feedline.runs.dry_run import DryRun, dry_run
from feedline.runs.plan_report import PlanReport, report_plan
from feedline.runs.run_config import RunConfig
from feedline.runs.shuffle_quality import streams_of
from feedline.runs.words import in_turn, num_ranks, several


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
    target = None if config.mixture is None else target_of_mixture(config.mixture)
    draws = [line.num_draws for line in counts.sources]
    throughout = "" if run is None else f"As they would be on {num_ranks(counts.ranks)} throughout."
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
        text = f"{found.num_missing:,} samples are missing and {found.num_repeated:,} repeated."
        return Verdict(False, text)
    resizes = several(num_resizes, "resize")
    return Verdict(True, f"Nothing is lost and nothing is repeated over {resizes}.")


def _facts_of_plan(counts: PlanReport, run: DryRun | None, *, is_budget: bool) -> list[Fact]:
    ranks: object = counts.ranks
    if run is not None:
        ranks = in_turn([part.ranks for part in run.parts])
    facts = [
        Fact("samples", counts.num_samples),
        Fact("ranks", ranks),
        Fact("tokens of a batch" if is_budget else "batch size", counts.batch_size),
        Fact("tail", counts.tail),
    ]
    if run is None:
        facts += [
            Fact("batches of a rank", counts.num_batches),
            Fact("steps of the epoch", counts.num_steps),
            Fact("epochs", counts.epochs, note=f"{counts.num_steps_of_run:,} steps"),
        ]
    if counts.num_chunks is not None:
        note = f"{counts.preload} in a window" if counts.preload else ""
        facts.append(Fact("chunks", counts.num_chunks, note=note))
    return facts
