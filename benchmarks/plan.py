"""The order algebra beside torch's DistributedSampler and grain's shuffle.

Every repetition is a fresh process, and systems alternate. Each measures, for one rank of eight:

- first batch: from nothing to the first batch of 32;
- resume: from nothing to the batch at 90% of the epoch. torch's sampler has no other way than to
  start over and skip; grain's and ours compute it. Ours also reads its cursor from JSON.
- ns per index: a rank's whole epoch, or its first 1e7 positions where that is shorter. grain takes
  the same time for every index, so 20,000 of them are enough;
- memory: how much the peak of resident memory grew.

Run it with `make bench`; the last results lie in `results/plan.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from time import perf_counter

import measure

NUM_RANKS, RANK, BATCH = 8, 3, 32
SIZES = (10**6, 10**8, 10**10, 10**12)
PEER_SIZES = (10**6, 10**8)
REPETITIONS = 7
LONGEST = 10**7
GRAIN_INDICES = 20_000


def run_feedline(num_samples: int) -> dict[str, float]:
    from feedline.plan import Cursor, SamplePlan, Segment, Shuffled

    def segment(seed: int) -> Segment:
        plan = SamplePlan(order=Shuffled(num_samples=num_samples, seed=seed))
        return plan.segment(world_size=NUM_RANKS, batch_size=BATCH)

    def first_batch(seed: int) -> None:
        next(segment(seed).batches(RANK))

    def resume(seed: int, saved: str) -> None:
        plan = SamplePlan(order=Shuffled(num_samples=num_samples, seed=seed))
        cursor = Cursor.from_json(saved)
        resumed = plan.resume(cursor, world_size=NUM_RANKS, batch_size=BATCH)
        next(resumed.batches(RANK))

    first_batch(-1)
    before = measure.reset_peak()
    fresh = [measure.seconds(lambda s=s: first_batch(s)) for s in range(21)]
    saved = [segment(s).cursor(segment(s).num_batches * 9 // 10).to_json() for s in range(21)]
    resumed = [measure.seconds(lambda s=s: resume(s, saved[s])) for s in range(21)]
    start, count = perf_counter(), 0
    for batch in segment(0).batches(RANK):
        count += len(batch.indices)
        if count >= LONGEST:
            break
    epoch = perf_counter() - start
    return {
        "first_batch": sorted(fresh)[10],
        "resume": sorted(resumed)[10],
        "ns_per_index": epoch / count * 1e9,
        "memory": measure.peak() - before,
    }


def run_torch(num_samples: int) -> dict[str, float]:
    from torch.utils.data import DistributedSampler

    def indices() -> Iterator[int]:
        return iter(DistributedSampler(range(num_samples), NUM_RANKS, RANK, drop_last=True))

    per_rank = num_samples // NUM_RANKS
    list(islice(DistributedSampler(range(100), NUM_RANKS, RANK), 5))
    before = measure.reset_peak()
    first = measure.seconds(lambda: list(islice(indices(), BATCH)))
    skipped = per_rank * 9 // 10
    resume = measure.seconds(lambda: list(islice(indices(), skipped, skipped + BATCH)))
    start = perf_counter()
    count = sum(1 for _ in indices())
    epoch = perf_counter() - start
    return {
        "first_batch": first,
        "resume": resume,
        "ns_per_index": epoch / count * 1e9,
        "memory": measure.peak() - before,
    }


def run_grain(num_samples: int) -> dict[str, float]:
    import grain

    def dataset(seed: int) -> grain.MapDataset[int]:
        return grain.MapDataset.range(num_samples).shuffle(seed=seed)[RANK::NUM_RANKS]

    def batch_at(seed: int, place: int) -> list[int]:
        chosen = dataset(seed)
        return [chosen[place + offset] for offset in range(BATCH)]

    batch_at(99, 0)
    before = measure.reset_peak()
    per_rank = num_samples // NUM_RANKS
    fresh = [measure.seconds(lambda s=s: batch_at(s, 0)) for s in range(21)]
    resumed = [measure.seconds(lambda s=s: batch_at(s, per_rank * 9 // 10)) for s in range(21)]
    chosen = dataset(0)
    start = perf_counter()
    for place in range(GRAIN_INDICES):
        chosen[place]
    epoch = perf_counter() - start
    return {
        "first_batch": sorted(fresh)[10],
        "resume": sorted(resumed)[10],
        "ns_per_index": epoch / GRAIN_INDICES * 1e9,
        "memory": measure.peak() - before,
    }


RUNS = {"feedline": run_feedline, "torch": run_torch, "grain": run_grain}


def main() -> int:
    cases = [("feedline", size) for size in SIZES]
    cases += [(peer, size) for size in PEER_SIZES for peer in ("torch", "grain")]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for repetition in range(REPETITIONS):
        for system, size in cases:
            print(f"{repetition + 1}/{REPETITIONS} {system} {size:.0e}", file=sys.stderr)
            runs[system, size].append(measure.in_fresh_process(__file__, system, str(size)))
    figures = {case: measure.medians(found) for case, found in runs.items()}
    rows = [
        [
            system,
            f"{size:.0e}",
            measure.show_time(found["first_batch"]),
            measure.show_time(found["resume"]),
            f"{found['ns_per_index']:.0f}",
            measure.show_bytes(found["memory"]),
        ]
        for (system, size), found in figures.items()
    ]
    report = (
        f"# plan: one rank of {NUM_RANKS}, batch {BATCH}\n\n"
        f"Medians of {REPETITIONS} alternating runs, each in a fresh process. "
        f"{measure.machine()}.\n\n"
        + measure.table(
            ["system", "n", "first batch", "resume at 90%", "ns per index", "memory growth"], rows
        )
    )
    saved = [{"system": s, "n": n, **found} for (s, n), found in figures.items()]
    return measure.finish("plan", report, saved, checks(figures))


def checks(figures: dict[tuple[str, int], dict[str, float]]) -> list[tuple[str, bool]]:
    """Return each target with whether it was met."""
    ours, torch, grain = (figures[name, 10**8] for name in ("feedline", "torch", "grain"))
    found = []
    for name, least in (("first_batch", 5000), ("resume", 5000)):
        ratio = torch[name] / ours[name]
        found.append((f"{name} {ratio:,.0f} times sooner than torch ({least:,})", ratio >= least))
    for peer, other, least in (("torch", torch, 8), ("grain", grain, 50)):
        ratio = other["ns_per_index"] / ours["ns_per_index"]
        text = f"a rank's epoch {ratio:.1f} times faster per index than {peer} ({least})"
        found.append((text, ratio >= least))
    most = max(figures["feedline", size]["memory"] for size in SIZES)
    text = f"memory growth at most {measure.show_bytes(most)} (8 MiB)"
    found.append((text, most < 8 * 2**20))
    for name in ("first_batch", "resume", "ns_per_index"):
        column = [figures["feedline", size][name] for size in SIZES]
        spread = max(column) / min(column)
        found.append((f"{name} flat within {spread:.2f} from 1e6 to 1e12 (3)", spread <= 3))
    return found


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(RUNS[sys.argv[1]](int(sys.argv[2]))))
    else:
        sys.exit(main())
