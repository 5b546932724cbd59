"""What an audit found, as tables for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit, SourceAudit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["describe", "make_console", "print_result"]


def make_console(*, is_quiet: bool = False) -> Console:
    """Return where to print; rich is imported only when something is to be printed."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "tables need rich, which is not installed; install feedline[cli]", name="rich"
        ) from None
    return Console(quiet=is_quiet, highlight=False)


def describe(result: AuditResult) -> dict[str, Any]:
    """Return the result as plain values."""
    return {
        "ok": result.ok,
        "is_finished": result.is_finished,
        "num_logs": result.num_logs,
        "runs": [{**dataclasses.asdict(run), "ok": run.ok} for run in result.runs],
        "epochs": [{**dataclasses.asdict(epoch), "ok": epoch.ok} for epoch in result.epochs],
    }


def print_result(console: Console, result: AuditResult) -> None:
    """Print the runs, the epochs, what is wrong with each, and the verdict."""
    console.print(_runs_table(result.runs))
    console.print(_epochs_table(result.epochs))
    for run in result.runs:
        for fault in _faults_of_run(run):
            console.print(f"run {run.name}: {fault}", markup=False)
    for epoch in result.epochs:
        for fault in _faults_of_epoch(epoch):
            console.print(f"epoch {epoch.epoch}: {fault}", markup=False)
    total = sum(epoch.num_once for epoch in result.epochs)
    if result.ok:
        console.print(f"[bold green]audit: {total:,} samples, each exactly once[/]")
    else:
        console.print("[bold red]audit: failed[/]")


def _runs_table(runs: tuple[RunAudit, ...]) -> Table:
    table = _table("run", "ranks", "steps", "samples", "discarded", "ranks agree")
    for run in runs:
        steps = "none" if run.end_step is None else f"{run.first_step} to {run.end_step - 1}"
        discarded = ""
        if run.num_discarded_batches:
            discarded = f"{run.num_discarded_samples:,} in {run.num_discarded_batches:,} batches"
        table.add_row(
            _escaped(run.name),
            f"{run.world_size:,}",
            steps,
            f"{run.num_samples:,}",
            discarded,
            "yes" if run.ok else "[red]no[/]",
        )
    return table


def _epochs_table(epochs: tuple[EpochAudit, ...]) -> Table:
    table = _table("epoch", "source", "expected", "once", "missing", "repeated", "verdict")
    for epoch in epochs:
        if len(epoch.sources) > 1:
            for source in epoch.sources:
                table.add_row(
                    str(epoch.epoch),
                    _escaped(source.name),
                    f"{source.num_expected:,}",
                    f"{source.num_once:,}",
                    f"{source.num_missing:,}",
                    f"{source.num_repeated:,}",
                )
        table.add_row(
            str(epoch.epoch),
            "all",
            f"{epoch.num_expected:,}",
            f"{epoch.num_once:,}",
            f"{epoch.num_lost + epoch.num_dropped + epoch.num_to_come:,}",
            f"{epoch.num_repeated:,}",
            _verdict(epoch),
            end_section=True,
        )
    return table


def _verdict(epoch: EpochAudit) -> str:
    if not epoch.ok:
        return "[red]failed[/]"
    if not epoch.is_finished:
        return f"so far; {epoch.num_to_come:,} to come"
    beside = [(epoch.num_dropped, "dropped"), (epoch.num_padded, "padded")]
    listed = "".join(f", {count:,} {what}" for count, what in beside if count)
    return f"[green]exactly once{listed}[/]"


def _faults_of_run(run: RunAudit) -> list[str]:
    faults = []
    if run.missing_ranks:
        ranks = ", ".join(map(str, run.missing_ranks))
        faults.append(f"the logs of ranks {ranks} of {run.world_size} are not there")
    if run.parted_step is not None:
        counts = ", ".join(f"{count:,}" for count in run.num_batches)
        faults.append(f"ranks parted at step {run.parted_step}; they had {counts} batches")
    return faults


def _faults_of_epoch(epoch: EpochAudit) -> list[str]:
    listed = [
        ("lost", epoch.num_lost, epoch.lost),
        ("received too often", epoch.num_repeated, epoch.repeated),
        ("outside of the data", epoch.num_unknown, epoch.unknown),
    ]
    faults = []
    for what, count, first in listed:
        if count:
            more = ", …" if count > len(first) else ""
            plural = "sample" if count == 1 else "samples"
            named = ", ".join(_named(index, epoch.sources) for index in first)
            faults.append(f"{count:,} {plural} {what}: {named}{more}")
    return faults


def _named(index: int, sources: tuple[SourceAudit, ...]) -> str:
    """Return an index, with its source and its number there if there are several."""
    before = [source for source in sources if source.first <= index]
    if len(sources) == 1 or not before:
        return str(index)
    return f"{index} ({before[-1].name} {index - before[-1].first})"


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

    return escape(text)
