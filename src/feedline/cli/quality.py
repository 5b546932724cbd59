"""`feedline quality`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from feedline.cli.configs import config_argument, json_option, load_config
from feedline.cli.printing import print_json, print_table


@click.command()
@config_argument
@click.option("--epoch", type=int, default=0, metavar="E", show_default=True, help="The epoch.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any measure is off.")
@json_option
def quality(config: Path, epoch: int, strict: bool, as_json: bool) -> None:
    """Measure how well an epoch is shuffled, beside a perfect shuffle.

    CONFIG is a run config in YAML. At most about 200,000 positions are looked at, and no data is
    read. Windows of chunks are off by design: they trade some of the shuffle for few reads, and
    `preload` says how much.

    \b
    Examples:
      feedline quality run.yaml
      feedline quality run.yaml --epoch 3 --strict --json
    """
    from feedline.runs.shuffle_quality import measure_quality

    run = load_config(config)
    found = measure_quality(run, epoch)
    verdict = "as good as chance" if found.is_good else "not a perfect shuffle"
    if as_json:
        listed = [{**dataclasses.asdict(m), "is_good": m.is_good} for m in found.measures]
        described = {**dataclasses.asdict(found), "measures": listed}
        print_json({**described, "is_good": found.is_good, "verdict": verdict})
    else:
        click.echo(
            f"{run.kind}, epoch {epoch}: {found.num_measured:,} of {found.num_positions:,} "
            f"positions: {verdict}"
        )
        rows = [
            (m.stream, m.name, m.value, m.expected, m.tolerance, "good" if m.is_good else "off")
            for m in found.measures
        ]
        print_table("", ("source", "measure", "value", "perfect", "tolerance", "verdict"), rows)
    if strict and not found.is_good:
        sys.exit(1)
