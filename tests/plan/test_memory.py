"""Peak allocations do not depend on the size of the data; numpy reports its arrays to tracemalloc.

What is measured is one process of a run: it builds the plan, takes a first batch, comes back at 90%
of the epoch on other ranks, and takes a thousand batches from there.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.plan import (
    BucketPlan,
    Cursor,
    EqualChunks,
    Mixture,
    Plan,
    SamplePlan,
    Shuffled,
    Subset,
    UnequalChunks,
    WindowPlan,
)

MIB = 2**20
LIMIT = 8 * MIB


def shuffled(n: int) -> Plan:
    return SamplePlan(order=Shuffled(num_samples=n))


def subset_of_a_range(n: int) -> Plan:
    return SamplePlan(order=Subset(range(0, 2 * n, 2), order=Shuffled(num_samples=n)))


def mixture(n: int) -> Plan:
    sizes = (n // 2, n // 4, n - n // 2 - n // 4)
    return SamplePlan(order=Mixture(sizes=sizes, weights=(1, 1, 2)))


def changed_mixture(n: int) -> Plan:
    order = Mixture(sizes=(n // 2, n // 2), weights=(1, 2))
    return SamplePlan(order=order.changed((3, 1), epoch=0, position=n // 3))


def _buckets(n: int, mode: str) -> Plan:
    edges = [n * i // 5 for i in range(6)]
    return BucketPlan.from_groups({i: range(*edges[i : i + 2]) for i in range(5)}, mode=mode)


def sequential_buckets(n: int) -> Plan:
    return _buckets(n, "sequential")


def interleaved_buckets(n: int) -> Plan:
    return _buckets(n, "interleaved")


def windows(n: int) -> Plan:
    return WindowPlan(chunks=EqualChunks(num_samples=n, chunk_size=1000), preload=16)


PLANS = (
    shuffled,
    subset_of_a_range,
    mixture,
    changed_mixture,
    sequential_buckets,
    interleaved_buckets,
    windows,
)


def live_through_it(make: Callable[[int], Plan], n: int) -> None:
    plan = make(n)
    segment = plan.segment(world_size=8, batch_size=64)
    next(segment.batches(3))
    cursor = Cursor.from_json(segment.cursor(segment.num_batches * 9 // 10).to_json())
    resumed = plan.resume(cursor, world_size=6, batch_size=16)
    taken = sum(1 for _ in islice(resumed.batches(5), 1000))
    assert taken == min(1000, resumed.num_batches)


@pytest.fixture
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace allocations, and yield a function that returns (what is held, the peak) in bytes."""
    live_through_it(shuffled, 10_000)  # so that caches and lazy imports are not counted
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", [10**6, 10**12], ids=["1e6", "1e12"])
@pytest.mark.parametrize("make", PLANS, ids=lambda make: make.__name__)
def test_a_run_stays_under_eight_mebibytes(
    traced: Callable[[], tuple[int, int]], make: Callable[[int], Plan], n: int
) -> None:
    live_through_it(make, n)
    assert traced()[1] < LIMIT


NUM_ENTRIES = 10**6


def listed_subset(entries: NDArray[np.int64]) -> Plan:
    return SamplePlan(order=Subset(entries, order=Shuffled(num_samples=len(entries))))


def listed_bucket(entries: NDArray[np.int64]) -> Plan:
    return BucketPlan.from_groups({"all": entries})


def by_lengths(entries: NDArray[np.int64]) -> Plan:
    return BucketPlan.from_lengths(entries % 100 + 1, num_buckets=8)


def unequal_chunks(entries: NDArray[np.int64]) -> Plan:
    return WindowPlan(chunks=UnequalChunks(entries % 5), preload=4)


@pytest.mark.parametrize(
    "make",
    [listed_subset, listed_bucket, by_lengths, unequal_chunks],
    ids=lambda make: make.__name__,
)
def test_a_list_from_the_caller_costs_at_most_one_array(
    traced: Callable[[], tuple[int, int]], make: Callable[[NDArray[np.int64]], Plan]
) -> None:
    plan = make(np.arange(NUM_ENTRIES, dtype=np.int64))
    segment = plan.segment(world_size=4, batch_size=10)
    segment.batch(1, 0)
    assert traced()[0] < 8 * NUM_ENTRIES + MIB
