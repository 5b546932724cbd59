"""What is told of every trainer: runs that stop, and resume on other processes and workers.

The words are those of `tests/trainers/README.md`. Standard library only: jobs of any environment
and the main tests both read this.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, count, product
from typing import Any

NUM_EPOCHS = 2
SEED = 5
#: The number of samples, and the batch size with it. 10,000 divide by no number of ranks.
SIZES = {240: 8, 10_000: 64}
#: When a run stops: in the middle of an epoch, on its last step, twice in one epoch.
STOPS = ("middle", "last-step", "twice")
PROCESSES = (1, 2, 3)
WORKERS = (0, 2)
TAILS = ("pad", "drop")
#: In CI, for each trainer and version, the story without a stop included.
MAX_STORIES = 12

Factors = tuple[int, str, int, int, int, int]


@dataclass(frozen=True)
class Run:
    """One start of the job: its ranks, their workers, and after how many batches it stops."""

    num_processes: int
    num_workers: int
    #: Counted in this run alone; None: it runs to the end of the training.
    stop_after: int | None


@dataclass(frozen=True)
class Story:
    """The runs of one training, each from the checkpoint of the one before."""

    num_samples: int
    stop: str
    runs: tuple[Run, ...]
    #: What the job does with the last samples: "pad" delivers all, "drop" leaves some out.
    tail: str = "pad"

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch of one rank."""
        return SIZES[self.num_samples]

    @property
    def name(self) -> str:
        """A name such as `240-middle-1p0w-3p2w`: processes and workers of each run."""
        runs = [f"{run.num_processes}p{run.num_workers}w" for run in self.runs]
        return "-".join([str(self.num_samples), self.stop, *runs])

    @property
    def is_resumed(self) -> bool:
        """Whether a run continues another."""
        return len(self.runs) > 1

    @property
    def is_resized(self) -> bool:
        """Whether a run continues one of another number of processes."""
        return len({run.num_processes for run in self.runs}) > 1

    @property
    def has_workers(self) -> bool:
        """Whether a run has workers."""
        return any(run.num_workers for run in self.runs)

    def settings(self, number: int, folder: str, log: str) -> dict[str, Any]:
        """Return what the job of a run is told."""
        run = self.runs[number]
        return {
            **{"num_samples": self.num_samples, "num_epochs": NUM_EPOCHS},
            **{"batch_size": self.batch_size, "num_workers": run.num_workers},
            **{"folder": folder, "log": log, "run": number, "resume": number > 0},
            **{"stop_after": run.stop_after, "num_processes": run.num_processes},
            **{"shuffle": True, "seed": SEED},
        }


def plain_story(tail: str = "pad") -> Story:
    """Return the story of a training that is not stopped, on two processes."""
    return Story(240, "never", (Run(2, 0, None),), tail)


def story_of(factors: Factors, tail: str = "pad") -> Story:
    """Return the story with these factors: size, stop, processes and workers before and after."""
    num_samples, stop, before, after, workers_before, workers_after = factors
    num_batches = num_batches_of(num_samples, before, tail)
    # The larger one stops in its second epoch, where what is skipped before it must stay skipped.
    passed = num_batches if num_samples > 1000 else 0
    first = {
        "middle": passed + num_batches // 2,
        "last-step": num_batches,
        "twice": passed + num_batches // 3,
    }[stop]
    runs = [Run(before, workers_before, first)]
    if stop == "twice":
        runs.append(Run(after, workers_after, 3))
        runs.append(Run(before, workers_before, None))
    else:
        runs.append(Run(after, workers_after, None))
    return Story(num_samples, stop, tuple(runs), tail)


def num_batches_of(num_samples: int, num_processes: int, tail: str) -> int:
    """Return the number of batches of a whole epoch on each rank."""
    step = SIZES[num_samples] * num_processes
    return num_samples // step if tail == "drop" else -(-num_samples // step)


def all_factors() -> list[Factors]:
    """Return the full product of the factors."""
    return list(product(SIZES, STOPS, PROCESSES, PROCESSES, WORKERS, WORKERS))


def covering_factors() -> list[Factors]:
    """Return a few factors in which each two values of two factors meet, always the same ones.

    What adds most is taken first. How many that needs depends on which of equals is the first, so
    it begins anew in another order until they are few enough.
    """
    for seed in count():
        every = all_factors()
        random.Random(seed).shuffle(every)
        missing = set(pairs_of(every))
        chosen: list[Factors] = []
        while missing:
            best = max(every, key=lambda factors: len(missing.intersection(pairs_of([factors]))))
            chosen.append(best)
            missing.difference_update(pairs_of([best]))
        if len(chosen) < MAX_STORIES:
            break
    return sorted(chosen)


def pairs_of(factors: Iterable[Factors]) -> Iterator[tuple[tuple[int, Any], ...]]:
    """Yield each two values of two factors, with their places."""
    for one in factors:
        yield from combinations(enumerate(one), 2)


def stories(*, is_full: bool = False, tail: str = "pad") -> list[Story]:
    """Return the stories of a trainer: a pairwise cover, or the full product."""
    chosen = all_factors() if is_full else covering_factors()
    return [plain_story(tail), *(story_of(factors, tail) for factors in chosen)]
