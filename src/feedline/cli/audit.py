"""`feedline audit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from feedline.cli.audit_table import describe, make_console, print_result
from feedline.errors import StoreError
from feedline.runs.audit import audit_logs
from feedline.runs.audit_result import AuditResult

__all__ = ["audit"]


@click.command()
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG_OR_FOLDER..."
)
@click.option("--samples", type=int, metavar="N", help="Samples of the data, if no log says it.")
@click.option("--complete", is_flag=True, help="Fail also if the last epoch has not ended.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def audit(logs: tuple[Path, ...], samples: int | None, complete: bool, as_json: bool) -> None:
    """Check that every sample was received exactly once in every epoch.

    LOGS are those that all ranks of all runs of one training wrote (feedline.runs.LoggedLoader), or
    folders of them. A run counts up to the checkpoint that the next one loaded.

    The exit code is 1 if samples were lost or repeated, or ranks parted, and 2 if a log cannot be
    used.

    \b
    Examples:
      feedline audit logs
      feedline audit logs/run1 logs/run2 --samples 1000000 --json
    """
    try:
        result = audit_logs(logs, num_samples=samples)
    except StoreError as error:
        raise _Unusable(str(error)) from None
    if as_json:
        click.echo(json.dumps(describe(result)))
    else:
        print_result(make_console(), result)
    if not is_good(result, complete=complete):
        sys.exit(1)


def is_good(result: AuditResult, *, complete: bool) -> bool:
    """Whether an audit passes; if it should be complete, only with all epochs at their end."""
    return result.ok and (not complete or (bool(result.epochs) and result.is_finished))


class _Unusable(click.ClickException):
    """A log that cannot be used is bad input, and no finding."""

    exit_code = 2
