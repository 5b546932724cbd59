"""What the clock costs for each step, alone and with two ranks, beside a bare loop.

Alone: `for batches in scheduler` over a list, with everything asked for that a training loop asks
for at each step, less the same loop over the list itself. With two ranks under gloo: the same loop,
beside one that only all-reduces one number. A figure is the median of nine passes, taken in turn.

The last results lie in `results/steps.md`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import measure

REPETITIONS = 9
NUM_ALONE, NUM_TOGETHER = 20_000, 2_000


def ask(scheduler: Any) -> None:
    """Ask for what a training loop asks for at each step."""
    scheduler.is_val_step  # noqa: B018
    scheduler.is_ckpt_step  # noqa: B018
    scheduler.is_remote_logging_step  # noqa: B018
    scheduler.is_gc_step  # noqa: B018
    scheduler.is_last_step  # noqa: B018


def clock_loop(make: Callable[..., Any], num_steps: int) -> float:
    """Return the seconds of each step of a loop that the clock drives."""
    with make(2, 1, 1, range(2 * num_steps), num_epochs=1, val_every_steps=100) as scheduler:
        start = perf_counter()
        for _ in scheduler:
            ask(scheduler)
        return (perf_counter() - start) / num_steps


def bare_loop(num_steps: int) -> float:
    """Return the seconds of each step of a loop over the same batches without the clock."""
    batches = iter(range(2 * num_steps))
    start = perf_counter()
    for first in batches:
        _ = [first, next(batches)]
    return (perf_counter() - start) / num_steps


def alone() -> dict[str, float]:
    from feedline.steps import StepScheduler

    runs: dict[str, list[float]] = {"clock": [], "bare": []}
    for _ in range(REPETITIONS):
        runs["clock"].append(clock_loop(StepScheduler, NUM_ALONE))
        runs["bare"].append(bare_loop(NUM_ALONE))
    return {name: statistics.median(found) for name, found in runs.items()}


def together(path: str) -> None:
    """Measure in one of two ranks; rank 0 writes what it found."""
    import torch
    import torch.distributed as dist

    from feedline.torch import StepScheduler

    dist.init_process_group("gloo")
    one = torch.zeros(1, dtype=torch.int64)

    def reduce_loop() -> float:
        dist.barrier()
        start = perf_counter()
        for _ in range(NUM_TOGETHER):
            dist.all_reduce(one)
        return (perf_counter() - start) / NUM_TOGETHER

    def with_clock() -> float:
        dist.barrier()
        return clock_loop(StepScheduler, NUM_TOGETHER)

    reduce_loop()
    runs: dict[str, list[float]] = {"clock": [], "bare": []}
    for _ in range(REPETITIONS):
        runs["clock"].append(with_clock())
        runs["bare"].append(reduce_loop())
    if dist.get_rank() == 0:
        figures = {name: statistics.median(found) for name, found in runs.items()}
        Path(path).write_text(json.dumps(figures), encoding="utf-8")
    dist.destroy_process_group()


def main() -> int:
    single = alone()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/figures.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", __file__, path]
        subprocess.run(command, check=True, capture_output=True)
        pair = json.loads(Path(path).read_text(encoding="utf-8"))
    cost = single["clock"] - single["bare"]
    ratio = pair["clock"] / pair["bare"]
    rows = [
        ["alone", measure.show_time(single["clock"]), measure.show_time(single["bare"])],
        ["two ranks", measure.show_time(pair["clock"]), measure.show_time(pair["bare"])],
    ]
    table = measure.table(["each step", "clock", "bare loop, or one all-reduce"], rows)
    text = f"# The clock\n\nMedians of {REPETITIONS}; {measure.machine()}.\n\n{table}"
    checks = [
        (f"{measure.show_time(cost)} a step without peers (20 µs)", cost < 20e-6),
        (f"{ratio:.2f} times a one-element all-reduce with two ranks (1.5)", ratio < 1.5),
    ]
    return measure.finish("steps", text, {"alone": single, "two ranks": pair}, checks)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        together(sys.argv[1])
    else:
        sys.exit(main())
