"""A folder of chunks read lazily, beside a plain reader of the same folder.

About 2 GiB in 32 `.pt` chunks, three columns of 170 steps (4 KiB a sample), batches of 64 and 512,
on one rank. Beside `LazyFolderDataset` stand the reader in `plain_folder.py` and a bare `np.take`
of shuffled rows from RAM. Every figure comes from a process of its own, and readers alternate.

- Warm: an epoch with the files in the page cache, without workers and in two workers of torch's
  DataLoader; there it ends after four seconds.
- Cold: an epoch after the files were dropped from the page cache; beside both, reading the files
  from front to end.
- First batch: from making the dataset to the first batch, warm.
- Memory: the peak of anonymous memory above what it was before the dataset was made.

Run it with `make bench`; the last results lie in `results/folder.md`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import measure
import numpy as np
import torch
from plain_folder import PlainFolder
from torch.utils.data import DataLoader

from feedline.torch import FolderConfig, LazyFolderDataset

NUM_CHUNKS, CHUNK_SAMPLES, NUM_STEPS = 32, 16384, 170
NUM_COLUMNS = 3
SAMPLE_BYTES = NUM_COLUMNS * NUM_STEPS * 8
BATCHES = (64, 512)
REPETITIONS = 7
SECONDS_IN_WORKERS = 4.0
GIB = 2**30


def make_folder(folder: Path) -> None:
    """Write the chunks that all readers read."""
    files = []
    for number in range(NUM_CHUNKS):
        generator = torch.Generator().manual_seed(number)
        shape = (CHUNK_SAMPLES, NUM_STEPS)
        columns = [torch.randint(0, 30_000, shape, generator=generator) for _ in range(NUM_COLUMNS)]
        ids = torch.arange(CHUNK_SAMPLES)
        chunk = ({"item": columns[0], "user": columns[1]}, {"item": columns[2]}, ids, ids, ids)
        torch.save(chunk, folder / f"chunk-{number:03}.pt")
        files.append({"path": f"chunk-{number:03}.pt", "samples": CHUNK_SAMPLES})
    metadata = {"total_samples": NUM_CHUNKS * CHUNK_SAMPLES, "batch_files": files}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def dataset_of(reader: str, folder: Path, batch_size: int) -> Any:
    if reader == "plain":
        return PlainFolder(folder, batch_size, NUM_STEPS)
    return LazyFolderDataset(folder, FolderConfig(batch_size=batch_size, seq_length=NUM_STEPS))


def rate(batches: Any, limit: float) -> float:
    """Return GiB/s over an epoch, or until the time is over."""
    start = perf_counter()
    num_samples = 0
    for sequences, *_ in batches:
        num_samples += len(sequences["item"])
        if perf_counter() - start > limit:
            break
    return num_samples * SAMPLE_BYTES / GIB / (perf_counter() - start)


class AnonymousMemory:
    """Watches the peak of this process's anonymous memory while something runs."""

    def __enter__(self) -> AnonymousMemory:
        self.start = self.peak = measure.status("RssAnon")
        self._done = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, measure.status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.peak - self.start


def measure_reader(reader: str, folder: Path, batch_size: int) -> dict[str, float]:
    """Without workers: the first batch, then an epoch."""
    start = perf_counter()
    next(iter(dataset_of(reader, folder, batch_size)))
    first = perf_counter() - start
    return {"first": first, "rate": rate(dataset_of(reader, folder, batch_size), 60.0)}


def measure_memory(reader: str, folder: Path, batch_size: int) -> dict[str, float]:
    """Without workers: an epoch, watched."""
    with AnonymousMemory() as memory:
        rate(dataset_of(reader, folder, batch_size), 60.0)
    return {"growth": memory.growth}


def measure_workers(reader: str, folder: Path, batch_size: int) -> dict[str, float]:
    dataset = dataset_of(reader, folder, batch_size)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    return {"rate": rate(loader, SECONDS_IN_WORKERS)}


def measure_cold(reader: str, folder: Path, batch_size: int) -> dict[str, float]:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    if reader != "files":
        return {"rate": rate(dataset_of(reader, folder, batch_size), 60.0)}
    return {"rate": warm(folder)}


def measure_take(folder: Path, batch_size: int) -> dict[str, float]:
    """Gather shuffled rows from RAM, a new array for each column of each batch."""
    num_samples = NUM_CHUNKS * CHUNK_SAMPLES
    columns = [np.empty((num_samples, NUM_STEPS), np.int64) for _ in range(NUM_COLUMNS)]
    for column in columns:
        column[:] = np.arange(NUM_STEPS)
    order = np.random.default_rng(0).permutation(num_samples)
    start = perf_counter()
    for first in range(0, num_samples, batch_size):
        rows = order[first : first + batch_size]
        for column in columns:
            np.take(column, rows, axis=0)
    return {"rate": num_samples * SAMPLE_BYTES / GIB / (perf_counter() - start)}


def warm(folder: Path) -> float:
    """Read all files from front to end, so that they are in the page cache; return GiB/s."""
    buffer = bytearray(2**20)
    start, num_bytes = perf_counter(), 0
    for path in sorted(folder.glob("*.pt")):
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                num_bytes += count
    return num_bytes / GIB / (perf_counter() - start)


def one(kind: str, reader: str, folder: Path, batch_size: int) -> dict[str, float]:
    """One repetition, in a process of its own."""
    if kind == "take":
        return measure_take(folder, batch_size)
    if kind != "cold":
        warm(folder)
    functions = {
        "epoch": measure_reader,
        "workers": measure_workers,
        "cold": measure_cold,
        "memory": measure_memory,
    }
    return functions[kind](reader, folder, batch_size)


def measure_all(folder: Path, repetitions: int) -> dict[str, dict[str, float]]:
    """Return the median of every figure of every kind, reader and batch size."""
    cases = [(kind, r, b) for kind in KINDS for b in BATCHES for r in READERS]
    cases += [("take", "take", b) for b in BATCHES]
    cases += [("cold", reader, 512) for reader in (*READERS, "files")]
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(repetitions):
        for kind, reader, batch_size in cases:
            arguments = (kind, reader, str(folder), str(batch_size))
            found = measure.in_fresh_process(__file__, *arguments)
            runs.setdefault(f"{kind} {reader} {batch_size}", []).append(found)
    return {name: measure.medians(found) for name, found in runs.items()}


READERS = ("plain", "feedline")
KINDS = ("epoch", "workers", "memory")


def report(figures: dict[str, dict[str, float]]) -> tuple[str, list[tuple[str, bool]]]:
    rows, checks = [], []
    for batch_size in BATCHES:
        ours, plain, take = (
            figures[f"{kind} {batch_size}"]["rate"]
            for kind in ("epoch feedline", "epoch plain", "take take")
        )
        rows.append(
            [f"epoch, batch {batch_size}", *map(show, (ours, plain)), f"{ours / plain:.1f}x"]
        )
        checks.append(
            (f"batch {batch_size}: {ours / plain:.1f}x the plain reader (3)", ours >= 3 * plain)
        )
        rows.append(["… beside np.take", show(ours), show(take), f"{ours / take:.0%}"])
        checks.append(
            (f"batch {batch_size}: {ours / take:.0%} of np.take (75%)", ours >= 0.75 * take)
        )
        fast, slow = (figures[f"workers {r} {batch_size}"]["rate"] for r in ("feedline", "plain"))
        rows.append(
            [f"two workers, batch {batch_size}", show(fast), show(slow), f"{fast / slow:.1f}x"]
        )
        checks.append(
            (f"batch {batch_size}, 2 workers: {fast / slow:.1f}x (10)", fast >= 10 * slow)
        )
        first, later = (figures[f"epoch {r} {batch_size}"]["first"] for r in ("feedline", "plain"))
        times = [measure.show_time(value) for value in (first, later)]
        rows.append([f"first batch of {batch_size}", *times, f"{later / first:.0f}x"])
        checks.append(
            (f"batch {batch_size}: first batch {later / first:.0f}x sooner (5)", later >= 5 * first)
        )
        grown, much = (figures[f"memory {r} {batch_size}"]["growth"] for r in ("feedline", "plain"))
        sizes = [measure.show_bytes(value) for value in (grown, much)]
        rows.append([f"anonymous memory, batch {batch_size}", *sizes, f"{much / grown:.0f}x less"])
        checks.append(
            (f"batch {batch_size}: memory grows by {sizes[0]} (64 MiB)", grown < 64 * 2**20)
        )
    ours, plain, files = (figures[f"cold {r} 512"]["rate"] for r in (*reversed(READERS), "files"))
    rows.append(["cold, batch 512", show(ours), show(plain), f"{ours / plain:.1f}x"])
    rows.append(["… beside reading the files", show(ours), show(files), f"{ours / files:.0%}"])
    checks.append(
        (
            f"cold: {ours / plain:.1f}x the plain reader (2), or {ours / files:.0%} of reading the "
            "files (80%)",
            ours >= 2 * plain or ours >= 0.8 * files,
        )
    )
    table = measure.table(["", "feedline", "beside it", ""], rows)
    size = NUM_CHUNKS * CHUNK_SAMPLES * SAMPLE_BYTES / GIB
    text = (
        f"# A folder read lazily\n\n{size:.2f} GiB in {NUM_CHUNKS} chunks, {SAMPLE_BYTES} bytes a "
        f"sample. Medians of {REPETITIONS} alternating repetitions; {measure.machine()}, "
        f"{os.cpu_count()} cores.\n\n{table}"
    )
    return text, checks


def show(value: float) -> str:
    return f"{value:.2f} GiB/s"


def main() -> int:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        make_folder(folder)
        figures = measure_all(folder, REPETITIONS)
    text, checks = report(figures)
    return measure.finish("folder", text, figures, checks)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        kind, reader, folder, batch_size = sys.argv[1:]
        print(json.dumps(one(kind, reader, Path(folder), int(batch_size))))
    else:
        sys.exit(main())
