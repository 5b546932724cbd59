"""The samples by which a shuffle is judged: runs of positions, source by source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Plan
from feedline.runs.run_config import RunConfig
from feedline.runs.run_config_data import SourceInfo

__all__ = ["Stream", "split_by_source", "streams_of"]

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
    plan, mixture, chunks = config.plan, config.mixture, config.chunks
    if plan.buckets:
        yield from _streams_of_buckets(plan, epoch, config.batch_size)
        return
    order = plan.epoch_order(epoch)
    assert order is not None
    runs = [(run, order.indices(run)) for run in _runs(order.num_positions, _MOST_POSITIONS)]
    if mixture is not None:
        located = [(run, *mixture.sources_of(indices)) for run, indices in runs]
        yield from split_by_source(located, config.sources, order.num_positions, config.batch_size)
        return
    yield Stream(
        name=config.sources[0].name,
        size=order.num_positions,
        num_positions=order.num_positions,
        batch_size=config.batch_size,
        runs=runs,
        chunk_of=None if chunks is None else lambda indices: chunks.rows_of(indices)[0],
        num_chunks=0 if chunks is None else chunks.num_chunks,
    )


def split_by_source(
    located: Sequence[tuple[Indices, Indices, Indices]],
    sources: Sequence[SourceInfo],
    num_positions: int,
    batch_size: int,
) -> Iterator[Stream]:
    """Yield the streams of the sources that come most often.

    Args:
        located: Runs of positions, with the source of each sample and its index in there.
        sources: The sources.
        num_positions: The number of positions in the epoch.
        batch_size: The number of samples in a batch.
    """
    drawn = np.bincount(np.concatenate([s for _, s, _ in located]), minlength=len(sources))
    for number in sorted(np.argsort(-drawn, kind="stable")[:_MOST_STREAMS].tolist()):
        if drawn[number] < 2:
            continue
        own = [(run[s == number], inside[s == number]) for run, s, inside in located]
        yield Stream(
            name=sources[number].name,
            size=sources[number].num_samples,
            num_positions=num_positions,
            batch_size=batch_size,
            runs=[pair for pair in own if len(pair[0])],
        )


def _streams_of_buckets(plan: Plan, epoch: int, batch_size: int) -> Iterator[Stream]:
    largest = sorted(range(len(plan.buckets)), key=lambda n: -len(plan.buckets[n].members))
    for number in sorted(largest[:_MOST_STREAMS]):
        members, order = plan.buckets[number].members, plan.epoch_order(epoch, number)
        assert order is not None
        runs = []
        for run in _runs(len(members), _MOST_POSITIONS // _MOST_STREAMS):
            indices = order.indices(run)
            if isinstance(members, range):
                runs.append((run, indices - members.start))
            else:
                runs.append((run, np.searchsorted(members, indices)))
        yield Stream(
            name=str(plan.buckets[number].key),
            size=len(members),
            num_positions=len(members),
            batch_size=plan.bucket_batch_size(number, batch_size),
            runs=runs,
        )


def _runs(num_positions: int, most: int) -> list[Indices]:
    """Return runs of consecutive positions, spread evenly; all positions if they are few."""
    if num_positions <= most:
        return [np.arange(num_positions, dtype=np.int64)]
    num_runs = most // _RUN
    starts = [number * (num_positions - _RUN) // (num_runs - 1) for number in range(num_runs)]
    return [np.arange(start, start + _RUN, dtype=np.int64) for start in starts]
