"""What must hold for the logs of a story: every sample once, on equal ranks, in every epoch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainer_stories import NUM_EPOCHS, Story


@dataclass(frozen=True)
class Batch:
    """A batch that the training step of one rank has received."""

    epoch: int
    number: int
    ids: tuple[int, ...]
    is_real: tuple[bool, ...]

    @property
    def real_ids(self) -> list[int]:
        """The samples that are not padding."""
        return [one for one, is_real in zip(self.ids, self.is_real, strict=True) if is_real]


#: By run and rank, the batches in the order in which they were received.
Logs = list[list[list[Batch]]]


def read_logs(story: Story, folder: Path) -> Logs:
    """Return what the ranks of all runs have logged; a rank without a log has received nothing."""
    return [
        [read_log(folder / f"run{number}-rank{rank}.jsonl") for rank in range(run.num_processes)]
        for number, run in enumerate(story.runs)
    ]


def read_log(path: Path) -> list[Batch]:
    """Return the batches in one log."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    batches = []
    for record in map(json.loads, lines):
        marks = record.get("is_real") or [True] * len(record["ids"])
        batches.append(
            Batch(record["epoch"], record["batch"], tuple(record["ids"]), tuple(map(bool, marks)))
        )
    return batches


def faults_of(story: Story, logs: Logs) -> list[str]:
    """Return what is wrong with the logs of a story, one line for each; nothing if all is well."""
    faults = [
        *_faults_of_ranks(story, logs),
        *_faults_of_stops(story, logs),
        *_faults_of_epochs(logs),
    ]
    for epoch in range(NUM_EPOCHS):
        faults += _faults_of_coverage(story, logs, epoch)
    # An order can only be compared where all else is right.
    return faults or _faults_of_orders(story, logs)


def _faults_of_ranks(story: Story, logs: Logs) -> list[str]:
    faults = []
    for number, ranks in enumerate(logs):
        places = [[(batch.epoch, batch.number) for batch in rank] for rank in ranks]
        if any(place != places[0] for place in places):
            counts = " and ".join(str(len(place)) for place in places)
            faults.append(f"run {number}: the ranks differ; they have {counts} batches")
        for rank, place in enumerate(places):
            for before, after in pairwise(place):
                # The number is one of the epoch, or of the run; it never stands or goes back.
                if after[0] < before[0] or (after[0] == before[0] and after[1] != before[1] + 1):
                    faults.append(f"run {number}, rank {rank}: {after} comes after {before}")
        for rank, batches in enumerate(ranks):
            if any(len(batch.ids) > story.batch_size for batch in batches):
                faults.append(f"run {number}, rank {rank}: a batch exceeds {story.batch_size}")
    return faults


def _faults_of_stops(story: Story, logs: Logs) -> list[str]:
    return [
        f"run {number}: it has {len(ranks[0])} batches a rank; it should stop after {wanted}"
        for number, (run, ranks) in enumerate(zip(story.runs, logs, strict=True))
        if (wanted := run.stop_after) is not None and len(ranks[0]) != wanted
    ]


def _faults_of_epochs(logs: Logs) -> list[str]:
    seen = [batch.epoch for ranks in logs for batch in ranks[0]]
    faults = []
    if sorted(set(seen)) != list(range(NUM_EPOCHS)):
        faults.append(f"epochs {sorted(set(seen))} were seen; it should be {NUM_EPOCHS} of them")
    if seen != sorted(seen):
        faults.append("an epoch comes again after a later one")
    return faults


def _faults_of_coverage(story: Story, logs: Logs, epoch: int) -> list[str]:
    counts = Counter(
        one
        for ranks in logs
        for rank in ranks
        for batch in rank
        if batch.epoch == epoch
        for one in batch.real_ids
    )
    faults = []
    if strange := [one for one in counts if not 0 <= one < story.num_samples]:
        faults.append(f"epoch {epoch}: {_listed(strange)} are no samples")
    if repeated := [one for one, count in counts.items() if count > 1]:
        faults.append(f"epoch {epoch}: {len(repeated)} samples came twice: {_listed(repeated)}")
    missing = set(range(story.num_samples)) - set(counts)
    dropped = _num_dropped(story, logs, epoch)
    if len(missing) != dropped:
        faults.append(
            f"epoch {epoch}: {len(missing)} samples are missing, and {dropped} may be: "
            f"{_listed(missing)}"
        )
    return faults


def _num_dropped(story: Story, logs: Logs, epoch: int) -> int:
    """Return how many samples the tail of an epoch leaves out: what fills no batch on all ranks."""
    if story.tail != "drop":
        return 0
    left, dropped = story.num_samples, story.num_samples
    for run, ranks in zip(story.runs, logs, strict=True):
        step = run.num_processes * story.batch_size
        num_batches = sum(batch.epoch == epoch for batch in ranks[0])
        # The last run that is in the epoch has all full batches of what it found.
        dropped = left % step if num_batches else dropped
        left -= num_batches * step
    return dropped


def _faults_of_orders(story: Story, logs: Logs) -> list[str]:
    orders = [
        [one for ranks in logs for rank in ranks for b in rank if b.epoch == e for one in b.ids]
        for e in range(NUM_EPOCHS)
    ]
    # Where the runs stop differs from epoch to epoch, so compare how one rank begins.
    firsts = [
        next(b.ids for ranks in logs for b in ranks[0] if b.epoch == e) for e in range(NUM_EPOCHS)
    ]
    faults = []
    if any(order == sorted(order) for order in orders):
        faults.append("an epoch is not shuffled")
    if len(set(firsts)) < NUM_EPOCHS or len(set(map(tuple, orders))) < NUM_EPOCHS:
        faults.append("two epochs have the same order")
    return faults


def _listed(ids: object) -> str:
    shown = sorted(ids)  # type: ignore[call-overload]
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")
