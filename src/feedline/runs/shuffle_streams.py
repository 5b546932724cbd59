"""The samples by which a shuffle is judged: runs of positions, source by source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.plan import BucketPlan, EpochOrder, SamplePlan, WindowPlan
from feedline.plan.bucket_deal import BucketRest
from feedline.runs.run_config import RunConfig

__all__ = ["Stream", "streams_of"]

_MOST_POSITIONS = 200_000
_MOST_STREAMS = 8
_RUN = 2000

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Samples of one source: their index in the source at runs of the epoch's positions."""

    name: str
    size: int
    num_positions: int
    batch_size: int
    runs: list[tuple[Indices, Indices]]
    chunk_of: Callable[[Indices], Indices] | None = None
    num_chunks: int = 0

    @property
    def positions(self) -> Indices:
        """The positions of all runs."""
        return np.concatenate([positions for positions, _ in self.runs])

    @property
    def indices(self) -> Indices:
        """The index inside the source at each position."""
        return np.concatenate([indices for _, indices in self.runs])


def streams_of(config: RunConfig, epoch: int) -> Iterator[Stream]:
    """Yield the sources or buckets of one epoch, the largest ones if there are many."""
    plan = config.plan
    if isinstance(plan, BucketPlan):
        yield from _streams_of_buckets(plan, epoch, config.batch_size)
    elif config.mixture is not None:
        yield from _streams_of_sources(config, epoch)
    else:
        assert isinstance(plan, SamplePlan | WindowPlan)
        order, chunks = plan.order.at(epoch), config.chunks
        yield Stream(
            name=config.sources[0].name,
            size=order.num_positions,
            num_positions=order.num_positions,
            batch_size=config.batch_size,
            runs=_runs_of(order),
            chunk_of=None if chunks is None else lambda indices: chunks.rows_of(indices)[0],
            num_chunks=0 if chunks is None else chunks.num_chunks,
        )


def _streams_of_buckets(plan: BucketPlan, epoch: int, batch_size: int) -> Iterator[Stream]:
    rest = plan.begin(epoch)
    assert isinstance(rest, BucketRest)
    largest = sorted(range(len(plan.buckets)), key=lambda n: -len(plan.buckets[n].members))
    for number in sorted(largest[:_MOST_STREAMS]):
        bucket, order = plan.buckets[number], rest.epoch.order_of(number)
        members = bucket.members
        size = len(members)
        runs = []
        for run in _runs(size, _MOST_POSITIONS // _MOST_STREAMS):
            indices = order.indices(run)
            if isinstance(members, range):
                inside = indices - members.start
            else:
                inside = np.searchsorted(members, indices)
            runs.append((run, inside))
        yield Stream(
            name=str(bucket.key),
            size=size,
            num_positions=size,
            batch_size=plan.rule.batch_size(number, batch_size),
            runs=runs,
        )


def _streams_of_sources(config: RunConfig, epoch: int) -> Iterator[Stream]:
    mixture = config.mixture
    assert mixture is not None
    order = mixture.at(epoch)
    located = [(run, *mixture.sources_of(indices)) for run, indices in _runs_of(order)]
    drawn = np.bincount(np.concatenate([s for _, s, _ in located]), minlength=len(mixture.sizes))
    for number in sorted(np.argsort(-drawn, kind="stable")[:_MOST_STREAMS].tolist()):
        if drawn[number] < 2:
            continue
        own = [(run[s == number], inside[s == number]) for run, s, inside in located]
        yield Stream(
            name=config.sources[number].name,
            size=mixture.sizes[number],
            num_positions=order.num_positions,
            batch_size=config.batch_size,
            runs=[pair for pair in own if len(pair[0])],
        )


def _runs_of(order: EpochOrder) -> list[tuple[Indices, Indices]]:
    """Return runs of an order's positions, and the index at each of them."""
    runs = _runs(order.num_positions, _MOST_POSITIONS)
    return [(run, order.indices(run)) for run in runs]


def _runs(num_positions: int, most: int) -> list[Indices]:
    """Return runs of consecutive positions, spread evenly; all positions if they are few."""
    if num_positions <= most:
        return [np.arange(num_positions, dtype=np.int64)]
    num_runs = most // _RUN
    starts = [number * (num_positions - _RUN) // (num_runs - 1) for number in range(num_runs)]
    return [np.arange(start, start + _RUN, dtype=np.int64) for start in starts]
