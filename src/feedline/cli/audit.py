"""`feedline audit`: the results of an audit, as tables or as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.configs import PATH, load_config, naming, samples_option
from feedline.cli.printing import Outcome, Styled, command, echo, one_line, print_table, secho
from feedline.errors import InvalidValueError, check_integer
from feedline.words import several

if TYPE_CHECKING:
    from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit
    from feedline.runs.run_config import RunConfig

_MOST_RANKS = 16
# Each is counted in 4 bytes.
_MOST_SAMPLES = 2**60


@command
@click.argument("logs", nargs=-1, required=True, type=PATH, metavar="LOG_OR_FOLDER...")
@samples_option
@click.option(
    "--config",
    type=PATH,
    metavar="CONFIG",
    help="A run config: expect each sample as often as its plan has it, as in a mixture.",
)
@click.option("--complete", is_flag=True, help="Fail also if the last epoch has not ended.")
def audit(
    logs: tuple[Path, ...], samples: int | None, config: Path | None, complete: bool
) -> Outcome:
    """Check that every sample was received exactly once in every epoch.

    LOGS are the logs of all ranks of all runs of one training (log=FOLDER of a loader), or folders
    of them. A run counts up to the checkpoint that the next one loaded. With weights, samples may
    come more than once or not at all: then --config says how often they should come.

    The exit code is 1 if samples were lost or repeated, or ranks diverged, and 2 if a log cannot be
    used.

    \b
    Examples:
      feedline audit logs
      feedline audit logs/run1 logs/run2 --samples 1000000 --json
      feedline audit logs --config run.yaml --complete
    """
    if samples is not None:
        check_integer("--samples", samples, 1, _MOST_SAMPLES)
        if config is not None:
            raise InvalidValueError(
                f"--samples={samples} cannot be used with --config, which contains it; omit it"
            )
    from feedline.runs.audit import audit_config, audit_logs

    _check_logs(logs)
    planned = None
    if config is None:
        result = audit_logs(logs, num_samples=samples)
    else:
        run = load_config(config)
        with naming(config):
            result = audit_config(logs, run)
        sources = tuple((source.name, source.first_index) for source in run.sources)
        planned = Planned(str(config), sources, _begins_alike(run, logs, result))

    def show() -> None:
        print_result(result, planned)
        if config is None and any(epoch.num_repeated for epoch in result.epochs):
            echo(
                "If samples may come more than once in an epoch, as in a mixture with weights, "
                "use --config."
            )

    return Outcome(describe(result, planned), show, is_good(result, complete=complete))


def is_good(result: AuditResult, *, complete: bool) -> bool:
    """Whether an audit passes; if it must be complete, only if all epochs have ended."""
    return result.ok and (not complete or (bool(result.epochs) and result.is_finished))


def _check_logs(logs: tuple[Path, ...]) -> None:
    from feedline.runs.log_records import is_log

    for path in logs:
        if not path.exists():
            raise InvalidValueError(f"{path}: does not exist; pass a log, or a folder of logs")
        if path.is_file() and not is_log(path):
            raise InvalidValueError(
                f"{path}: does not begin like a log of feedline; pass a file that a ConsumptionLog "
                "wrote"
            )


def _begins_alike(run: RunConfig, logs: tuple[Path, ...], result: AuditResult) -> bool | None:
    """Whether any rank received the plan's first samples first; None if that was not logged."""
    from feedline.runs.audit import find_logs
    from feedline.runs.consumption_log import iter_log, read_log_header
    from feedline.runs.log_records import LoggedBatch

    first, is_alike = result.runs[0], None
    for path in find_logs(logs):
        header = read_log_header(path)
        if (header.run or str(path.parent)) != first.name or first.first_step != 0:
            continue
        batches = (entry for _, entry in iter_log(path) if isinstance(entry, LoggedBatch))
        batch = next(batches, None)
        if batch is None or not len(batch.ids):
            continue
        size = header.info.get("batch_size") or len(batch.ids)
        segment = run.plan.segment(world_size=header.world_size, batch_size=size, epoch=batch.epoch)
        if batch.ids.tolist() == segment.batch(header.rank, 0).indices.tolist():
            return True
        is_alike = False
    return is_alike


@dataclass(frozen=True)
class Planned:
    """The plan that logs are compared with: its config, and the first index of each source.

    `begins_alike` is False if no rank received the plan's first samples first.
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


def print_result(result: AuditResult, planned: Planned | None = None) -> None:
    """Print the runs, the epochs, their faults, and the verdict."""
    how = "exactly once" if planned is None else "as often as planned"
    of_runs = ("run", "ranks", "steps", "samples", "discarded", "ranks agree")
    print_table("Runs", of_runs, map(_run_row, result.runs))
    of_epochs = ("epoch", "source", "expected", "once", "missing", "repeated", "verdict")
    rows = [row for epoch in result.epochs for row in _epoch_rows(epoch, how)]
    print_table("Epochs", of_epochs, rows)
    for run in result.runs:
        for fault in _faults_of_run(run):
            echo(f"run {one_line(run.name)}: {fault}")
    for epoch in result.epochs:
        for fault in _faults_of_epoch(epoch, planned):
            echo(f"epoch {epoch.epoch}: {fault}")
    total = sum(epoch.num_once for epoch in result.epochs)
    if result.ok:
        skipped = sum(e.num_skipped + e.num_in_skipped_batches for e in result.epochs)
        beside = f", and {skipped:,} skipped" if skipped else ""
        secho(f"audit: {several(total, 'sample')}, each {how}{beside}", fg="green", bold=True)
    else:
        if planned is not None and planned.begins_alike is False:
            hint = "no rank began like its plan; is this the config of this training?"
            echo(f"{one_line(planned.config)}: {hint}")
        secho("audit: failed", fg="red", bold=True)


def _describe_epoch(epoch: EpochAudit, planned: Planned | None) -> dict[str, Any]:
    described = {**dataclasses.asdict(epoch), "ok": epoch.ok}
    for what in ("lost", "repeated", "skipped", "in_skipped_batches"):
        described[f"{what}_places"] = [
            {"index": index, **_place_of(index, epoch, planned)} for index in described[what]
        ]
    return described


def _run_row(run: RunAudit) -> Sequence[object]:
    steps = "none" if run.end_step is None else f"{run.first_step} to {run.end_step - 1}"
    discarded = ""
    if run.num_discarded_batches:
        batches = several(run.num_discarded_batches, "batch", "batches")
        discarded = f"{run.num_discarded_samples:,} in {batches}"
    agree = "yes" if run.ok else Styled("no", "red")
    return run.name, run.world_size, steps, run.num_samples, discarded, agree


def _epoch_rows(epoch: EpochAudit, how: str) -> Iterator[Sequence[object]]:
    for s in epoch.sources if len(epoch.sources) > 1 else ():
        yield epoch.epoch, s.name, s.num_expected, s.num_once, s.num_missing, s.num_repeated, ""
    missing = epoch.num_lost + epoch.num_dropped + epoch.num_to_come
    counts = (epoch.num_expected, epoch.num_once, missing, epoch.num_repeated)
    yield epoch.epoch, "all", *counts, _verdict(epoch, how)


def _verdict(epoch: EpochAudit, how: str) -> object:
    if not epoch.ok:
        return Styled("failed", "red")
    if not epoch.is_finished:
        return f"so far; {epoch.num_to_come:,} to come"
    beside = [
        (epoch.num_dropped, "dropped"),
        (epoch.num_padded, "padded"),
        (epoch.num_skipped + epoch.num_in_skipped_batches, "skipped"),
    ]
    listed = "".join(f", {count:,} {what}" for count, what in beside if count)
    return Styled(how + listed, "green")


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
    faults = []
    kinds = {
        "lost": "lost",
        "repeated": "received too often",
        "unknown": "outside the data",
        "skipped": "skipped, because they could not be decoded or transformed",
        "in_skipped_batches": "in batches that the run was told to skip",
    }
    for kind, what in kinds.items():
        count, first = getattr(epoch, f"num_{kind}"), getattr(epoch, kind)
        if count:
            is_known = kind != "unknown"
            listed = [_named(i, epoch, planned) if is_known else str(i) for i in first]
            more = ", …" if count > len(first) else ""
            faults.append(f"{several(count, 'sample')} {what}: {', '.join(listed)}{more}")
    return faults


def _named(index: int, epoch: EpochAudit, planned: Planned | None) -> str:
    """Return an index, with its source and index there if there are several sources."""
    if len(epoch.sources if planned is None else planned.sources) == 1:
        return str(index)
    place = _place_of(index, epoch, planned)
    return f"{index} ({one_line(place['source'])} {place['source_index']})"


def _place_of(index: int, epoch: EpochAudit, planned: Planned | None) -> dict[str, Any]:
    """Return the source of an index of the data, and the index in that source."""
    listed: Sequence[tuple[str, int]]
    listed = [(s.name, s.first) for s in epoch.sources] if planned is None else planned.sources
    name, first = [(name, first) for name, first in listed if first <= index][-1]
    return {"source": name, "source_index": index - first}
