"""`feedline.torch.DataLoader` over a store, beside the lazy folder and torch's own loader.

The folder is that of `folder.py`: about 2 GiB in 32 `.pt` chunks, 4 KiB a sample. Every figure
comes from a process of its own that reads for two seconds, and readers alternate.

- `windows`: our loader over the store, shuffled in windows of as many chunks as the lazy folder's;
- `lazy folder`: our loader over `LazyFolderDataset`, without workers and in two;
- `shuffled`: our loader over the store, a sample from anywhere;
- `torch`: torch's loader over the same store as a map-style dataset, which fetches whole batches.

Run it with `make bench`; the last results lie in `results/store.md`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
import torch.utils.data as peer
from folder import GIB, NUM_CHUNKS, NUM_STEPS, SAMPLE_BYTES, make_folder, warm

import feedline
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset

BATCHES = (64, 512)
REPETITIONS = 7
SECONDS = 2.0
PRELOAD = 4
COLUMNS = ("sequences/item", "sequences/user", "targets/item")
READERS = {
    "windows": (0, 2),
    "lazy folder": (0, 2),
    "shuffled": (0,),
    "torch": (0,),
}


def batches_of(reader: str, folder: Path, batch_size: int, num_workers: int) -> Any:
    if reader == "lazy folder":
        config = FolderConfig(batch_size=batch_size, seq_length=NUM_STEPS, preload=PRELOAD)
        return DataLoader(LazyFolderDataset(folder, config), num_workers=num_workers)
    # The columns that the lazy folder delivers, so that all readers copy the same bytes.
    store: Any = feedline.open(folder, columns=COLUMNS)
    if reader == "torch":
        return peer.DataLoader(store, batch_size, shuffle=True, num_workers=num_workers)
    window = f"{PRELOAD} chunks" if reader == "windows" else None
    return DataLoader(store, batch_size, shuffle=True, window=window, num_workers=num_workers)


def rate(batches: Any) -> float:
    """Return GiB/s over an epoch, or until the time is over."""
    start = perf_counter()
    num_samples = 0
    for batch in batches:
        columns = batch[0] if isinstance(batch, tuple) else batch
        num_samples += len(next(iter(columns.values())))
        if perf_counter() - start > SECONDS:
            break
    return num_samples * SAMPLE_BYTES / GIB / (perf_counter() - start)


def one(reader: str, folder: Path, batch_size: int, num_workers: int) -> dict[str, float]:
    """One repetition, in a process of its own."""
    warm(folder)
    return {"rate": rate(batches_of(reader, folder, batch_size, num_workers))}


def measure_all(folder: Path) -> dict[str, float]:
    """Return the median rate of every reader, batch size and number of workers."""
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(REPETITIONS):
        for batch_size in BATCHES:
            for reader, workers in READERS.items():
                for num_workers in workers:
                    arguments = (reader, str(folder), str(batch_size), str(num_workers))
                    found = measure.in_fresh_process(__file__, *arguments)
                    name = f"{reader}, {num_workers} workers, batch {batch_size}"
                    runs.setdefault(name, []).append(found)
    return {name: measure.medians(found)["rate"] for name, found in runs.items()}


def report(figures: dict[str, float]) -> tuple[str, list[tuple[str, bool]]]:
    rows, checks = [], []

    def compare(label: str, ours: str, other: str, target: float, beside: str) -> None:
        ratio = figures[ours] / figures[other]
        shown = [f"{figures[name]:.2f} GiB/s" for name in (ours, other)]
        rows.append([label, *shown, f"{ratio:.2f}x {beside}"])
        checks.append((f"{label}: {ratio:.2f}x {beside} ({target:g})", ratio >= target))

    for batch in BATCHES:
        for workers in (0, 2):
            end = f"{workers} workers, batch {batch}"
            names = (f"windows, {end}", f"lazy folder, {end}")
            compare(f"windows, {end}", *names, 1.0, "the lazy folder")
        end = f"0 workers, batch {batch}"
        names = (f"shuffled, {end}", f"torch, {end}")
        compare(f"shuffled, batch {batch}", *names, 5.0, "torch's loader")
    table = measure.table(["", "feedline", "beside it", ""], rows)
    text = (
        f"# A loader over a store\n\n2 GiB in {NUM_CHUNKS} chunks, {SAMPLE_BYTES} bytes a sample. "
        f"Medians of {REPETITIONS} alternating repetitions; {measure.machine()}, "
        f"{os.cpu_count()} cores.\n\n{table}"
    )
    return text, checks


def main() -> int:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        make_folder(folder)
        figures = measure_all(folder)
    text, checks = report(figures)
    return measure.finish("store", text, figures, checks)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
    else:
        sys.exit(main())
