"""`feedline audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from feedline.cli.audit_table import Planned, describe, print_result
from feedline.cli.configs import json_option, load_config, naming
from feedline.cli.printing import make_console, print_json
from feedline.errors import InvalidValueError, check_integer

if TYPE_CHECKING:
    from feedline.runs.audit_result import AuditResult
    from feedline.runs.run_config import RunConfig

# Each is counted in 4 bytes.
_MOST_SAMPLES = 2**60


@click.command()
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG_OR_FOLDER..."
)
@click.option("--samples", type=int, metavar="N", help="Samples of the data, if no log says it.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="A run config: expect each sample as often as its plan has it, as in a mixture.",
)
@click.option("--complete", is_flag=True, help="Fail also if the last epoch has not ended.")
@json_option
def audit(
    logs: tuple[Path, ...], samples: int | None, config: Path | None, complete: bool, as_json: bool
) -> None:
    """Check that every sample was received exactly once in every epoch.

    LOGS are those that all ranks of all runs of one training wrote (feedline.runs.LoggedLoader), or
    folders of them. A run counts up to the checkpoint that the next one loaded. Where weights let
    samples come more than once, or not at all, --config says how often they should.

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
                f"--samples={samples} must be left out beside --config, which says it"
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
    if as_json:
        print_json(describe(result, planned))
    else:
        print_result(make_console(), result, planned)
        if config is None and any(epoch.num_repeated for epoch in result.epochs):
            click.echo(
                "Where samples may come more than once in an epoch, as in a mixture with weights, "
                "give --config."
            )
    if not is_good(result, complete=complete):
        sys.exit(1)


def is_good(result: AuditResult, *, complete: bool) -> bool:
    """Whether an audit passes; if it should be complete, only with all epochs at their end."""
    return result.ok and (not complete or (bool(result.epochs) and result.is_finished))


def _check_logs(logs: tuple[Path, ...]) -> None:
    from feedline.runs.log_records import is_log

    for path in logs:
        if not path.exists():
            raise InvalidValueError(
                f"{path}: there is no such file; give a log, or a folder of logs"
            )
        if path.is_file() and not is_log(path):
            raise InvalidValueError(
                f"{path}: does not begin as a log of feedline; give what a ConsumptionLog wrote"
            )


def _begins_alike(run: RunConfig, logs: tuple[Path, ...], result: AuditResult) -> bool | None:
    """Whether any rank received first what the plan has first; None if that was not logged."""
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
