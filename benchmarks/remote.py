"""Data in object storage: our loader beside obstore alone, and beside other streaming loaders.

nginx is the bucket, on this machine; before it stands a proxy that lets every request wait for
20 ms and all together have 400 MiB/s. 1 GiB of rows of 4 KiB, in files of 16 MiB, in batches of
512, shuffled in windows of 4 chunks; every reader is a process of its own, and readers alternate.

- `cold`: an epoch with an empty cache, from opening to the last batch, beside obstore alone, which
  gets the same files with as many requests at a time and throws them away; and beside obstore that
  computes a CRC-32 of them and writes them to files, as a cache has to: what can be had; no bar;
- `warm`: epochs with all files in the cache, after the first batch, beside the folder on disk;
- `resume`: the time to a batch at 90% of an epoch, with an empty cache, and the bytes until the end
  of the epoch beside those of the chunks that come next;
- `nodes`: the bytes that each of several nodes gets in an epoch, beside those of the chunks that it
  reads;
- MosaicML Streaming and litdata, on the same server, with files that they wrote, without workers
  and with two, the better of which counts.

Run it with `make bench-remote`; it needs nginx. The last results lie in `results/remote.md`.
`remote.py --try` runs it all once on little data, and keeps no results.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
from remote_data import BATCH_SIZE, IS_TRIAL, NUM_ROWS, ROW_BYTES, SHARD_BYTES, row
from remote_servers import FaultProxy, client_environment, fault_proxy, nginx, nginx_path

import feedline
from feedline.store.manifest import MANIFEST_NAME

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

REPETITIONS = 1 if IS_TRIAL else 7
# Of the others, which take minutes each and are far from the bars.
PEER_REPETITIONS = 1
LATENCY = 0.02
RATE = 400 * 2**20
NODES = (1, 2, 7)
PEERS = ("mds", "litdata")
WORKERS = (0, 2)
SHARE_COLD, SHARE_WARM, MOST_BYTES = 0.8, 0.95, 1.05
TIMES_COLD, TIMES_RESUME = 2.0, 10.0


@dataclass
class Bench:
    """The servers, the folders, and the environments of peers that could be made."""

    root: Path
    work: Path
    proxy: FaultProxy
    pythons: dict[str, str]
    runs: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def note(self, name: str, found: dict[str, float]) -> None:
        """Keep the figures of one repetition."""
        self.runs.setdefault(name, []).append(found)

    def url(self, name: str) -> str:
        return f"s3://bucket/{name}"

    def fresh(self, name: str) -> str:
        """Return a folder for a cache, which is empty."""
        path = self.work / f"cache-{name}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return str(path)

    def run(self, python: str, script: str, *arguments: str) -> dict[str, Any]:
        """Run a script that prints a line of JSON, and return that."""
        command = [python, str(HERE / script), *arguments]
        environment = client_environment(self.proxy.url)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise SystemExit(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
        result: dict[str, Any] = json.loads(lines[-1])
        return result

    def read(self, *arguments: str) -> dict[str, Any]:
        """Run one of our readers."""
        return self.run(sys.executable, "remote_reading.py", *arguments)

    def num_bytes_of(self, chunks: list[int]) -> int:
        """Return the bytes of some chunks' files, and of the manifest."""
        store = feedline.open(self.root / "packed")
        files = sorted((self.root / "packed").glob("chunk-*"))
        assert len(files) == len(store.chunk_sizes)
        manifest = self.root / "packed" / MANIFEST_NAME
        return sum(files[chunk].stat().st_size for chunk in chunks) + manifest.stat().st_size


def make_data(root: Path, pythons: dict[str, str]) -> None:
    """Write the rows as each loader wants them."""
    rows = np.frombuffer(b"".join(map(row, range(NUM_ROWS))), np.uint8).reshape(-1, ROW_BYTES)
    feedline.pack({"x": rows}, root / "packed", chunk_samples=SHARD_BYTES // ROW_BYTES)
    for name, python in pythons.items():
        (root / name).mkdir()
        script = str(HERE / f"peer_{name}.py")
        subprocess.run([python, script, "write", str(root / name)], check=True, capture_output=True)


def measure_ours(bench: Bench) -> None:
    """Run our readers once."""
    packed, local = bench.url("packed"), str(bench.root / "packed")
    cache = bench.fresh("ours")
    bench.proxy.forget()
    bench.note("cold", bench.read("epoch", packed, cache))
    # As many requests at a time, of as many bytes.
    like = (bench.proxy.most_at_once, max(seen.num_bytes for seen in bench.proxy.seen))
    like_ours = (packed, local, *map(str, like))
    bench.note("obstore alone", bench.read("obstore", *like_ours))
    bench.note("obstore, CRC-32, files", bench.read("kept", *like_ours, bench.fresh("kept")))
    bench.note("warm", bench.read("steady", packed, cache))
    bench.note("local folder", bench.read("steady", local, ""))
    saved = json.dumps(bench.read("state", packed, cache))
    cache = bench.fresh("ours")
    bench.proxy.forget()
    found = bench.read("resume", packed, cache, saved)
    needed = bench.num_bytes_of(found["chunks"])
    bench.note("resume", {"resume": found["resume"], "bytes": bench.proxy.num_bytes / needed})


def measure_peers(bench: Bench) -> None:
    """Run the readers of others once."""
    for name, python in bench.pythons.items():
        for num_workers in WORKERS:
            run = partial(bench.run, python, "remote_peer.py", name, str(num_workers))
            url, cache = bench.url(name), bench.fresh("theirs")
            found = run("epoch", url, cache)
            saved = json.dumps(found.pop("state"))
            found |= run("resume", url, bench.fresh("theirs"), saved)
            bench.note(f"{name}, {num_workers} workers", found)


def measure_nodes(bench: Bench) -> None:
    """Note the most that a node gets, of what it reads; once, as it has no chance in it."""
    bench.proxy.set(latency=0, bytes_per_second=0)
    for num_nodes in NODES:
        shares = []
        for number in range(num_nodes):
            cache = bench.fresh("ours")
            bench.proxy.forget()
            read = bench.read("node", bench.url("packed"), cache, str(num_nodes), str(number))
            shares.append(bench.proxy.num_bytes / bench.num_bytes_of(read["chunks"]))
        bench.note(f"nodes, {num_nodes}", {"bytes": max(shares)})


def measure_all(folder: Path, pythons: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return the median figures of every reader."""
    root, work = folder / "root", folder / "work"
    (root / "bucket").mkdir(parents=True)
    work.mkdir()
    make_data(root / "bucket", pythons)
    with nginx(root, work) as url, fault_proxy(url) as proxy:
        bench = Bench(root / "bucket", work, proxy, pythons)
        proxy.set(latency=LATENCY, bytes_per_second=RATE)
        for number in range(REPETITIONS):
            measure_ours(bench)
            if number < PEER_REPETITIONS:
                measure_peers(bench)
        measure_nodes(bench)
    return {name: measure.medians(found) for name, found in bench.runs.items()}


def report(figures: dict[str, dict[str, float]]) -> tuple[str, list[tuple[str, bool]]]:
    """Return the report, and the targets with whether they are met."""
    cold, warm = figures["cold"]["rate"], figures["warm"]["rate"]
    alone, local = figures["obstore alone"]["rate"], figures["local folder"]["rate"]
    resume = figures["resume"]
    checks = [
        share_check("cold", "obstore alone", cold / alone, SHARE_COLD),
        share_check("warm", "the local folder", warm / local, SHARE_WARM),
        bytes_check("resume: bytes", "the chunks that come next", resume["bytes"]),
    ]
    for num_nodes in NODES:
        found = figures[f"nodes, {num_nodes}"]["bytes"]
        nodes = "1 node" if num_nodes == 1 else f"each of {num_nodes} nodes"
        checks.append(bytes_check(f"{nodes}: bytes", "the chunks it reads", found))
    for name in PEERS:
        theirs = [
            figures[f"{name}, {n} workers"] for n in WORKERS if f"{name}, {n} workers" in figures
        ]
        if not theirs:
            continue
        rate = cold / max(found["rate"] for found in theirs)
        speed = min(found["resume"] for found in theirs) / resume["resume"]
        checks.append((f"cold: {rate:.1f}x {name} ({TIMES_COLD:g})", rate >= TIMES_COLD))
        checks.append((f"resume: {speed:.1f}x {name} ({TIMES_RESUME:g})", speed >= TIMES_RESUME))
    able = figures["obstore, CRC-32, files"]["rate"]
    shows = {"rate": show_rate, "first": measure.show_time, "resume": measure.show_time}
    shows["bytes"] = lambda value: f"{value:.3f}"
    rows = [
        [name, *(show(found[key]) if key in found else "" for key, show in shows.items())]
        for name, found in figures.items()
    ]
    header = ["", "rate", "first batch", "resume at 90%", "bytes beside those needed"]
    size = measure.show_bytes(NUM_ROWS * ROW_BYTES)
    text = (
        f"# Data in object storage\n\n{size} in rows of 4 KiB and files of 16 MiB, batches of "
        f"{BATCH_SIZE}, from nginx on the same machine through a proxy with {LATENCY * 1000:g} ms "
        f"of latency and {RATE / 2**20:g} MiB/s. Medians of {REPETITIONS} alternating repetitions "
        f"(MosaicML Streaming and litdata: {PEER_REPETITIONS}); {measure.machine()}, "
        f"{len(os.sched_getaffinity(0))} cores.\n\n"
        f"{measure.table(header, rows)}\n\n"
        "The servers have the same cores as the readers. obstore alone throws away what it gets; "
        f"with a CRC-32 and files it has {able / alone:.0%} of that, and feedline "
        f"{cold / able:.0%} of this."
    )
    return text, checks


def share_check(name: str, of: str, share: float, least: float) -> tuple[str, bool]:
    return f"{name}: {share:.0%} of {of} ({least:.0%})", share >= least


def bytes_check(name: str, of: str, found: float) -> tuple[str, bool]:
    return f"{name}: {found:.3f} of {of} ({MOST_BYTES:g})", found <= MOST_BYTES


def show_rate(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB/s"


def peers() -> dict[str, str]:
    """Return the interpreters of the peers' environments, made if need be."""
    from test_formats import python_with

    return {name: python_with(name) for name in PEERS}


def main() -> int:
    # Before all the data is written.
    nginx_path()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_all(Path(folder), peers())
    text, checks = report(figures)
    if IS_TRIAL:
        print(text, *(f"{'met' if met else 'MISSED'}: {line}" for line, met in checks), sep="\n")
        return 0
    return measure.finish("remote", text, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
