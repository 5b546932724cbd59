"""Packing: rows and bytes a second, of both engines and of the writers of others.

Rows of 4 KiB from one `.npy` file and texts from one JSONL file, 2 GiB each: on this machine with
1 and 2 workers, with 2 on a Ray cluster of one node (`ray.init` is not counted), and with MosaicML
Streaming's `MDSWriter` and litdata's `optimize` (2 workers), which write in order. All take turns.
Then the cost of a row from 1e5 rows of 32 bytes on, and what Ray takes at three sizes, beside the
model of `feedline.packing.pack_needs`. With 2 GiB, one repetition and 1e8 rows it takes about ten
minutes on two idle cores.

    python benchmarks/pack.py [BYTES [REPETITIONS [LARGEST NUMBER OF SMALL ROWS]]]

The last results lie in `results/pack.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

KINDS = ("rows", "texts")
ORDERS = ("in order", "shuffle")
OURS = {
    "local, 1 worker": ("local", 1),
    "local, 2 workers": ("local", 2),
    "Ray, 2 workers": ("ray", 2),
}
PEERS = {"MDSWriter": ("mds", 1), "litdata, 2 workers": ("litdata", 2)}
WORKERS = ("1 worker", "2 workers")
PEER_TARGET, RAY_TARGET, FLAT_TARGET, MODEL_TARGET = 2.0, 0.3, 1.5, 0.15
SMALL_BYTES = 32
MOST_REPEATED_ROWS = 10**8
# What is measured and what the model says.
NEEDS = ("memory", "disk", "read", "written", "moved", "spilled")
# A cluster to say something about: nodes, cores, the network of a node in bytes a second, and the
# memory of a task.
NODES, CORES, NETWORK, LARGE_BUDGET = 100, 16, 1.25e9, 2**32


def run(python: str, script: str, *arguments: str) -> Any:
    """Run a script in an environment; return the last line that it prints."""
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [python, str(Path(__file__).parent / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=path)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads([line for line in done.stdout.splitlines() if line[:1] in '{"'][-1])


class Bench:
    """Runs all writers in a folder."""

    def __init__(self, folder: Path) -> None:
        import test_formats
        import test_ray

        self._out = folder / "out"
        self.folder = folder
        self.ray = test_ray.python_with_ray()
        self.pythons = {name: test_formats.python_with(name) for name, _ in PEERS.values()}

    def source(self, kind: str, num_bytes: int) -> str:
        return str(run(self.ray, "pack_run.py", "make", kind, str(self.folder), str(num_bytes)))

    def ours(self, engine: str, workers: int, order: str, source: str) -> dict[str, float]:
        arguments = (engine, str(workers), order, source, str(self._out))
        return self._cleared(run(self.ray, "pack_run.py", "pack", *arguments))

    def theirs(self, name: str, workers: int, kind: str, source: str) -> dict[str, float]:
        arguments = (name, kind, source, str(self._out), str(workers))
        return self._cleared(run(self.pythons[name], "peer_pack.py", *arguments))

    def needs(self, *data: dict[str, float], **options: float) -> dict[str, float]:
        """Return what the model says that a pack takes; the memory is that of one process."""
        arguments = {name: int(value) for part in (*data, options) for name, value in part.items()}
        return dict(run(self.ray, "pack_run.py", "needs", json.dumps(arguments)))

    def _cleared(self, found: dict[str, float]) -> dict[str, float]:
        shutil.rmtree(self._out)
        return found


def measure_all(bench: Bench, num_bytes: int, repetitions: int, most_rows: int) -> dict[str, Any]:
    """Return the median figures of every writer, of every number of rows and of every size."""
    runs: dict[str, list[dict[str, float]]] = {}
    for kind in KINDS:
        source = bench.source(kind, num_bytes)
        for _ in range(repetitions):
            for name, (peer, workers) in PEERS.items():
                found = bench.theirs(peer, workers, kind, source)
                runs.setdefault(f"{kind}, in order, {name}", []).append(found)
            for name, (engine, workers) in OURS.items():
                for order in ORDERS:
                    found = bench.ours(engine, workers, order, source)
                    runs.setdefault(f"{kind}, {order}, {name}", []).append(found)
        os.remove(source)
    medians = {name: measure.medians(found) for name, found in runs.items()}
    writers = {}
    for name, found in medians.items():
        kind = name.partition(",")[0]
        num_rows = medians[f"{kind}, in order, local, 1 worker"]["rows"]
        rates = {"rate": num_bytes / found["seconds"], "rows": num_rows / found["seconds"]}
        writers[name] = rates | {key: found[key] for key in ("memory",) if key in found}
    rows: dict[str, dict[str, float]] = {}
    num_rows = 100_000
    while num_rows <= most_rows:
        source = bench.source("small", num_rows * SMALL_BYTES)
        # The most rows take minutes.
        times = min(3, repetitions) if num_rows < MOST_REPEATED_ROWS else 1
        costs = [bench.ours("local", 2, "shuffle", source) for _ in range(times)]
        rows[f"{num_rows}"] = {"cost": measure.medians(costs)["seconds"] / num_rows}
        os.remove(source)
        num_rows *= 10
    sizes, needs = {}, {}
    for part in (4, 2, 1):
        source = bench.source("texts", num_bytes // part)
        size = os.path.getsize(source)
        found = bench.ours("ray", 2, "shuffle", source)
        sizes[f"{size}"] = {name: found[name] for name in NEEDS}
        needs[f"{size}"] = bench.needs(
            {"num_bytes": found["bytes"], "num_rows": found["rows"], "source_bytes": size},
            num_cores=2,
        )
        os.remove(source)
    ratio = found["bytes"] / found["rows"]
    terabyte = bench.needs(
        {"num_bytes": 10**12, "num_rows": int(10**12 / ratio)},
        **{"num_nodes": NODES, "num_cores": CORES, "memory_budget": LARGE_BUDGET},
    )
    return {
        "writers": writers,
        "rows": rows,
        "sizes": sizes,
        "needs": needs,
        "terabyte": terabyte,
    }


def check_needs(figures: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return how far the model is from what was measured."""
    pairs = [(found, figures["needs"][size]) for size, found in figures["sizes"].items()]
    checks = []
    for name in ("read", "written", "moved"):
        off = max(abs(found[name] / needed[name] - 1) for found, needed in pairs)
        text = f"model: bytes {name} are off by {off:.0%} at most ({MODEL_TARGET:.0%})"
        checks.append((text, off <= MODEL_TARGET))
    for name in ("memory", "disk", "spilled"):
        share = max(found[name] / needed[name] for found, needed in pairs)
        text = f"model: {name} is {share:.0%} of what it says at most (100%)"
        checks.append((text, share <= 1))
    return checks


def report(figures: dict[str, Any], num_bytes: int, repetitions: int) -> tuple[str, list[Any]]:
    writers, checks, rows = figures["writers"], [], []
    for name, found in writers.items():
        memory = measure.show_bytes(found["memory"]) if "memory" in found else ""
        rates = f"{found['rows']:,.0f} rows/s", f"{found['rate'] / 2**20:,.0f} MiB/s"
        rows.append([name, *rates, memory])
    for kind in KINDS:
        ours = max(writers[f"{kind}, in order, local, {n}"]["rate"] for n in WORKERS)
        for name in PEERS:
            times = ours / writers[f"{kind}, in order, {name}"]["rate"]
            checks.append((f"{kind}: {times:.1f}x {name} ({PEER_TARGET:g})", times >= PEER_TARGET))
        for order in ORDERS:
            ray, local = (
                writers[f"{kind}, {order}, {name}, 2 workers"]["rate"] for name in ("Ray", "local")
            )
            text = f"{kind}, {order}: Ray takes {local / ray - 1:+.0%} ({RAY_TARGET:.0%})"
            checks.append((text, local / ray - 1 <= RAY_TARGET))
    costs = {int(n): found["cost"] for n, found in figures["rows"].items()}
    shown = [[f"{n:,} rows", measure.show_time(cost)] for n, cost in costs.items()]
    growth = costs[max(costs)] / min(costs.values())
    text = f"a row costs {growth:.2f}x at {max(costs):,} rows of the least ({FLAT_TARGET:g})"
    checks.append((text, growth <= FLAT_TARGET))
    sizes = [
        [f"{measure.show_bytes(int(size))}, {what}", *(measure.show_bytes(f[n]) for n in NEEDS)]
        for size in figures["sizes"]
        for what, f in (("measured", figures["sizes"][size]), ("model", figures["needs"][size]))
    ]
    checks += check_needs(figures)
    large = figures["terabyte"]
    extrapolated = ""
    if max(costs) < 10**8:
        seconds = 1e8 * costs[max(costs)]
        extrapolated = (
            f"More rows than {max(costs):,} were not packed. If the cost stays, 100,000,000 take "
            f"{seconds:.0f} s: that is extrapolated."
        )
    times = (
        f"medians of {repetitions} alternating repetitions, of the most small rows and for the "
        "model single runs"
    )
    lines = [
        f"# Packing: {measure.show_bytes(num_bytes)} a run",
        f"{times if repetitions > 1 else 'Single runs, one after another'}; "
        f"{measure.machine()}, {os.cpu_count()} cores.",
        measure.table(["", "rows", "bytes", "memory of a process"], rows),
        f"A row of {SMALL_BYTES} bytes, shuffled on this machine:",
        measure.table(["", "cost of a row"], shown),
        extrapolated,
        "Texts shuffled by Ray with 2 workers, beside `feedline.packing.pack_needs`: memory is "
        "that of the largest worker; the files are on shared storage:",
        measure.table(["input", "memory", *(f"bytes {n}" for n in NEEDS[1:])], sizes),
        f"By the model, a terabyte of these texts on {NODES} nodes of {CORES} cores, with "
        f"{measure.show_bytes(LARGE_BUDGET)} of memory for a task, takes "
        f"{measure.show_bytes(large['memory'])} of memory a node at most, "
        f"{large['disk'] / 1e12:.2f} TB of temporary disk, {large['read'] / 1e12:.2f} TB of "
        f"reading, {large['written'] / 1e12:.2f} TB of writing and {large['moved'] / 1e12:.2f} TB "
        f"in the object store: {large['network'] / 1e9:.0f} GB through the network of each node, "
        f"{large['network'] / NETWORK:.0f} s at 10 Gbit/s. That was not measured.",
    ]
    return "\n\n".join(filter(None, lines)), checks


def main() -> int:
    told = [int(text) for text in sys.argv[1:]]
    num_bytes, repetitions, most_rows = (*told, *(2**31, 7, 10**8)[len(told) :])
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_all(Bench(Path(folder)), num_bytes, repetitions, most_rows)
    text, checks = report(figures, num_bytes, repetitions)
    return measure.finish("pack", text, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
