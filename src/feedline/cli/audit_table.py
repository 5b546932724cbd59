"""What an audit found, as tables for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedline.cli.printing import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit

_MOST_RANKS = 16


@dataclass(frozen=True)
class Planned:
    """The plan that logs are compared with: its config, and the first index of each source.

    `begins_alike` is False if no rank received first what the plan has first.
    """

    config: str
    sources: tuple[tuple[str, int], ...]
    begins_alike: bool | None


def describe(result: AuditResult, planned: Planned | None = None) -> dict[str, Any]:
    """Return the result as plain values."""
    plan = {} if planned is None else {"begins_as_planned": planned.begins_alike}
    return {
        **plan,
        "ok": result.ok,
        "is_finished": result.is_finished,
        "num_logs": result.num_logs,
        "runs": [{**dataclasses.asdict(run), "ok": run.ok} for run in result.runs],
        "epochs": [_describe_epoch(epoch, planned) for epoch in result.epochs],
    }


def print_result(console: Console, result: AuditResult, planned: Planned | None = None) -> None:
    """Print the runs, the epochs, what is wrong with each, and the verdict."""
    how = "exactly once" if planned is None else "as often as planned"
    console.print(_runs_table(result.runs))
    console.print(_epochs_table(result.epochs, how))
    for run in result.runs:
        for fault in _faults_of_run(run):
            console.print(f"run {one_line(run.name)}: {fault}", markup=False, soft_wrap=True)
    for epoch in result.epochs:
        for fault in _faults_of_epoch(epoch, planned):
            console.print(f"epoch {epoch.epoch}: {fault}", markup=False, soft_wrap=True)
    total = sum(epoch.num_once for epoch in result.epochs)
    if result.ok:
        console.print(f"[bold green]audit: {total:,} samples, each {how}[/]")
    else:
        if planned is not None and planned.begins_alike is False:
            hint = "no rank began as its plan does; is it the config of this training?"
            console.print(f"{one_line(planned.config)}: {hint}", markup=False, soft_wrap=True)
        console.print("[bold red]audit: failed[/]")


def _describe_epoch(epoch: EpochAudit, planned: Planned | None) -> dict[str, Any]:
    described = {**dataclasses.asdict(epoch), "ok": epoch.ok}
    for what in ("lost", "repeated"):
        described[f"{what}_places"] = [
            {"index": index, **_place_of(index, epoch, planned)} for index in described[what]
        ]
    return described


def _runs_table(runs: tuple[RunAudit, ...]) -> Table:
    table = _table("run", "ranks", "steps", "samples", "discarded", "ranks agree")
    for run in runs:
        steps = "none" if run.end_step is None else f"{run.first_step} to {run.end_step - 1}"
        discarded = ""
        if run.num_discarded_batches:
            discarded = f"{run.num_discarded_samples:,} in {run.num_discarded_batches:,} batches"
        agree = "yes" if run.ok else "[red]no[/]"
        counts = (f"{run.world_size:,}", steps, f"{run.num_samples:,}")
        table.add_row(_escaped(run.name), *counts, discarded, agree)
    return table


def _epochs_table(epochs: tuple[EpochAudit, ...], how: str) -> Table:
    table = _table("epoch", "source", "expected", "once", "missing", "repeated", "verdict")
    for epoch in epochs:
        for s in epoch.sources if len(epoch.sources) > 1 else ():
            counts = (s.num_expected, s.num_once, s.num_missing, s.num_repeated)
            table.add_row(str(epoch.epoch), _escaped(s.name), *(f"{n:,}" for n in counts))
        missing = epoch.num_lost + epoch.num_dropped + epoch.num_to_come
        counts = (epoch.num_expected, epoch.num_once, missing, epoch.num_repeated)
        table.add_row(str(epoch.epoch), "all", *(f"{n:,}" for n in counts), _verdict(epoch, how))
        table.add_section()
    return table


def _verdict(epoch: EpochAudit, how: str) -> str:
    if not epoch.ok:
        return "[red]failed[/]"
    if not epoch.is_finished:
        return f"so far; {epoch.num_to_come:,} to come"
    beside = [(epoch.num_dropped, "dropped"), (epoch.num_padded, "padded")]
    listed = "".join(f", {count:,} {what}" for count, what in beside if count)
    return f"[green]{how}{listed}[/]"


def _faults_of_run(run: RunAudit) -> list[str]:
    faults = []
    if run.missing_ranks:
        ranks = ", ".join(map(str, run.missing_ranks[:_MOST_RANKS]))
        more = ", …" if len(run.missing_ranks) > _MOST_RANKS else ""
        faults.append(f"the logs of ranks {ranks}{more} of {run.world_size} are missing")
    if run.parted_step is not None:
        counts = ", ".join(f"{count:,}" for count in run.num_batches)
        if len(run.num_batches) > _MOST_RANKS:
            counts = f"{min(run.num_batches):,} to {max(run.num_batches):,}"
        faults.append(f"ranks diverged at step {run.parted_step}; they had {counts} batches")
    return faults


def _faults_of_epoch(epoch: EpochAudit, planned: Planned | None) -> list[str]:
    from feedline.runs.words import several

    faults = []
    kinds = {"lost": "lost", "repeated": "received too often", "unknown": "outside of the data"}
    for kind, what in kinds.items():
        count, first = getattr(epoch, f"num_{kind}"), getattr(epoch, kind)
        if count:
            is_known = kind != "unknown"
            listed = [_named(i, epoch, planned) if is_known else str(i) for i in first]
            more = ", …" if count > len(first) else ""
            faults.append(f"{several(count, 'sample')} {what}: {', '.join(listed)}{more}")
    return faults


def _named(index: int, epoch: EpochAudit, planned: Planned | None) -> str:
    """Return an index, with its source and its number there if there are several."""
    if len(epoch.sources if planned is None else planned.sources) == 1:
        return str(index)
    place = _place_of(index, epoch, planned)
    return f"{index} ({one_line(place['source'])} {place['source_index']})"


def _place_of(index: int, epoch: EpochAudit, planned: Planned | None) -> dict[str, Any]:
    """Return the source of an index of the data, and its number there."""
    listed: Sequence[tuple[str, int]]
    listed = [(s.name, s.first) for s in epoch.sources] if planned is None else planned.sources
    name, first = [(name, first) for name, first in listed if first <= index][-1]
    return {"source": name, "source_index": index - first}


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        is_text = name in ("run", "source", "verdict", "steps", "discarded", "ranks agree")
        table.add_column(name, justify="left" if is_text else "right")
    return table


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(one_line(text))
