"""How many chunks each rank reads for its part of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Chunking, Segment
from feedline.plan.window_deal import WindowedOrder

__all__ = ["ChunkReads", "count_reads", "estimate_reads"]

_MOST_ROUNDS = 256


@dataclass(frozen=True, kw_only=True)
class ChunkReads:
    """The chunks that one rank reads: the fewest and the most, and those of all ranks together.

    An estimate takes every window that a rank touches as read whole.
    """

    fewest: int
    most: int
    total: int
    is_estimate: bool


def count_reads(chunks: Chunking, indices_of_ranks: list[NDArray[np.int64]]) -> ChunkReads:
    """Return the reads of ranks that consume these samples."""
    counts = [len(np.unique(chunks.rows_of(indices)[0])) for indices in indices_of_ranks]
    return ChunkReads(fewest=min(counts), most=max(counts), total=sum(counts), is_estimate=False)


def estimate_reads(segment: Segment) -> ChunkReads:
    """Return about what the ranks read in a fresh epoch, from a few rounds and ranks.

    In a round every rank gets a run of places, about one window; the last round is shorter.
    """
    plan = segment.plan
    assert plan.chunks is not None
    order = cast(WindowedOrder, plan.epoch_order(segment.epoch))
    world_size = segment.world_size
    num_rounds = -(-order.num_windows // world_size)
    # The last round is looked at on its own: ranks may share its windows.
    full = _spread(num_rounds - 1)
    ranks = sorted({0, world_size // 2, world_size - 1})
    weight = (num_rounds - 1) / len(full) if full else 0.0
    counts = []
    for rank in ranks:
        touched = [_num_windows(order, world_size, number, rank) for number in full]
        last = _num_windows(order, world_size, num_rounds - 1, rank)
        counts.append(round(plan.preload * (sum(touched) * weight + last)))
    mean = sum(counts) / len(counts)
    fewest, most = (min(count, plan.chunks.num_chunks) for count in (min(counts), max(counts)))
    total = min(round(mean * world_size), most * world_size)
    return ChunkReads(fewest=fewest, most=most, total=total, is_estimate=True)


def _spread(num_rounds: int) -> list[int]:
    """Return some of the rounds, spread over all of them."""
    num_chosen = min(num_rounds, _MOST_ROUNDS)
    return [number * num_rounds // num_chosen for number in range(num_chosen)]


def _num_windows(order: WindowedOrder, world_size: int, number: int, rank: int) -> int:
    """Return how many windows a rank touches in a round."""
    numbers = np.minimum(np.array([number, number + 1]) * world_size, order.num_windows)
    starts = order.window_starts(numbers)
    low, high = (starts - starts % world_size).tolist()
    run = (high - low) // world_size
    if not run:
        return 0
    first = low + rank * run
    return order.window_of(first + run - 1) - order.window_of(first) + 1
