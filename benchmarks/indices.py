"""Indices of every order, beside the plain shuffle in the same run.

A rank's blocks one after another, at 1e9 samples and batches of 32, on 1, 8 and 1,024 ranks; and
the samplers that yield lists of integers, one rank of eight, at 1e7 samples:

- windows: chunks of 1,000 samples, 16 in a window, and chunks of 10,000, 4 in a window; unequal
  ones are half as large to half as large again;
- a mixture of five sources of one size, with weights from 1 to 5;
- eight buckets, one after another and interleaved.

Each order takes turns with the others, 131,072 indices at a time, in blocks of 32,768 and of 2,048.
Times are CPU time of this thread. Before that, one large array is made and freed, as happens in any
training process: until then the C library returns the memory of each block to the system, and
getting it back costs as much as the indices.

Run it with `make bench`; the last results lie in `results/indices.md`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable
from time import thread_time
from typing import Any

import measure
import numpy as np

from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Plan,
    SamplePlan,
    Segment,
    Shuffled,
    UnequalChunks,
    WindowPlan,
)

NUM_SAMPLES, BATCH = 10**9, 32
WORLD_SIZES = (1, 8, 1024)
LONG, SHORT, TURN = 2**15, 2**11, 2**17
REPETITIONS, LIST_REPETITIONS = 21, 7
PLAIN = "plain shuffle"
#: How much longer than the plain shuffle an order may take.
MOST = {
    "windows of 16 × 1,000": 2,
    "windows of 4 × 10,000": 2,
    "unequal windows of 16 × 1,000": 3,
    "unequal windows of 4 × 10,000": 3,
    "mixture of 5": 3,
    "8 buckets in sequence": 3,
    "8 buckets interleaved": 3,
}
MOST_OF_SHORT = 3
MOST_OF_LISTS = 110
LIST_SAMPLES, LIST_RANKS, LIST_RANK = 10**7, 8, 3


def plans() -> dict[str, Plan]:
    """Return the plan of each order."""
    chosen = np.random.default_rng(0)
    found: dict[str, Plan] = {PLAIN: SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES))}
    for preload, size in ((16, 1000), (4, 10_000)):
        equal = EqualChunks(num_samples=NUM_SAMPLES, chunk_size=size)
        sizes = chosen.integers(size // 2, size * 3 // 2 + 1, size=NUM_SAMPLES // size)
        name = f"windows of {preload} × {size:,}"
        found[name] = WindowPlan(chunks=equal, preload=preload)
        found[f"unequal {name}"] = WindowPlan(chunks=UnequalChunks(sizes), preload=preload)
    mixture = Mixture(sizes=[NUM_SAMPLES // 5] * 5, weights=[5, 4, 3, 2, 1])
    found["mixture of 5"] = SamplePlan(order=mixture)
    parts = [range(i * NUM_SAMPLES // 8, (i + 1) * NUM_SAMPLES // 8) for i in range(8)]
    for name, mode in (("in sequence", "sequential"), ("interleaved", "interleaved")):
        found[f"8 buckets {name}"] = BucketPlan.from_groups(dict(enumerate(parts)), mode=mode)
    return {name: found[name] for name in (PLAIN, *MOST)}


def nanoseconds(segment: Segment, rank: int, turn: int, size: int) -> float:
    """Return the CPU time of an index in blocks of `size`, over one turn."""
    num_turns = segment.num_batches * BATCH // TURN
    first, num_batches = turn % num_turns * TURN // BATCH, size // BATCH
    start = thread_time()
    for number in range(first, first + TURN // BATCH, num_batches):
        segment.block(rank, number, number + num_batches)
    return (thread_time() - start) / TURN * 1e9


def of_orders(world_size: int) -> dict[str, dict[str, float]]:
    """Return nanoseconds per index of each order, in long and in short blocks."""
    segments = {
        name: plan.segment(world_size=world_size, batch_size=BATCH)
        for name, plan in plans().items()
    }
    runs: dict[str, dict[str, list[float]]] = {name: {"long": [], "short": []} for name in segments}
    # Two turns come first that do not count.
    for repetition in range(-2, REPETITIONS):
        print(f"{repetition + 1}/{REPETITIONS} {world_size} ranks", file=sys.stderr)
        for label, size in (("long", LONG), ("short", SHORT)):
            for name, segment in segments.items():
                found = nanoseconds(segment, world_size // 2, repetition + 2, size)
                runs[name][label] += [found] if repetition >= 0 else []
    return {
        name: {label: statistics.median(found) for label, found in own.items()}
        for name, own in runs.items()
    }


def consume(entries: Iterable[Any]) -> None:
    for _ in entries:
        pass


def list_samplers() -> dict[str, Callable[[], Iterable[Any]]]:
    """Return what makes each sampler that yields integers or lists of them."""
    from feedline.plan import Bucket
    from feedline.torch import BatchPlanSampler, DistributedSampler, MixtureSampler

    ranks = {"num_replicas": LIST_RANKS, "rank": LIST_RANK}
    edges = [i * LIST_SAMPLES // 5 for i in range(6)]
    parts = [range(i * LIST_SAMPLES // 8, (i + 1) * LIST_SAMPLES // 8) for i in range(8)]
    buckets = BucketPlan(buckets=[*map(Bucket, range(8), parts)])
    return {
        "DistributedSampler": lambda: DistributedSampler(range(LIST_SAMPLES), **ranks),
        "MixtureSampler": lambda: MixtureSampler(edges, [5, 4, 3, 2, 1], LIST_RANKS, LIST_RANK),
        "batches of buckets": lambda: BatchPlanSampler(buckets, batch_size=BATCH, **ranks),
    }


def of_lists() -> dict[str, float]:
    """Return nanoseconds per index of each sampler, in a plain loop."""
    samplers = list_samplers()
    runs: dict[str, list[float]] = {name: [] for name in samplers}
    for repetition in range(LIST_REPETITIONS):
        print(f"{repetition + 1}/{LIST_REPETITIONS} lists", file=sys.stderr)
        for name, make in samplers.items():
            start = thread_time()
            consume(make())
            runs[name].append((thread_time() - start) / (LIST_SAMPLES // LIST_RANKS) * 1e9)
    return {name: statistics.median(found) for name, found in runs.items()}


def ranks(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size:,} ranks"


def main() -> int:
    large = np.ones(2**21)
    del large
    figures: dict[str, Any] = {ranks(size): of_orders(size) for size in WORLD_SIZES}
    checks, rows = [], []
    for place, found in figures.items():
        plain = found[PLAIN]["long"]
        for name, own in found.items():
            ratio, of_short = own["long"] / plain, own["short"] / own["long"]
            if name != PLAIN:
                text = f"{place}, {name}: {ratio:.2f}x the plain shuffle ({MOST[name]})"
                checks.append((text, ratio <= MOST[name]))
            text = f"{place}, {name}: short blocks {of_short:.2f}x long ones ({MOST_OF_SHORT})"
            checks.append((text, of_short <= MOST_OF_SHORT))
            rows.append(
                [
                    place,
                    name,
                    *(f"{own[label]:.1f}" for label in ("long", "short")),
                    f"{ratio:.2f}",
                    f"{of_short:.2f}",
                ]
            )
    head = ["ranks", "order", f"ns in {LONG:,}", f"ns in {SHORT:,}", "to plain", "short to long"]
    figures["lists"] = of_lists()
    checks += [
        (f"lists, {name}: {value:.0f} ns an index ({MOST_OF_LISTS})", value <= MOST_OF_LISTS)
        for name, value in figures["lists"].items()
    ]
    lists = [[name, f"{value:.0f}"] for name, value in figures["lists"].items()]
    report = (
        f"# indices: {NUM_SAMPLES:.0e} samples, batches of {BATCH}\n\nMedians of {REPETITIONS} "
        f"alternating runs, and {LIST_REPETITIONS} of the lists; nanoseconds of CPU time per "
        f"index, in blocks of {LONG:,} and of {SHORT:,} indices. {measure.machine()}.\n\n"
        f"{measure.table(head, rows)}\n\nLists of integers, {LIST_SAMPLES:.0e} samples, one rank "
        f"of {LIST_RANKS}:\n\n{measure.table(['sampler', 'ns per index'], lists)}"
    )
    return measure.finish("indices", report, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
