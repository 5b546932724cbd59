"""`feedline plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from feedline.cli import configs
from feedline.cli.printing import Outcome, command, echo, print_table

if TYPE_CHECKING:
    from feedline.runs.dry_run import DryRun
    from feedline.runs.naive_sharding import NaiveSharding
    from feedline.runs.plan_report import ChunkReads, PlanReport


@command
@configs.config_argument
@configs.ranks_option
@configs.batch_size_option
@configs.resize_option
@configs.epoch_option
def plan(
    config: Path, ranks: int | None, batch_size: int | None, resize: list[int] | None, epoch: int
) -> Outcome:
    """Show what a run will consume: batches, steps, tails, reads and bytes.

    CONFIG is a run config in YAML. No data is read. With --resize the epoch is consumed on several
    numbers of ranks in turn, as if the run had resumed.

    \b
    Examples:
      feedline plan run.yaml
      feedline plan run.yaml --ranks 16384 --json
      feedline plan run.yaml --resize 512,480,64
    """
    from feedline.runs.dry_run import dry_run
    from feedline.runs.plan_report import report_plan

    run = configs.load_config(config).resized(ranks=ranks, batch_size=batch_size)
    report = report_plan(run, epoch)
    resized = None if resize is None else dry_run(run, resize, epoch)
    described = {"config": config, **dataclasses.asdict(report)}
    if resized is not None:
        described["dry_run"] = resized
    return Outcome(described, lambda: _print(report, resized))


def _print(report: PlanReport, resized: DryRun | None) -> None:
    from feedline.words import bytes_in_words, several

    last = ""
    if report.num_batches_in_last_step < report.grad_acc_steps:
        last = f", the last of {report.num_batches_in_last_step:,}"
    per_step = several(report.grad_acc_steps, "batch", "batches")
    samples, ranks = several(report.num_samples, "sample"), several(report.ranks, "rank")
    echo(f"{report.kind}: {samples} on {ranks}, batches of {report.batch_size:,}")
    echo(f"  epoch {report.epoch}: {several(report.num_positions, 'position')}")
    echo(f"  batches per rank: {report.num_batches:,}, equal on all ranks")
    echo(f"  steps: {report.num_steps:,} of {per_step}{last}")
    epochs, steps = several(report.epochs, "epoch"), several(report.num_steps_of_run, "step")
    echo(f"  run: {epochs}, {steps}")
    echo(f"  tail {report.tail}: {report.num_dropped:,} dropped, {report.num_padded:,} padded")
    if report.reads is not None:
        echo(
            f"  chunks: {report.num_chunks:,}, {report.preload:,} in a window; a rank reads "
            f"{_fewest_to_most(report.reads)}, all ranks {report.reads.total:,}"
        )
    cost = report.cost
    echo(f"  memory of the plan: {bytes_in_words(cost.plan_bytes)} of lists")
    if cost.bytes_per_sample is not None:
        window = (
            "" if cost.window_bytes is None else f"window {bytes_in_words(cost.window_bytes)}, "
        )
        echo(
            f"  data: {window}batch {bytes_in_words(cost.batch_bytes)}, step "
            f"{bytes_in_words(cost.step_bytes)}, epoch {bytes_in_words(cost.epoch_bytes)}"
        )
    if report.sources:
        header = ("source", "samples", "draws", "share", "passes")
        print_table("Mixture", header, [dataclasses.astuple(line) for line in report.sources])
    if report.buckets:
        columns = ("bucket", "samples", "batch size", "batches", "dropped", "padded")
        print_table("Buckets", columns, [dataclasses.astuple(line) for line in report.buckets])
    _print_naive(report.naive)
    if resized is not None:
        _print_resized(resized)


def _print_resized(run: DryRun) -> None:
    from feedline.words import several

    header = ("ranks", "batches", "steps", "consumed", "padded", "imbalance", "reads per rank")
    rows = [
        (
            *(part.ranks, part.num_batches, part.num_steps, part.num_consumed, part.num_padded),
            *(part.imbalance, "" if part.reads is None else _fewest_to_most(part.reads)),
        )
        for part in run.parts
    ]
    print_table("Resized during the epoch", header, rows)
    found = run.coverage
    how = "every sample counted" if found.is_counted else "by counts"
    echo(
        f"  coverage, {how}: {found.num_consumed:,} of {several(found.num_positions, 'position')}, "
        f"{found.num_repeated:,} repeated, {found.num_missing:,} missing, "
        f"{found.num_dropped:,} dropped, {found.num_padded:,} padded"
    )
    _print_naive(run.naive)


def _print_naive(naive: NaiveSharding | None) -> None:
    from feedline.words import several

    if naive is None:
        echo("  naive sharding: not modelled for batches of several sizes")
        return
    fewest = several(naive.fewest_batches, "batch", "batches")
    end = f"{fewest} on all ranks"
    if naive.hangs:
        end = (
            f"it HANGS: {fewest} on some ranks and "
            f"{naive.most_batches:,} on others; {several(naive.num_waiting_ranks, 'rank')} would "
            "wait forever"
        )
    echo(
        f"  naive sharding would have {naive.num_repeated:,} repeated and {naive.num_lost:,} "
        f"lost; {end}"
    )


def _fewest_to_most(reads: ChunkReads) -> str:
    about = "about " if reads.is_estimate else ""
    if reads.fewest == reads.most:
        return f"{about}{reads.most:,}"
    return f"{about}{reads.fewest:,} to {reads.most:,}"
