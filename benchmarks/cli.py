"""How long the command line takes to start, to answer about a huge run, and a log to be written.

Each command is a fresh process; a figure is the median of nine. The last results lie in
`results/cli.md`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import measure
import numpy as np

REPETITIONS = 9
CONFIG = """
ranks: 16384
batch_size: 32
data:
  samples: 1_000_000_000_000
"""


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "feedline", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def record_seconds(folder: str) -> float:
    """Return the seconds of a record of 32 samples in a log."""
    from feedline.runs import ConsumptionLog

    ids, num_records = np.arange(32), 5000
    with ConsumptionLog(f"{folder}/log", rank=0, world_size=1) as log:
        start = perf_counter()
        for step in range(num_records):
            log.record(epoch=0, step=step, batch=step, ids=ids, wait=0.1)
        return (perf_counter() - start) / num_records


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        starting = measure.median_seconds(lambda: run("--help"), REPETITIONS)
        planning = measure.median_seconds(lambda: run("plan", str(config)), REPETITIONS)
        record = record_seconds(folder)
    rows = [
        ["feedline --help", measure.show_time(starting)],
        ["feedline plan, 1e12 samples on 16,384 ranks", measure.show_time(planning)],
        ["a record of 32 samples in a log", measure.show_time(record)],
    ]
    table = measure.table(["what", "takes"], rows)
    text = f"# The command line\n\nMedians of {REPETITIONS}; {measure.machine()}.\n\n{table}"
    checks = [
        (f"starts in {measure.show_time(starting)} (300 ms)", starting < 0.3),
        (f"plans in {measure.show_time(planning)} (1 s)", planning < 1),
    ]
    figures = {"help": starting, "plan": planning, "record": record}
    return measure.finish("cli", text, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
