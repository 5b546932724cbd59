"""`feedline report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from feedline.cli import configs
from feedline.cli.printing import Outcome, command, echo
from feedline.errors import InvalidValueError


@command
@click.argument("paths", nargs=-1, required=True, type=configs.PATH, metavar="CONFIG|LOGS...")
@click.option(
    "--output",
    "-o",
    type=configs.PATH,
    default=Path("report.html"),
    show_default=True,
    help="The HTML file to write.",
)
@configs.ranks_option
@configs.batch_size_option
@configs.resize_option
@click.option("--epoch", type=int, metavar="E", help="The epoch of the plan; by default 0.")
@click.option(
    "--config",
    type=configs.PATH,
    help="The config of the runs that wrote the logs.",
)
@configs.samples_option
@click.option("--title", metavar="TEXT", help="The headline.")
def report(
    paths: tuple[Path, ...],
    output: Path,
    ranks: int | None,
    batch_size: int | None,
    epoch: int | None,
    resize: list[int] | None,
    config: Path | None,
    samples: int | None,
    title: str | None,
) -> Outcome:
    """Draw a plan or a run as one HTML file that needs no network.

    Pass a run config in YAML to see what a run will consume; with --resize, on several numbers of
    ranks in turn. Or pass the logs of runs, or folders of logs, to see what really happened.

    \b
    Examples:
      feedline report run.yaml
      feedline report run.yaml --resize 512,480,64 -o resized.html
      feedline report logs --config run.yaml --title "Run 7"
    """
    from feedline.report import report_config, report_logs, write_report
    from feedline.report.page import check_target
    from feedline.store.progress import open_progress

    of_plan = {"--ranks": ranks, "--batch-size": batch_size, "--epoch": epoch, "--resize": resize}
    of_logs = {"--config": config, "--samples": samples}
    # Before the work, which may take long.
    check_target(output)
    if _are_logs(paths):
        _refuse(of_plan, "a run config", "logs")
        logged = None if config is None else configs.load_config(config)
        name = title or f"{paths[0].resolve().name}, as it happened"
        with open_progress(None) as bars:
            bars.begin("reading logs", None, unit="batches")
            made = report_logs(
                paths, config=logged, num_samples=samples, title=name, progress=bars.reach
            )
    else:
        _refuse(of_logs, "logs", "a run config")
        run = configs.load_config(paths[0]).resized(ranks=ranks, batch_size=batch_size)
        name = title or f"{paths[0].name}, epoch {epoch or 0}"
        made = report_config(run, epoch=epoch or 0, resize=resize, title=name)
    written = write_report(made, output)
    return Outcome(
        {"output": written, **made.to_dict()},
        lambda: echo(f"{written}: {made.verdict.text}"),
    )


def _are_logs(paths: tuple[Path, ...]) -> bool:
    from feedline.runs.log_records import is_log

    are_logs = [path.is_dir() or (path.is_file() and is_log(path)) for path in paths]
    if len(paths) > 1 and not all(are_logs):
        other = paths[are_logs.index(False)]
        raise InvalidValueError(
            f"{other}: must be a log or a folder of logs if there are several paths; pass one "
            "config, or logs only"
        )
    return are_logs[0]


def _refuse(options: Mapping[str, object], wanted: str, given: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidValueError(f"{name} cannot be used with {given}; it is for {wanted}")
