"""Costs that grow: very many buckets, sources and resizes, beside another commit.

    python benchmarks/scale.py [COMMIT]

By default that is the commit before these costs were reduced. It is checked out beside this tree.
Every figure comes from a fresh process that imports one of the two, and they take turns. Times are
CPU seconds of one core, so that other work on the machine does not count. Where one repetition of
the other commit takes minutes, it is measured once. Its commands are stopped after half a minute,
so their figures may be too low.

- buckets: a million interleaved ones, each a range of 40 samples. `segment` deals an epoch;
  `resume` reads a cursor and deals what is left to another number of ranks, in a plan that is used
  for the first time; `cursor` is the length of its JSON; `memory` is the most anonymous memory,
  with the plan.
- sources: 300 batches of 32 of one rank of eight, from a mixture of 5,000 sources. Small ones have
  1,000 samples each, large ones 10,000 to a million.
- windows: reading a cursor after 60 resizes, and dealing what is left.
- plan, report: the commands, for 65,536 ranks, 1e13 samples and 1,000 resizes.

The last results lie in `results/scale.md`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any

import measure

ROOT = Path(__file__).parent.parent
BEFORE = "6bb75cf"
NUM_BUCKETS, BUCKET_SIZE = 10**6, 40
NUM_SOURCES = 5000
NUM_RESIZES = 60
MOST_SECONDS = 30
NUM_RANKS = 65_536
DATA = {
    "samples": "samples: 10_000_000_000_000",
    "windows": "chunks: {num_chunks: 100_000_000, chunk_size: 100_000, preload: 8}",
}


class AnonymousMemory:
    """The most anonymous memory of this process, looked at from a thread."""

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, measure.status("RssAnon"))

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return max(self.most, measure.status("RssAnon"))


def cpu_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of one call, and what it returned."""
    start = thread_time()
    result = action()
    return thread_time() - start, result


def run_buckets() -> dict[str, float]:
    from feedline.plan import Bucket, BucketPlan, Cursor

    memory = AnonymousMemory()
    starts = range(0, NUM_BUCKETS * BUCKET_SIZE, BUCKET_SIZE)
    buckets = [Bucket(n, range(first, first + BUCKET_SIZE)) for n, first in enumerate(starts)]

    def plan() -> BucketPlan:
        return BucketPlan(buckets=buckets, mode="interleaved")

    def saved(plan: BucketPlan) -> tuple[float, str]:
        seconds, segment = cpu_seconds(lambda: plan.segment(world_size=2, batch_size=4))
        return seconds, segment.cursor(segment.num_batches // 3).to_json()

    segment_seconds, cursor = saved(plan())
    again = plan()
    resume_seconds, _ = cpu_seconds(
        lambda: again.resume(Cursor.from_json(cursor), world_size=3, batch_size=4)
    )
    return {
        "buckets, segment": segment_seconds,
        "buckets, resume": resume_seconds,
        "buckets, cursor": len(cursor),
        "buckets, memory": memory.end(),
    }


def run_sources() -> dict[str, float]:
    from feedline.plan import Mixture, SamplePlan

    chosen = random.Random(0)
    sizes = {
        "small": [1000] * NUM_SOURCES,
        "large": [chosen.randint(10**4, 10**6) for _ in range(NUM_SOURCES)],
    }
    figures = {}
    for name, each in sizes.items():
        plan = SamplePlan(order=Mixture(sizes=each, weights=each))
        batches = plan.segment(world_size=8, batch_size=32).batches(3)
        figures[f"sources, {name}"] = cpu_seconds(lambda it=batches: list(islice(it, 300)))[0]
    return figures


def run_windows() -> dict[str, float]:
    from feedline.plan import Cursor, EqualChunks, WindowPlan

    chosen = random.Random(0)
    chunks = EqualChunks(num_samples=10**9, chunk_size=1000)
    plan = WindowPlan(chunks=chunks, preload=16)
    segment = plan.segment(world_size=8, batch_size=32)
    for _ in range(NUM_RESIZES):
        cursor = segment.cursor(chosen.randint(1, 200))
        segment = plan.resume(cursor, world_size=chosen.randint(1, 64), batch_size=32)
    saved = segment.cursor(1).to_json()

    def resume() -> None:
        fresh = WindowPlan(chunks=chunks, preload=16)
        fresh.resume(Cursor.from_json(saved), world_size=5, batch_size=32)

    return {"windows, resume": statistics.median(cpu_seconds(resume)[0] for _ in range(15))}


def run_commands(data: str) -> dict[str, float]:
    chosen = random.Random(0)
    sizes = ",".join(str(chosen.randint(1, NUM_RANKS)) for _ in range(1001))
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yaml"
        text = f"ranks: {NUM_RANKS}\nbatch_size: 32\ndata:\n  {DATA[data]}\n"
        config.write_text(text, encoding="utf-8")
        for name, more in (("plan", []), ("report", ["-o", f"{folder}/report.html"])):
            command = [sys.executable, "-m", "feedline", name, str(config), "--resize", sizes]
            figures[f"{name}, {data}"] = command_seconds([*command, *more])
    return figures


def command_seconds(command: list[str]) -> float:
    """Return the CPU seconds of a command, which is stopped after half a minute of them."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, preexec_fn=limit)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 0:
        raise RuntimeError(done.stderr.decode())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


#: Each case with its repetitions: of this tree, and of the commit before.
CASES: dict[str, tuple[Callable[[], dict[str, float]], int, int]] = {
    "windows": (run_windows, 7, 7),
    "sources": (run_sources, 7, 7),
    "buckets": (run_buckets, 7, 1),
    "samples": (lambda: run_commands("samples"), 3, 3),
    "chunks": (lambda: run_commands("windows"), 3, 1),
}
LABELS = {
    "buckets, segment": "a segment of a million interleaved buckets",
    "buckets, resume": "resume of a million interleaved buckets",
    "buckets, cursor": "a cursor of a million buckets",
    "buckets, memory": "memory of a million buckets",
    "sources, small": "300 batches from 5,000 small sources",
    "sources, large": "300 batches from 5,000 large sources",
    "windows, resume": "resume after 60 resizes",
    "plan, samples": "feedline plan, samples",
    "report, samples": "feedline report, samples",
    "plan, windows": "feedline plan, windows",
    "report, windows": "feedline report, windows",
}
TARGETS = {
    "buckets, segment": (1, "1 s"),
    "buckets, resume": (2, "2 s"),
    "buckets, cursor": (10_000, "10 kB"),
    "buckets, memory": (500 * 2**20, "500 MiB"),
    "sources, small": (0.2, "0.2 s"),
    "sources, large": (0.2, "0.2 s"),
    "windows, resume": (0.005, "5 ms"),
    **{f"{name}, {data}": (10, "10 s") for data in DATA for name in ("plan", "report")},
}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit beside this tree."""
    with tempfile.TemporaryDirectory() as parent:
        other = Path(parent) / "other"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "--detach", str(other), commit], check=True)
        try:
            yield other
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


def measured(tree: Path, case: str) -> dict[str, float]:
    """Return the figures of one case with the package of one tree."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", case],
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(commit: str = BEFORE) -> int:
    figures: dict[str, dict[str, float]] = {}
    repetitions: dict[str, tuple[int, int]] = {}
    with checked_out(commit) as other:
        for case, (_, *counts) in CASES.items():
            runs: dict[str, list[dict[str, float]]] = {"now": [], "before": []}
            for repetition in range(max(counts)):
                for (name, own), count in zip(runs.items(), counts, strict=True):
                    if repetition < count:
                        print(f"{repetition + 1}/{count} {case}, {name}", file=sys.stderr)
                        own.append(measured(ROOT if name == "now" else other, case))
            found = {name: measure.medians(own) for name, own in runs.items()}
            for label in found["now"]:
                figures[label] = {name: found[name][label] for name in found}
                repetitions[label] = (counts[0], counts[1])
    rows = [
        [
            LABELS[label],
            *(show(label, each[name]) for name in ("now", "before")),
            "{} and {}".format(*repetitions[label]),
        ]
        for label, each in figures.items()
    ]
    table = measure.table(["what", "now", f"at {commit}", "repetitions"], rows)
    text = (
        f"# Costs that grow\n\nMedians of alternating repetitions in fresh processes, beside "
        f"{commit}; CPU seconds of one core; {measure.machine()}. "
        f"Commands were stopped after {MOST_SECONDS} s; those of windows before had not ended."
        f"\n\n{table}"
    )
    checks = [
        (
            f"{LABELS[label]}: {show(label, figures[label]['now'])} ({written})",
            figures[label]["now"] <= bound,
        )
        for label, (bound, written) in TARGETS.items()
    ]
    return measure.finish("scale", text, figures, checks)


def show(label: str, value: float) -> str:
    """Return a figure with its unit."""
    if label.endswith("memory"):
        return measure.show_bytes(value)
    return f"{value / 1000:,.1f} kB" if label.endswith("cursor") else measure.show_time(value)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(CASES[sys.argv[2]][0]()))
    else:
        sys.exit(main(*sys.argv[1:2]))
