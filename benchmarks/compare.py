"""This tree beside another commit, alternated in one run: how much slower or faster it has become.

    python benchmarks/compare.py COMMIT [NAME …]

The commit is checked out beside the tree. Every figure comes from a fresh process that imports one
of the two, and they take turns; a ratio is this tree's median time over the other's, so below 1 is
faster. Names are those of `FIGURES`. The last results lie in `results/commits/compare.md`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).parent.parent
REPETITIONS = 7
MOST = 1.1


def plan_figures(folder: Path) -> dict[str, float]:
    import plan

    found = plan.run_feedline(10**8)
    return {name: found[name] for name in ("first_batch", "resume", "ns_per_index")}


def sampler_figures(folder: Path) -> dict[str, float]:
    import samplers
    import torch

    torch.set_num_threads(1)
    figures = {}
    for name, (make, _, _) in samplers.SAMPLERS.items():
        samplers.our_resume(make, samplers.state_at(make(), 10))
        state = samplers.state_at(make(), len(samplers.in_batches(make())) * 9 // 10)
        resume = partial(samplers.our_resume, make, state)
        figures[f"{name}, resume"] = measure.median_seconds(resume, 15)
        batches = samplers.in_batches(make())
        figures[f"{name}, epoch"] = measure.seconds(partial(samplers.consume, batches))
    loader = samplers.DataLoader(samplers.WholeRows(4096), batch_size=256, shuffle=True)
    figures["loader, 4 KiB rows"] = measure.median_seconds(lambda: samplers.consume(loader), 3)
    return figures


def folder_figures(folder: Path) -> dict[str, float]:
    import folder as benchmark

    benchmark.warm(folder)
    figures = {}
    for batch_size in benchmark.BATCHES:
        found = benchmark.measure_reader("feedline", folder, batch_size)
        figures[f"first batch of {batch_size}"] = found["first"]
        figures[f"epoch, batch {batch_size}"] = 1 / found["rate"]
    found = benchmark.measure_workers("feedline", folder, 512)
    figures["two workers, batch 512"] = 1 / found["rate"]
    return figures


def step_figures(folder: Path) -> dict[str, float]:
    import steps

    from feedline.steps import StepScheduler
    from feedline.torch import DataLoader
    from feedline.torch import StepScheduler as TorchScheduler

    steps.clock_loop(StepScheduler, 1000)
    alone = [steps.clock_loop(StepScheduler, steps.NUM_ALONE) for _ in range(3)]

    def over_loader(*sizes: Any, **options: Any) -> Any:
        loader = DataLoader(range(20_000), batch_size=1)
        return TorchScheduler(2, 1, 1, loader, **options)

    own = [steps.clock_loop(over_loader, 10_000) for _ in range(3)]
    return {"alone": statistics.median(alone), "over our loader": statistics.median(own)}


def cli_figures(folder: Path) -> dict[str, float]:
    import cli

    config = folder / "run.yaml"
    config.write_text(cli.CONFIG, encoding="utf-8")
    with tempfile.TemporaryDirectory() as logs:
        return {
            "--help": measure.median_seconds(lambda: cli.run("--help"), 3),
            "plan": measure.median_seconds(lambda: cli.run("plan", str(config)), 3),
            "a record of a log": cli.record_seconds(logs),
        }


FIGURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "plan": plan_figures,
    "samplers": sampler_figures,
    "folder": folder_figures,
    "steps": step_figures,
    "cli": cli_figures,
}


def measured(tree: Path, name: str, folder: Path) -> dict[str, float]:
    """Return the figures of one benchmark with the package of one tree."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(folder)],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(other: Path, names: list[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the medians of every figure: this tree's, and the other's."""
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as parent:
        for name in names:
            folder = Path(parent) / name
            folder.mkdir()
            if name == "folder":
                make_small_folder(folder)
            runs: dict[Path, list[dict[str, float]]] = {ROOT: [], other: []}
            for repetition in range(REPETITIONS):
                print(f"{repetition + 1}/{REPETITIONS} {name}", file=sys.stderr)
                for tree in (ROOT, other) if repetition % 2 else (other, ROOT):
                    runs[tree].append(measured(tree, name, folder))
            ours, theirs = measure.medians(runs[ROOT]), measure.medians(runs[other])
            figures[name] = {label: (ours[label], theirs[label]) for label in ours}
    return figures


def make_small_folder(folder: Path) -> None:
    """Write a quarter of the folder that `folder.py` reads."""
    import folder as benchmark

    benchmark.NUM_CHUNKS //= 4
    benchmark.make_folder(folder)


def main(commit: str, names: list[str]) -> int:
    with tempfile.TemporaryDirectory() as parent:
        other = Path(parent) / "other"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "--detach", str(other), commit], check=True)
        try:
            figures = compare(other, names)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)
    rows, checks = [], []
    for name, of_name in figures.items():
        for label, (ours, theirs) in of_name.items():
            ratio = ours / theirs
            rows.append([name, label, f"{ours:.4g}", f"{theirs:.4g}", f"{ratio:.2f}"])
            checks.append((f"{name}, {label}: {ratio:.2f} ({MOST})", ratio <= MOST))
    table = measure.table(["benchmark", "figure", "this tree", "before", "ratio"], rows)
    text = (
        f"# This tree beside {commit}\n\nMedians of {REPETITIONS} alternating repetitions in fresh "
        f"processes; seconds, nanoseconds an index, or seconds a GiB; {measure.machine()}.\n\n"
        f"{table}"
    )
    return measure.finish("commits/compare", text, figures, checks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(FIGURES[sys.argv[2]](Path(sys.argv[3]))))
    elif len(sys.argv) < 2:
        sys.exit(f"usage: compare.py COMMIT [{' | '.join(FIGURES)} …]")
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:] or list(FIGURES)))
