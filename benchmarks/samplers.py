"""Samplers and loader beside torch's, as the lists and batches that a training loop takes.

At 1e7 samples, one rank of eight, batches of 32:

- `DistributedSampler` beside torch's, both through torch's BatchSampler;
- `SequentialBucketSampler` (8 buckets) and `MixtureSampler` (5 sources) beside plain statements of
  the same rules (`tests/support/plain_orders.py`), which are how the systems in use work;
- for each, a rank's whole epoch, and the batch after a resume at 90% (ours takes so little that a
  repetition is the median of five).

And the loader at batch 256 without workers, on a dataset of numpy rows that can return whole
batches: rows of 4 KiB and of 1 KiB, beside torch's loader item by item on the same rows, and beside
a bare `np.take`. Both loaders deliver tensors.

Run it with `make bench`; the last results lie in `results/samplers.md`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
import torch.utils.data as peer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from feedline.torch import DataLoader, DistributedSampler, MixtureSampler, SequentialBucketSampler
from plain_orders import plain_buckets, plain_mixture

NUM_SAMPLES, WORLD_SIZE, RANK, BATCH = 10**7, 8, 3, 32
REPETITIONS = 7
BUCKETS = [range(i * NUM_SAMPLES // 8, (i + 1) * NUM_SAMPLES // 8) for i in range(8)]
SIZES, WEIGHTS = [NUM_SAMPLES // 5] * 5, [5.0, 4.0, 3.0, 2.0, 1.0]
EDGES = [0, *accumulate(SIZES)]


class Buckets:
    """A dataset with eight buckets."""

    def __init__(self) -> None:
        self.calculator = None
        self.bucket_groups = {
            i: {"indices": indices, "resolution": (64, 64), "aspect_name": "square"}
            for i, indices in enumerate(BUCKETS)
        }
        self.sorted_bucket_keys = list(range(8))


def consume(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def cut(indices: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(indices) - BATCH + 1, BATCH):
        yield indices[start : start + BATCH]


def our_distributed() -> Any:
    return DistributedSampler(range(NUM_SAMPLES), WORLD_SIZE, RANK)


def our_mixture() -> Any:
    return MixtureSampler(EDGES, WEIGHTS, WORLD_SIZE, RANK)


def our_buckets() -> Any:
    return SequentialBucketSampler(Buckets(), BATCH, num_replicas=WORLD_SIZE, rank=RANK)


def in_batches(sampler: Any) -> Any:
    if isinstance(sampler, SequentialBucketSampler):
        return sampler
    return peer.BatchSampler(sampler, BATCH, drop_last=True)


def our_resume(make: Callable[[], Any], state: dict[str, Any]) -> None:
    sampler = make()
    sampler.load_state_dict(state)
    next(iter(in_batches(sampler)))


def torch_batches() -> Iterator[list[int]]:
    sampler = peer.DistributedSampler(range(NUM_SAMPLES), WORLD_SIZE, RANK, drop_last=True)
    return iter(peer.BatchSampler(sampler, BATCH, drop_last=True))


def plain_bucket_batches() -> Iterator[list[int]]:
    options = {"rank": RANK, "world_size": WORLD_SIZE, "seed": 42, "epoch": 0}
    return iter(plain_buckets(BUCKETS, batch_size_of=lambda number: BATCH, **options))


def plain_mixture_batches() -> Iterator[list[int]]:
    options = {"rank": RANK, "world_size": WORLD_SIZE, "seed": 0, "epoch": 0}
    return cut(plain_mixture(SIZES, WEIGHTS, **options))


SAMPLERS: dict[str, tuple[Callable[[], Any], Callable[[], Iterator[list[int]]], int]] = {
    "distributed": (our_distributed, torch_batches, 5),
    "buckets": (our_buckets, plain_bucket_batches, 10),
    "mixture": (our_mixture, plain_mixture_batches, 5),
}


def sampler_figures(name: str) -> dict[str, float]:
    make, plain, _ = SAMPLERS[name]
    num_batches = len(in_batches(make()))
    skipped = num_batches * 9 // 10
    halted = make()
    state = state_at(halted, skipped)
    runs: dict[str, list[float]] = {"ours": [], "plain": [], "our resume": [], "plain resume": []}
    for repetition in range(REPETITIONS):
        print(f"{repetition + 1}/{REPETITIONS} {name}", file=sys.stderr)
        runs["ours"].append(measure.seconds(lambda: consume(in_batches(make()))))
        runs["plain"].append(measure.seconds(lambda: consume(plain())))
        runs["our resume"].append(measure.median_seconds(lambda: our_resume(make, state), 5))
        resume = measure.seconds(lambda: next(islice(plain(), skipped, None)))
        runs["plain resume"].append(resume)
    return {label: statistics.median(found) for label, found in runs.items()}


def state_at(sampler: Any, num_batches: int) -> dict[str, Any]:
    """Return the state of a sampler after so many batches, without taking them."""
    is_batched = isinstance(sampler, SequentialBucketSampler)
    sizes = {"world_size": WORLD_SIZE, "batch_size": BATCH if is_batched else 1}
    cursor = sampler.plan.segment(**sizes).cursor(
        num_batches if is_batched else num_batches * BATCH
    )
    return {"epoch": 0, "cursor": cursor.to_dict()}


class Rows:
    """Rows in memory, one at a time or a whole batch at once."""

    def __init__(self, row_bytes: int) -> None:
        self.rows = np.ones((2**28 // row_bytes, row_bytes // 4), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        row: np.ndarray[Any, Any] = self.rows[index]
        return row


class WholeRows(Rows):
    def __getitems__(self, indices: list[int]) -> np.ndarray[Any, Any]:
        return self.rows.take(indices, axis=0)


def loader_figures(row_bytes: int) -> dict[str, float]:
    """Return nanoseconds per sample."""
    items, whole = Rows(row_bytes), WholeRows(row_bytes)
    ours = DataLoader(whole, batch_size=256, shuffle=True)
    theirs = peer.DataLoader(items, batch_size=256, shuffle=True)
    rng = np.random.default_rng(0)
    runs: dict[str, list[float]] = {"ours": [], "per item": [], "np.take": []}
    for repetition in range(REPETITIONS):
        print(f"{repetition + 1}/{REPETITIONS} loader {row_bytes}", file=sys.stderr)
        runs["ours"].append(measure.seconds(lambda: consume(ours)))
        runs["per item"].append(measure.seconds(lambda: consume(theirs)))
        batches = np.array_split(rng.permutation(len(items)), len(items) // 256)
        taken = measure.seconds(lambda b=batches: consume(items.rows.take(i, axis=0) for i in b))
        runs["np.take"].append(taken)
    return {label: statistics.median(f) / len(items) * 1e9 for label, f in runs.items()}


def main() -> int:
    torch.set_num_threads(1)
    samplers = {name: sampler_figures(name) for name in SAMPLERS}
    loaders = {size: loader_figures(size) for size in (4096, 1024)}
    per_rank = NUM_SAMPLES // WORLD_SIZE
    checks: list[tuple[str, bool]] = []
    rows = []
    for name, found in samplers.items():
        faster = found["plain"] / found["ours"]
        sooner = found["plain resume"] / found["our resume"]
        least = SAMPLERS[name][2]
        checks.append((f"{name}: epoch {faster:.1f} times faster ({least})", faster >= least))
        checks.append((f"{name}: resume {sooner:,.0f} times sooner (1,000)", sooner >= 1000))
        epoch = [f"{found[label] / per_rank * 1e9:.0f}" for label in ("ours", "plain")]
        resume = [measure.show_time(found[label]) for label in ("our resume", "plain resume")]
        rows.append([name, *epoch, f"{faster:.1f}", *resume, f"{sooner:,.0f}"])
    head = ["sampler", "ns per index", "peer's", "ratio", "resume at 90%", "peer's", "ratio"]
    report = (
        f"# samplers: {NUM_SAMPLES:.0e} samples, one rank of {WORLD_SIZE}, batches of {BATCH}\n\n"
        f"Medians of {REPETITIONS} alternating runs, as lists of ints. {measure.machine()}, torch "
        f"{torch.__version__}. The peer of the first is torch's DistributedSampler; of the others, "
        "the plain rules.\n\n" + measure.table(head, rows)
    )
    rows = []
    for size, found in loaders.items():
        faster, share = found["per item"] / found["ours"], found["np.take"] / found["ours"]
        least = 4 if size == 4096 else 7
        text = f"loader at {size} bytes: {faster:.1f} times per-item loading ({least})"
        checks.append((text, faster >= least))
        if size == 4096:
            checks.append((f"loader at {size} bytes: {share:.0%} of np.take (50%)", share >= 0.5))
        rows.append([str(size), *(f"{found[k]:.0f}" for k in ("ours", "per item", "np.take"))])
    head = ["row bytes", "whole batches (ours)", "per item (torch)", "np.take"]
    report += "\n\nLoader, batch 256, no workers, ns per sample:\n\n" + measure.table(head, rows)
    figures = {"samplers": samplers, "loaders": {str(k): v for k, v in loaders.items()}}
    return measure.finish("samplers", report, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
