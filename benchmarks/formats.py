"""Data that others wrote, in our reader beside the format's own library: the same files.

100,000 rows of 4 KiB, shuffled, in batches of 512, as `bytes`. Each library writes its files and
reads them in an environment of its own, as `make test-formats` makes it; readers alternate, each in
a process of its own that reads for a second. A resume is at 90% of an epoch; a library without a
state goes through all batches before it.

`lists` is our own: lists of 500 int32 on average, beside fixed rows of as many bytes.

`limits` are numpy's own, of one thread and with no loader around it: rows of 4 KiB copied from
random places of the files of Hugging Face, by `take` into memory that is used again; these made
into `bytes` by `tolist`; and rows made into `bytes` where they lie, which our reader does too.

Run it with `make bench`; the last results lie in `results/formats.md`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
import numpy as np
from format_data import BATCH_SIZE, BY_FAR, NUM_ROWS, ROW_BYTES, SECONDS, TARGETS, WORKERS
from peer_timing import first_batch, rate

import feedline
from feedline.torch import DataLoader

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

REPETITIONS = 7
WHO = ("ours", "theirs")
LIST_LENGTH = 500
LIST_TARGET = 0.5


def loader_of(folder: Path, num_workers: int) -> Any:
    return DataLoader(feedline.open(folder), BATCH_SIZE, shuffle=True, num_workers=num_workers)


def columns_of(folder: Path, num_workers: int) -> Iterator[Any]:
    """Yield the rows of each batch."""
    for batch in loader_of(folder, num_workers):
        yield next(iter(batch.values()))


def ours(folder: Path, num_workers: int) -> dict[str, float]:
    """One repetition of our reader, in a process of its own."""
    batches = partial(columns_of, folder, num_workers)
    found = {"first": first_batch(batches), "rate": rate(batches)}
    before = loader_of(folder, 0)
    for number, _ in enumerate(before, 1):
        if number == NUM_ROWS * 9 // 10 // BATCH_SIZE:
            break
    state = before.state_dict()
    start = perf_counter()
    resumed = loader_of(folder, num_workers)
    resumed.load_state_dict(state)
    next(iter(resumed))
    return {**found, "resume": perf_counter() - start}


def lists(kind: str, folder: Path) -> dict[str, float]:
    """One repetition of our loader over lists, or over rows of as many bytes: bytes a second."""
    loader = feedline.DataLoader(feedline.open(folder / kind), BATCH_SIZE, shuffle=True)
    start, count = perf_counter(), 0
    for batch in loader:
        values = batch["x"]
        count += values.nbytes if kind == "fixed" else values.values.nbytes
        if perf_counter() - start > SECONDS:
            break
    return {"rate": count / (perf_counter() - start)}


def limits(folder: Path) -> dict[str, float]:
    """One repetition of numpy alone, on the files of Hugging Face: rows a second."""
    paths = sorted(folder.glob("*.arrow"))
    sizes = [path.stat().st_size // ROW_BYTES for path in paths]
    rows = f"V{ROW_BYTES}"
    files = [
        np.memmap(path, rows, "r", shape=size) for path, size in zip(paths, sizes, strict=True)
    ]
    out = np.empty(BATCH_SIZE, files[0].dtype)
    rng = np.random.default_rng()
    found: dict[str, float] = {}
    for name in ("copied", "as bytes", "as bytes in place"):
        start, count = perf_counter(), 0
        batch: list[bytes] = []
        while perf_counter() - start < SECONDS:
            file = files[count // BATCH_SIZE % len(files)]
            chosen = rng.integers(0, len(file), BATCH_SIZE)
            if name == "as bytes in place":
                batch = [file.item(number) for number in chosen.tolist()]
            else:
                file.take(chosen, out=out, mode="clip")
            if name == "as bytes":
                batch = out.tolist()
            count += BATCH_SIZE
        assert name == "copied" or len(batch) == BATCH_SIZE
        found[name] = count / (perf_counter() - start)
    return found


def make_lists(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 2 * LIST_LENGTH + 1, NUM_ROWS)
    values = np.arange(int(lengths.sum()), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    columns: dict[str, Any] = {"x": feedline.store.Lists(values, offsets)}
    feedline.pack(columns, folder / "lists", format="npy")
    rows = np.arange(NUM_ROWS * LIST_LENGTH, dtype=np.int32).reshape(NUM_ROWS, LIST_LENGTH)
    feedline.pack({"x": rows}, folder / "fixed", format="npy")


def peer(python: str, name: str, *arguments: str) -> dict[str, float]:
    """Run the script of a library in its environment; return the figures it prints, if any."""
    script = str(Path(__file__).parent / f"peer_{name}.py")
    done = subprocess.run([python, script, *arguments], check=True, capture_output=True, text=True)
    found: dict[str, float] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            found = json.loads(line)
    return found


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    """Return the median figures of every reader and number of workers."""
    from test_formats import python_with

    runs: dict[str, list[dict[str, float]]] = {}
    pythons = {name: python_with(name) for name in TARGETS}
    for name, python in pythons.items():
        (folder / name).mkdir()
        peer(python, name, "write", str(folder / name))
    make_lists(folder)
    for repetition in range(REPETITIONS):
        for name, python in pythons.items():
            for num_workers in WORKERS:
                arguments = ("read", str(folder / name), str(num_workers))
                # Going through an epoch takes some libraries half a minute, so it is done once.
                more = ("resume",) if repetition == 0 else ()
                theirs = peer(python, name, *arguments, *more)
                of_us = measure.in_fresh_process(__file__, name, *arguments[1:])
                runs.setdefault(f"{name}, {num_workers} workers, theirs", []).append(theirs)
                runs.setdefault(f"{name}, {num_workers} workers, ours", []).append(of_us)
        runs.setdefault("limits", []).append(
            measure.in_fresh_process(__file__, "limits", str(folder / "huggingface"))
        )
        for kind in ("lists", "fixed"):
            found = measure.in_fresh_process(__file__, kind, str(folder))
            runs.setdefault(kind, []).append(found)
    return {name: _medians(found) for name, found in runs.items()}


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    resumes = [run["resume"] for run in runs if "resume" in run]
    plain = [{name: run[name] for name in run if name != "resume"} for run in runs]
    middle = {"resume": statistics.median(resumes)} if resumes else {}
    return measure.medians(plain) | middle


def report(figures: dict[str, dict[str, float]]) -> tuple[str, list[tuple[str, bool]]]:
    rows, checks = [], []
    for name, target in TARGETS.items():
        best = {who: max(_rate(figures, name, w, who) for w in WORKERS) for who in WHO}
        for num_workers in WORKERS:
            start = f"{name}, {num_workers} workers"
            for who in WHO:
                found = figures[f"{start}, {who}"]
                cells = [f"{found['rate']:,.0f} rows/s", *map(measure.show_time, _times(found))]
                rows.append([f"{start}, {who}", *cells])
            times = _rate(figures, name, num_workers, "ours") / _rate(
                figures, name, num_workers, "theirs"
            )
            checks.append((f"{start}: {times:.1f}x its own ({target:g})", times >= target))
        if target < BY_FAR:
            times = best["ours"] / best["theirs"]
            text = f"{name}: our best is {times:.1f}x its own best ({target:g})"
            checks.append((text, times >= target))
    for name, rate_of in figures["limits"].items():
        shown = f"{rate_of:,.0f} rows/s"
        rows.append([f"huggingface, rows of one thread of numpy {name}", shown, "", ""])
    share = figures["lists"]["rate"] / figures["fixed"]["rate"]
    speeds = [f"{figures[kind]['rate'] / 2**30:.2f} GiB/s" for kind in ("lists", "fixed")]
    rows += [
        ["lists of 500 int32 on average", speeds[0], "", ""],
        ["fixed rows", speeds[1], "", ""],
    ]
    checks.append((f"lists: {share:.0%} of fixed rows ({LIST_TARGET:.0%})", share >= LIST_TARGET))
    table = measure.table(["", "rate", "first batch", "resume at 90%"], rows)
    text = (
        f"# Data that others wrote\n\n{NUM_ROWS:,} rows of 4 KiB in batches of {BATCH_SIZE}, "
        f"shuffled. Medians of {REPETITIONS} alternating repetitions (resumes of the libraries: "
        f"one); {measure.machine()}, 2 cores.\n\n{table}"
    )
    return text, checks


def _rate(figures: dict[str, dict[str, float]], name: str, num_workers: int, who: str) -> float:
    return figures[f"{name}, {num_workers} workers, {who}"]["rate"]


def _times(found: dict[str, float]) -> tuple[float, float]:
    return found["first"], found["resume"]


def main() -> int:
    with tempfile.TemporaryDirectory() as parent:
        figures = measure_all(Path(parent))
    text, checks = report(figures)
    return measure.finish("formats", text, figures, checks)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    place = Path(sys.argv[2])
    if sys.argv[1] == "limits":
        print(json.dumps(limits(place)))
    elif sys.argv[1] in ("lists", "fixed"):
        print(json.dumps(lists(sys.argv[1], place)))
    else:
        print(json.dumps(ours(place, int(sys.argv[3]))))
