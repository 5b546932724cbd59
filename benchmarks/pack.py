"""Packing: rows and bytes a second, of both engines and of the writers of others.

Rows of 4 KiB from one `.npy` file and texts from one JSONL file, 2 GiB each: on this machine with
1 and 2 workers, with 2 on a Ray cluster of one node (`ray.init` is not counted), and with MosaicML
Streaming's `MDSWriter` and litdata's `optimize` (2 workers), which write in order. All take turns.
Then the cost of a row from 1e5 rows of 32 bytes on, and what Ray takes at three sizes, and a model.

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
PEER_TARGET, RAY_TARGET, FLAT_TARGET = 2.0, 0.3, 1.5
SMALL_BYTES = 32
# A cluster to say something about: nodes, cores, and the network of a node in bytes a second.
NODES, CORES, NETWORK = 100, 16, 1.25e9


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
        self.ray = test_ray.python_of()
        self.pythons = {name: test_formats.python_of(name) for name, _ in PEERS.values()}

    def source(self, kind: str, num_bytes: int) -> str:
        return str(run(self.ray, "pack_run.py", "make", kind, str(self.folder), str(num_bytes)))

    def ours(self, engine: str, workers: int, order: str, source: str) -> dict[str, float]:
        arguments = (engine, str(workers), order, source, str(self._out))
        return self._cleared(run(self.ray, "pack_run.py", "pack", *arguments))

    def theirs(self, name: str, workers: int, kind: str, source: str) -> dict[str, float]:
        arguments = (name, kind, source, str(self._out), str(workers))
        return self._cleared(run(self.pythons[name], "peer_pack.py", *arguments))

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
    rows: dict[str, dict[str, float]] = {}
    num_rows = 100_000
    while num_rows <= most_rows:
        source = bench.source("small", num_rows * SMALL_BYTES)
        found = [bench.ours("local", 2, "shuffle", source) for _ in range(min(3, repetitions))]
        rows[f"{num_rows}"] = measure.medians(found)
        os.remove(source)
        num_rows *= 10
    sizes = {}
    for part in (4, 2, 1):
        source = bench.source("texts", num_bytes // part)
        sizes[f"{num_bytes // part}"] = bench.ours("ray", 2, "shuffle", source)
        os.remove(source)
    return {
        "writers": {n: measure.medians(r) for n, r in runs.items()},
        "rows": rows,
        "sizes": sizes,
    }


def model(sizes: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return what a byte takes, from the largest size, and how far the others are from that."""
    by_size = {int(size): found for size, found in sizes.items()}
    largest = by_size[max(by_size)]
    per_byte = {n: largest[n] / max(by_size) for n in ("seconds", "disk", "sent", "got")}
    off = {
        name: max(abs(found[name] / size / per_byte[name] - 1) for size, found in by_size.items())
        for name in ("disk", "sent", "got")
    }
    return {"per_byte": per_byte, "off": off, "memory": max(f["memory"] for f in by_size.values())}


def report(figures: dict[str, Any], num_bytes: int, repetitions: int) -> tuple[str, list[Any]]:
    writers, checks, rows = figures["writers"], [], []
    for name, found in writers.items():
        kind = name.partition(",")[0]
        num_rows = next(f["rows"] for n, f in writers.items() if n.startswith(kind) and "rows" in f)
        rate = f"{num_rows / found['seconds']:,.0f} rows/s"
        speed = f"{num_bytes / found['seconds'] / 2**20:,.0f} MiB/s"
        memory = measure.show_bytes(found["memory"]) if "memory" in found else ""
        rows.append([name, measure.show_time(found["seconds"]), rate, speed, memory])
    for kind in KINDS:
        ours = min(
            writers[f"{kind}, in order, local, {n}"]["seconds"] for n in ("1 worker", "2 workers")
        )
        for name in PEERS:
            times = writers[f"{kind}, in order, {name}"]["seconds"] / ours
            checks.append((f"{kind}: {times:.1f}x {name} ({PEER_TARGET:g})", times >= PEER_TARGET))
        for order in ORDERS:
            ray, local = (
                writers[f"{kind}, {order}, {name}, 2 workers"]["seconds"]
                for name in ("Ray", "local")
            )
            text = f"{kind}, {order}: Ray takes {ray / local - 1:+.0%} ({RAY_TARGET:+.0%})"
            checks.append((text, ray / local - 1 <= RAY_TARGET))
    costs = {int(n): found["seconds"] / int(n) for n, found in figures["rows"].items()}
    shown = [[f"{n:,} rows", measure.show_time(cost)] for n, cost in costs.items()]
    growth = costs[max(costs)] / min(costs.values())
    text = f"a row costs {growth:.2f}x at {max(costs):,} rows of the least ({FLAT_TARGET:g})"
    checks.append((text, growth <= FLAT_TARGET))
    found = model(figures["sizes"])
    per = found["per_byte"]
    sizes = [
        [
            measure.show_bytes(int(size)),
            *(measure.show_bytes(f[n]) for n in ("memory", "disk", "got", "sent")),
        ]
        for size, f in figures["sizes"].items()
    ]
    off = max(found["off"].values())
    checks.append((f"the model is off by {off:.0%} at the other sizes (15%)", off <= 0.15))
    flow = 1e12 * (per["got"] + per["sent"]) / NODES
    work = 1e12 * per["seconds"] * 2 / (NODES * CORES)
    lines = [
        "# Packing",
        f"{measure.show_bytes(num_bytes)} a run; medians of {repetitions} alternating repetitions; "
        f"{measure.machine()}, {os.cpu_count()} cores.",
        measure.table(["", "time", "rows", "bytes", "memory of a process"], rows),
        "A row of 32 bytes, shuffled on this machine:",
        measure.table(["", "cost of a row"], shown),
        "Texts shuffled by Ray; read and written are the bytes of all files, on shared storage:",
        measure.table(["input", "memory of a worker", "temporary disk", "read", "written"], sizes),
        f"From this, a terabyte of texts on {NODES} nodes of {CORES} cores would take "
        f"{measure.show_bytes(found['memory'])} of memory a task, {per['disk']:.2f} TB of "
        f"temporary disk, {per['got']:.2f} TB of reading and {per['sent']:.2f} TB of writing: "
        f"{flow / 1e9:.0f} GB through each node, {flow / NETWORK:.0f} s at 10 Gbit/s, and "
        f"{work:.0f} s of work on {NODES * CORES} cores.",
    ]
    return "\n\n".join(lines), checks


def main() -> int:
    told = [int(text) for text in sys.argv[1:]]
    num_bytes, repetitions, most_rows = (*told, *(2**31, 7, 10**8)[len(told) :])
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_all(Bench(Path(folder)), num_bytes, repetitions, most_rows)
    text, checks = report(figures, num_bytes, repetitions)
    return measure.finish("pack", text, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
