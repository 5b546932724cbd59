"""A mixture of three sources whose weights are annealed, with exact counts in every phase.

Run it with one process, which plays all ranks in turn:

    python examples/mixture_annealing.py

The run stops in the middle of a phase on 2 ranks and resumes on 4. The checkpoint is a few
numbers. Phases stay where they are, and every step has the samples that it would have had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from feedline.torch import DataLoader, MixtureDataset, MixtureSampler

SOURCES = {"web": 2400, "books": 1000, "code": 600}
GLOBAL_BATCH_SIZE = 40  # samples of all ranks in a step
NUM_STEPS = sum(SOURCES.values()) // GLOBAL_BATCH_SIZE
PHASES = {0: (7, 2, 1), 40: (5, 3, 2), 70: (2, 4, 4)}  # the step that each begins at, its weights
STOP = 55

Sample = tuple[str, int]
"""The name of a source, and the index of a sample in it."""


def make_loader(rank: int, world_size: int) -> DataLoader[Any]:
    """Return the loader of one rank. In a real run torch.distributed knows both numbers."""
    # Anything with a length and items by index is a source; here a sample is its own number.
    data = MixtureDataset([range(size) for size in SOURCES.values()], with_source=True)
    sampler = MixtureSampler(
        data.cumulative_sizes,
        weights=PHASES[0],
        phases=[(step, weights) for step, weights in PHASES.items() if step],
        global_batch_size=GLOBAL_BATCH_SIZE,
        num_replicas=world_size,
        rank=rank,
        seed=7,
    )
    return DataLoader(data, GLOBAL_BATCH_SIZE // world_size, sampler=sampler)


def run(world_size: int, checkpoint: str | None = None) -> Iterator[tuple[list[Sample], str]]:
    """Yield the samples of all ranks in each step, and the checkpoint after it."""
    loaders = [make_loader(rank, world_size) for rank in range(world_size)]
    if checkpoint is not None:
        for loader in loaders:
            loader.load_state_dict(json.loads(checkpoint))
    names = list(SOURCES)
    for batches in zip(*loaders, strict=True):
        samples = [
            (names[source], index)
            for indices, sources in batches
            for index, source in zip(indices.tolist(), sources.tolist(), strict=True)
        ]
        # It is the same on every rank, so that of rank 0 is enough.
        yield samples, json.dumps(loaders[0].state_dict())


def train() -> list[list[Sample]]:
    """Return the samples of every step of a run that is stopped and resumes on other ranks."""
    first = list(islice(run(world_size=2), STOP))
    steps = [samples for samples, _ in first]
    checkpoint = first[-1][1]
    print(f"stopped on 2 ranks after step {STOP - 1}, in the middle of a phase")
    steps += [samples for samples, _ in run(world_size=4, checkpoint=checkpoint)]
    print(f"went on with 4 ranks from step {STOP} to step {len(steps) - 1}")
    return steps


def check_phases(steps: list[list[Sample]]) -> None:
    """Compare the counts of every phase with its weights."""
    for (first, weights), stop in zip(PHASES.items(), [*list(PHASES)[1:], NUM_STEPS], strict=True):
        counts = Counter(name for samples in steps[first:stop] for name, _ in samples)
        num_samples = (stop - first) * GLOBAL_BATCH_SIZE
        listed = ", ".join(f"{counts[name]} {name}" for name in SOURCES)
        print(f"steps {first} to {stop - 1}, weights {weights}: {listed}")
        for name, weight in zip(SOURCES, weights, strict=True):
            if counts[name] * sum(weights) != num_samples * weight:
                raise SystemExit(f"the share of {name} is not exact")


def check_sources(steps: list[list[Sample]]) -> None:
    """Check that no sample comes again before the pass over its source is over."""
    seen = Counter(sample for samples in steps for sample in samples)
    for name, size in SOURCES.items():
        times = Counter(seen[name, index] for index in range(size))
        print(f"{name}: " + ", ".join(f"{times[n]} samples {n}x" for n in sorted(times)))
        if max(times) - min(times) > 1:
            raise SystemExit(f"samples of {name} were repeated too early")


def main() -> None:
    """Tell the story, and check it."""
    torch.set_num_threads(1)
    steps = train()
    check_phases(steps)
    check_sources(steps)
    never_stopped = [samples for samples, _ in run(world_size=1)]
    if [sorted(samples) for samples in steps] != [sorted(samples) for samples in never_stopped]:
        raise SystemExit("a step has other samples than in a run that was never stopped")
    print(f"all {len(steps)} steps have the samples of a run on 1 rank that was never stopped")


if __name__ == "__main__":
    main()
