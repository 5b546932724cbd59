"""Batches that arrive on a GPU, beside torch's loader and beside the link itself.

Rows of 1, 4 and 64 KiB and images, in mapped `.npy` files in the page cache. For each: the link
(pinned memory copied in a loop), `DataLoader(store, device="cuda")` in windows of two chunks and in
a full shuffle, and torch's loader over the same files as a map-style dataset, item by item and in
whole batches, pinned, copied without blocking, with the number of workers that does best. A figure
is the median of seven repetitions of a second or so, and what is compared alternates.

Besides, at 4 KiB:

- Threads: `feedline.DataLoader`, without a device, with one thread and with eight; and rows taken
  by as many threads with nothing but numpy, which is what the machine can do: into one piece of
  memory each, which stays in the caches, and into two in turn, which do not. With one thread, the
  training loop's own thread reads too instead of waiting; without one, it reads alone.
- Consumer: what `next` costs the training loop for a batch, while nothing has to be waited for.
- Training: a step of a small model, sized to consume some 9 GiB/s, on batches from the loader, from
  torch's, and on a tensor that is on the GPU already. Steps in the middle of an epoch are timed.

Run it on a machine with a GPU, from the root of the project, with torch and numpy:
`PYTHONPATH=src python benchmarks/device.py`. The last results lie in `results/device.md`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
import numpy as np
import torch
from device_data import ROWS, Rows, torch_loader, write

import feedline
from feedline.torch import DataLoader

REPETITIONS = 7
SECONDS = 0.8
GIB = 2**30
COLUMN = "data"
DEVICE = "cuda"


def rate(batches: Any, row_bytes: int, seconds: float = SECONDS) -> float:
    """Return the GiB/s that arrive on the device, epoch after epoch until the time is over."""
    num_rows, start = 0, perf_counter()
    while perf_counter() - start < seconds:
        for batch in batches:
            num_rows += len(batch)
            if perf_counter() - start > seconds:
                break
    torch.cuda.synchronize()
    return num_rows * row_bytes / GIB / (perf_counter() - start)


class Column:
    """The only column of the batches of a loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return (batch[COLUMN] for batch in self.loader)


class Moved:
    """The batches of torch's loader, copied to the device without blocking."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return (batch.to(DEVICE, non_blocking=True) for batch in self.loader)


def link_rate() -> float:
    """Return the GiB/s of pinned memory copied in a loop."""
    source = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=DEVICE)
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    start, count = perf_counter(), 200
    for _ in range(count):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return count * len(source) / GIB / (perf_counter() - start)


def alternated(actions: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of each figure, measured in turn."""
    runs: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(REPETITIONS):
        for name, action in actions.items():
            runs[name].append(action())
    return {name: statistics.median(found) for name, found in runs.items()}


def best_torch(folder: Path, rows: Rows, *, is_whole: bool) -> tuple[Any, int]:
    """Return torch's loader with the number of workers that does best."""
    found = []
    for num_workers in (0, 8, 14):
        loader = Moved(torch_loader(folder, rows, is_whole=is_whole, num_workers=num_workers))
        rate(loader, rows.row_bytes, 0.3)
        found.append((rate(loader, rows.row_bytes, 0.7), num_workers, loader))
    best = max(found, key=lambda one: one[0])
    return best[2], best[1]


def of_rows(folder: Path, rows: Rows) -> dict[str, float]:
    """Return the figures of one kind of rows."""
    store = feedline.open(folder)
    loaders = {
        f"{rows.name}, {name}": Column(
            DataLoader(store, rows.batch_size, shuffle=True, window=window, device=DEVICE)
        )
        for name, window in (("windows", "2 chunks"), ("shuffle", None))
    }
    actions: dict[str, Callable[[], float]] = {f"{rows.name}, link": link_rate}
    for name, loader in loaders.items():
        rate(loader, rows.row_bytes, 1.5)
        actions[name] = lambda loader=loader: rate(loader, rows.row_bytes)
    for name, is_whole in (("torch, items", False), ("torch, whole batches", True)):
        loader, num_workers = best_torch(folder, rows, is_whole=is_whole)
        print(f"{rows.name}: {name} does best with {num_workers} workers", flush=True)
        actions[f"{rows.name}, {name}"] = lambda loader=loader: rate(loader, rows.row_bytes)
    return alternated(actions)


def of_threads(folder: Path, rows: Rows) -> dict[str, float]:
    """Return the GiB/s without a device, with one thread and with eight."""
    store = feedline.open(folder)
    actions: dict[str, Callable[[], float]] = {}
    for num_threads in (1, 8):
        for name, window in (("windows", "2 chunks"), ("shuffle", None)):
            loader = Column(
                feedline.DataLoader(
                    store, rows.batch_size, shuffle=True, window=window, num_threads=num_threads
                )
            )
            label = f"no device, {name}, {num_threads} thread" + "s" * (num_threads > 1)
            actions[label] = lambda loader=loader: rate(loader, rows.row_bytes)
        for name, num_outputs in (("numpy alone", 1), ("numpy into a ring", 2)):
            label = f"{name}, {num_threads} thread" + "s" * (num_threads > 1)
            actions[label] = lambda count=num_threads, outputs=num_outputs: taken(
                folder, rows, count, outputs
            )
    actions["no device, shuffle, no thread"] = lambda: rate(
        Column(feedline.DataLoader(store, rows.batch_size, shuffle=True, num_threads=0)),
        rows.row_bytes,
    )
    return alternated(actions)


def taken(folder: Path, rows: Rows, num_threads: int, num_outputs: int) -> float:
    """Return the GiB/s of rows that threads take from the mapped files with numpy alone.

    Each writes to `num_outputs` pieces of 16 MiB in turn. With one, these stay in the caches; a
    loader needs more, since some wait for the loop while others are written.
    """
    item = np.dtype((np.void, rows.row_bytes))
    files = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
    chunks = [array.reshape(-1).view(item) for array in files]
    count = 2**24 // rows.row_bytes
    end = perf_counter() + SECONDS

    def take(number: int) -> int:
        generator = np.random.default_rng(number)
        outputs = [np.zeros(count, item) for _ in range(num_outputs)]
        chosen = [generator.integers(0, rows.chunk_rows, count) for _ in range(8)]
        num_taken = 0
        while perf_counter() < end:
            chunk = chunks[(7 * number + num_taken) % len(chunks)]
            out = outputs[num_taken % num_outputs]
            chunk.take(chosen[num_taken % 8], out=out, mode="clip")
            num_taken += 1
        return num_taken

    start = perf_counter()
    with ThreadPoolExecutor(num_threads) as threads:
        total = sum(threads.map(take, range(num_threads)))
    return total * count * rows.row_bytes / GIB / (perf_counter() - start)


def consumer_cost(folder: Path, rows: Rows) -> dict[str, float]:
    """Return the microseconds that `next` takes when the batch is there."""
    store = feedline.open(folder)
    loader = DataLoader(store, rows.batch_size, shuffle=True, device=DEVICE)
    costs = []
    for _ in range(REPETITIONS):
        batches = iter(loader)
        # Until all memory has been taken once.
        for _ in range(800):
            next(batches)
        spent = []
        for _ in range(1200):
            until = perf_counter() + 0.0008
            while perf_counter() < until:
                pass
            start = perf_counter()
            next(batches)
            spent.append(perf_counter() - start)
        # At first, what is read ahead grows while the loop works, until the ring is full.
        costs.append(statistics.mean(spent[400:]) * 1e6)
    return {"consumer, us a batch": statistics.median(costs)}


def training(folder: Path, rows: Rows) -> dict[str, float]:
    """Return the milliseconds of a step of a small model, fed in three ways."""
    batch_size, width = 8192, rows.shape[0]
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, 8192), torch.nn.ReLU()),
        *(torch.nn.Linear(8192, 4096), torch.nn.ReLU()),
        torch.nn.Linear(4096, 16),
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()

    def run(batches: Any, num_steps: int = 120) -> float:
        found = iter(batches)
        for batch in islice(found, 40):
            step(batch)
        torch.cuda.synchronize()
        start = perf_counter()
        for batch in islice(found, num_steps):
            step(batch)
        torch.cuda.synchronize()
        return (perf_counter() - start) / num_steps * 1e3

    larger = rows._replace(batch_size=batch_size)
    store = feedline.open(folder)
    # One of the same batches, since what a GPU computes decides how much power it takes.
    resident = next(iter(Column(DataLoader(store, batch_size, shuffle=True, device=DEVICE))))
    ways = {
        "a resident tensor": [resident] * 160,
        "windows": Column(
            DataLoader(store, batch_size, shuffle=True, window="2 chunks", device=DEVICE)
        ),
        "shuffle": Column(DataLoader(store, batch_size, shuffle=True, device=DEVICE)),
        "torch": best_torch(folder, larger, is_whole=True)[0],
    }
    for batches in ways.values():
        run(batches)
    # The clock of a GPU drifts by some percent, so each way is compared with a resident tensor
    # right before and right after it.
    alone, *fed = ways
    runs: dict[str, list[float]] = {name: [] for name in ways}
    ratios: dict[str, list[float]] = {name: [] for name in fed}
    for _ in range(REPETITIONS):
        runs[alone].append(run(ways[alone]))
        for name in fed:
            before = runs[alone][-1]
            runs[name].append(run(ways[name]))
            runs[alone].append(run(ways[alone]))
            ratios[name].append(2 * runs[name][-1] / (before + runs[alone][-1]))
    found = {f"step, {name}, ms": statistics.median(times) for name, times in runs.items()}
    for name, times in ratios.items():
        found[f"step, {name}, to resident"] = statistics.median(times)
    found["step, GiB/s"] = batch_size * rows.row_bytes / GIB / found["step, a resident tensor, ms"]
    found["step, GiB/s"] *= 1e3
    return found


def main() -> int:
    figures: dict[str, float] = {}
    wanted = sys.argv[1:] or [rows.name for rows in ROWS]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as parent:
        for rows in ROWS:
            if rows.name not in wanted:
                continue
            folder = write(Path(parent), rows)
            figures |= of_rows(folder, rows)
            if rows.name == "4 KiB":
                figures |= of_threads(folder, rows)
                figures |= consumer_cost(folder, rows)
                figures |= training(folder, rows)
            shutil.rmtree(folder)
            for name, figure in figures.items():
                print(f"{name}: {figure:.4g}", flush=True)
    if len(wanted) < len(ROWS):
        return 0
    text, checks = report(figures)
    return measure.finish("device", text, figures, checks)


def report(figures: dict[str, float]) -> tuple[str, list[tuple[str, bool]]]:
    lines, checks = [], []
    least = {"1 KiB": 10.0, "4 KiB": 20.0, "64 KiB": 0.0, "images": 25.0}
    for rows in ROWS:
        found = {
            name: figures[f"{rows.name}, {name}"]
            for name in ("link", "windows", "shuffle", "torch, items", "torch, whole batches")
        }
        lines.append([rows.name, *(f"{value:.2f}" for value in found.values())])
        windows = found["windows"]
        bound = least[rows.name] or 0.6 * found["link"]
        checks.append(
            (f"{rows.name}, windows: {windows:.1f} GiB/s ({bound:.1f})", windows >= bound)
        )
        if rows.name == "4 KiB":
            shuffle = found["shuffle"]
            checks.append((f"4 KiB, shuffle: {shuffle:.1f} GiB/s (12)", shuffle >= 12))
        for name in ("windows", "shuffle"):
            for beside, target in (("torch, items", 8), ("torch, whole batches", 5)):
                ratio = found[name] / found[beside]
                text = f"{rows.name}, {name}: {ratio:.1f}x {beside} ({target})"
                checks.append((text, ratio >= target))
    for name in ("windows", "shuffle"):
        one, eight = (figures[f"no device, {name}, {n}"] for n in ("1 thread", "8 threads"))
        lines.append([f"no device, {name}: 1 / 8 threads", f"{one:.2f} / {eight:.2f}"] + [""] * 4)
        limit = figures["numpy alone, 8 threads"] / one
        ring = figures["numpy into a ring, 8 threads"] / one
        text = (
            f"no device, {name}: 8 threads {eight / one:.1f}x one, numpy alone {limit:.1f}x, "
            f"numpy into a ring {ring:.1f}x (4)"
        )
        checks.append((text, eight >= 4 * one))
        share = figures[f"step, {name}, to resident"]
        checks.append(
            (f"a training step, {name}: {share:.3f}x a resident tensor (1.01)", share <= 1.01)
        )
    for way in ("numpy alone", "numpy into a ring"):
        found = " / ".join(f"{figures[f'{way}, {n}']:.2f}" for n in ("1 thread", "8 threads"))
        lines.append([f"{way}: 1 / 8 threads", found] + [""] * 4)
    loop = figures["no device, shuffle, no thread"]
    lines.append(["no device, shuffle: the loop alone", f"{loop:.2f}"] + [""] * 4)
    cost = figures["consumer, us a batch"]
    checks.append((f"the consumer: {cost:.1f} µs a batch (20)", cost <= 20))
    eaten = figures["step, GiB/s"]
    checks.append((f"the model consumes {eaten:.1f} GiB/s (8)", eaten >= 8))
    header = ["GiB/s", "link", "windows", "shuffle", "torch, items", "torch, whole batches"]
    steps = ", ".join(
        f"{name} {figures[f'step, {name}, ms']:.3f}"
        for name in ("a resident tensor", "windows", "shuffle", "torch")
    )
    text = (
        f"# Batches on a GPU\n\n{torch.cuda.get_device_name()}, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, numpy {np.__version__}; {measure.machine()}. Medians of "
        f"{REPETITIONS} alternating repetitions.\n\n{measure.table(header, lines)}\n\nA training "
        f"step in ms: {steps}. The consumer's own cost: {cost:.1f} µs a batch."
    )
    return text, checks


if __name__ == "__main__":
    sys.exit(main())
