"""How often each sample was received in an epoch, beside how often it should have been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import PastSegment, Plan, Replay
from feedline.runs.audit_runs import Run
from feedline.runs.run_config_data import SourceInfo, sources_from

Counts = NDArray[np.int32]
_MOST_LISTED = 20
_MOST_SAMPLES = 2**48


class EpochCounts(NamedTuple):
    """What the ranks received in an epoch. Indices outside of the data are `unknown`."""

    seen: Counts
    num_padded: int
    num_unknown: int
    unknown: tuple[int, ...]


def data_of(runs: Sequence[Run], num_samples: int | None) -> tuple[SourceInfo, ...]:
    """Return the sources of the data as the logs say, or raise if they do not say the same.

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
            return sources_from([("", num_samples)])
    if first is None:
        raise InvalidValueError(
            "num_samples is required, because the logs do not say it; or write it into the info "
            "of each log"
        )
    if odd:
        raise InvalidValueError(
            f"{odd[0]}: its data is {dict(known[odd[0]])} but must be {dict(first)}, as in the "
            "other logs; audit each training on its own"
        )
    return sources_from(first)


def count_epoch(runs: Sequence[Run], epoch: int, num_samples: int) -> EpochCounts:
    """Count what all ranks of all runs received in an epoch, as far as it counts."""
    seen = np.zeros(num_samples, dtype=np.int32)
    num_padded = num_unknown = 0
    unknown: list[int] = []
    batches = (b for run in runs for p in run.ranks.values() for b in p.batches(epoch, run.limit))
    for batch in batches:
        ids = batch.real_ids
        num_padded += len(batch.ids) - len(ids)
        is_known = (ids >= 0) & (ids < num_samples)
        if not is_known.all():
            outside, ids = ids[~is_known], ids[is_known]
            num_unknown += len(outside)
            unknown += outside[: _MOST_LISTED - len(unknown)].tolist()
        np.add.at(seen, ids, 1)
    return EpochCounts(seen, num_padded, num_unknown, tuple(unknown))


def num_dropped(runs: Sequence[Run], epoch: int, num_positions: int) -> int:
    """Return how many samples the tail policy leaves out at the end of an epoch, as logs tell.

    Else the first runs consumed whole batches. What they left is dealt to the ranks of the last.
    """
    told = [
        part.dropped[epoch]
        for run in runs
        for part in run.ranks.values()
        if epoch in part.dropped and part.ends[epoch] < run.limit
    ]
    if told:
        return told[-1]
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
