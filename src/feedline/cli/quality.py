"""`feedline quality`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from feedline.cli.configs import config_argument, epoch_option, load_config
from feedline.cli.printing import Outcome, command, echo, print_table


@command
@config_argument
@epoch_option
@click.option("--strict", is_flag=True, help="Exit with 1 if any measure is outside its tolerance.")
def quality(config: Path, epoch: int, strict: bool) -> Outcome:
    """Measure how well an epoch is shuffled, compared with a perfect shuffle.

    CONFIG is a run config in YAML. At most about 200,000 positions are measured, and no data is
    read. Windows of chunks are outside the tolerance by design: they trade some shuffling for few
    reads, and `preload` decides how much.

    \b
    Examples:
      feedline quality run.yaml
      feedline quality run.yaml --epoch 3 --strict --json
    """
    from feedline.runs.shuffle_quality import measure_quality

    run = load_config(config)
    found = measure_quality(run, epoch)
    verdict = "as good as chance" if found.is_good else "not a perfect shuffle"
    listed = [{**dataclasses.asdict(m), "is_good": m.is_good} for m in found.measures]
    described = {**dataclasses.asdict(found), "measures": listed}
    described |= {"is_good": found.is_good, "verdict": verdict}

    def show() -> None:
        echo(
            f"{run.kind}, epoch {epoch}: {found.num_measured:,} of {found.num_positions:,} "
            f"positions: {verdict}"
        )
        rows = [
            (m.stream, m.name, m.value, m.expected, m.tolerance, "good" if m.is_good else "off")
            for m in found.measures
        ]
        print_table("", ("source", "measure", "value", "perfect", "tolerance", "verdict"), rows)

    return Outcome(described, show, found.is_good or not strict)
