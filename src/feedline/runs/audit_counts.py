"""How often each sample was received in an epoch, beside how often it should have been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import PastSegment, Plan, Replay
from feedline.runs.audit_runs import Run

__all__ = [
    "Counts",
    "Data",
    "EpochCounts",
    "count_epoch",
    "data_of",
    "num_dropped",
    "planned_counts",
]

Counts = NDArray[np.int32]
_MOST_LISTED = 20
_MOST_SAMPLES = 2**48


@dataclass(frozen=True)
class Data:
    """The samples of a training: the number of each source, in the order of their indices."""

    sources: Mapping[str, int]

    @property
    def num_samples(self) -> int:
        """The number of all samples."""
        return sum(self.sources.values())

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """The name of each source, its first index, and the one after its last."""
        ends = list(accumulate(self.sources.values()))
        return list(zip(self.sources, [0, *ends], ends, strict=False))


@dataclass
class EpochCounts:
    """What the ranks received in an epoch. Indices that are no sample are `unknown`."""

    seen: Counts
    num_padded: int = 0
    num_unknown: int = 0
    unknown: list[int] = field(default_factory=list)

    def add(self, ids: NDArray[np.int64]) -> None:
        """Count samples."""
        is_outside = (ids < 0) | (ids >= len(self.seen))
        if is_outside.any():
            outside = ids[is_outside]
            self.num_unknown += len(outside)
            self.unknown += outside[: _MOST_LISTED - len(self.unknown)].tolist()
            ids = ids[~is_outside]
        np.add.at(self.seen, ids, 1)


def data_of(runs: Sequence[Run], num_samples: int | None) -> Data:
    """Return what the logs say about the data, or raise if they do not say the same.

    A number of samples that is given counts for more than what they say.
    """
    told = {part.path: _told(part.header.info) for run in runs for part in run.ranks.values()}
    known = {path: list(sizes.items()) for path, sizes in told.items() if sizes is not None}
    first = next(iter(known.values()), None)
    # In the same order too, because indices are counted through all sources.
    odd = [path for path, sizes in known.items() if sizes != first]
    if num_samples is not None:
        num_samples = check_integer("num_samples", num_samples, 1, _MOST_SAMPLES)
        if first is None or odd or sum(size for _, size in first) != num_samples:
            return Data({"": num_samples})
    if first is None:
        raise InvalidValueError(
            "num_samples=None must be given, because the logs do not say it; or write it into "
            "the info of each log"
        )
    if odd:
        raise InvalidValueError(
            f"{odd[0]}: its data is {dict(known[odd[0]])} but must be {dict(first)}, as in the "
            "other logs; audit each training on its own"
        )
    return Data(dict(first))


def count_epoch(runs: Sequence[Run], epoch: int, num_samples: int) -> EpochCounts:
    """Count what all ranks of all runs received in an epoch, as far as it counts."""
    counts = EpochCounts(np.zeros(num_samples, dtype=np.int32))
    for run in runs:
        for part in run.ranks.values():
            for batch in part.batches(epoch, run.limit):
                real = batch.real_ids
                counts.num_padded += len(batch.ids) - len(real)
                counts.add(real)
    return counts


def num_dropped(runs: Sequence[Run], epoch: int, num_positions: int) -> int:
    """Return how many samples the tail policy leaves out at the end of an epoch.

    The first runs consumed whole batches. What they left is dealt to the ranks of the last one.
    """
    parts = [(run, run.num_batches(epoch)) for run in runs]
    parts = [(run, count) for run, count in parts if count]
    if not parts:
        return 0
    last = parts[-1][0]
    if not str(_info(last).get("tail", "")).endswith("drop"):
        return 0
    num_left = num_positions
    for run, count in parts[:-1]:
        num_left -= count * run.world_size * batch_size_of(run)
    return max(num_left, 0) % (last.world_size * entry_size_of(last))


def planned_counts(plan: Plan, runs: Sequence[Run], epoch: int) -> Counts:
    """Return how often a plan lets each sample be received, with the resizes that there were."""
    past = []
    for run in runs:
        if count := run.num_batches(epoch):
            entry = entry_size_of(run)
            past.append(PastSegment(run.world_size, entry, count * batch_size_of(run) // entry))
    counts = np.zeros(plan.num_indices, dtype=np.int32)
    if not past:
        return counts
    world_size, batch_size, _ = past.pop()
    replay = Replay(
        plan=plan, epoch=epoch, world_size=world_size, batch_size=batch_size, history=past
    )
    ends = [*(entry.num_batches for entry in past), None]
    for segment, end in zip(replay.segments, ends, strict=True):
        stop = segment.num_batches if end is None else end
        for rank in range(segment.world_size):
            for start in range(0, stop, 1024):
                block = segment.block(rank, start, min(start + 1024, stop))
                np.add.at(counts, block.real_indices, 1)
    return counts


def batch_size_of(run: Run) -> int:
    """Return the number of samples of a batch of a run: as it says, or else the most it had."""
    told = _info(run).get("batch_size")
    if told is not None:
        return check_integer("batch_size", told, 1)
    return max(int(part.table[:, 2].max(initial=1)) for part in run.ranks.values())


def entry_size_of(run: Run) -> int:
    """Return how many samples are dealt to a rank together: a batch, unless the run says so."""
    told = _info(run).get("entry_size")
    return batch_size_of(run) if told is None else check_integer("entry_size", told, 1)


def _info(run: Run) -> Mapping[str, Any]:
    return next(iter(run.ranks.values())).header.info


def _told(info: Mapping[str, Any]) -> dict[str, int] | None:
    sources = info.get("sources")
    if isinstance(sources, Mapping):
        return {
            str(name): check_integer(f"sources[{name!r}]", size, 0, _MOST_SAMPLES)
            for name, size in sources.items()
        }
    total = info.get("num_samples")
    return None if total is None else {"": check_integer("num_samples", total, 1, _MOST_SAMPLES)}
