"""Windows: what a rank reads, when, and that ranks do not read the same chunks."""

from __future__ import annotations

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from feedline.plan import EqualChunks, Segment, UnequalChunks, WindowOrder, WindowPlan
from plan_kinds import Account, through_json

pytestmark = pytest.mark.matrix


def equal(num_samples: int, chunk_size: int, preload: int, **options: object) -> WindowPlan:
    chunks = EqualChunks(num_samples=num_samples, chunk_size=chunk_size)
    return WindowPlan(chunks=chunks, preload=preload, **options)  # type: ignore[arg-type]


def reads(segment: Segment, rank: int, start: int, stop: int) -> set[int]:
    plan = segment.plan
    assert isinstance(plan, WindowPlan)
    return set(plan.reads(segment, rank, start, stop).tolist())


small_plans = st.builds(
    equal,
    st.integers(1, 400),
    st.integers(1, 20),
    st.integers(1, 5),
    seed=st.integers(0, 9),
    tail=st.just("even"),
)


@given(small_plans, st.integers(1, 5), st.integers(1, 9), st.data())
def test_reads_are_the_chunks_of_the_indices_by_first_use(
    plan: WindowPlan, world_size: int, batch_size: int, data: st.DataObject
) -> None:
    segment = plan.segment(world_size=world_size, batch_size=batch_size)
    rank = data.draw(st.integers(0, world_size - 1))
    start = data.draw(st.integers(0, segment.num_batches))
    stop = data.draw(st.integers(start, segment.num_batches))
    by_first_use: dict[int, None] = {}
    for batch in segment.block(rank, start, stop):
        chunks, _ = plan.chunks.rows_of(batch.indices)
        by_first_use.update(dict.fromkeys(chunks.tolist()))
    assert plan.reads(segment, rank, start, stop).tolist() == list(by_first_use)


# 96 chunks of 10 in windows of 4 make 24 windows: on 4 ranks six rounds of 40 entries each.
ROUNDS = {"world_size": 4, "batch_size": 5}
BATCHES_PER_ROUND = 8
NUM_ROUNDS = 6


def test_in_a_round_every_rank_reads_one_window_of_its_own() -> None:
    segment = equal(960, 10, 4).segment(**ROUNDS)
    assert segment.num_batches == NUM_ROUNDS * BATCHES_PER_ROUND
    everything: set[int] = set()
    for number in range(NUM_ROUNDS):
        span = number * BATCHES_PER_ROUND, (number + 1) * BATCHES_PER_ROUND
        windows = [reads(segment, rank, *span) for rank in range(4)]
        assert [len(window) for window in windows] == [4] * 4
        assert not any(one & other for one, other in combinations(windows, 2))
        assert not everything.intersection(*windows)
        everything.update(*windows)
    assert everything == set(range(96))


@pytest.mark.parametrize("num_samples", [957, 953, 931, 959])
def test_a_short_chunk_costs_a_rank_a_sliver_of_its_neighbours_windows(num_samples: int) -> None:
    missing = -num_samples % 10
    for seed in range(10):
        segment = equal(num_samples, 10, 4, seed=seed, tail="even").segment(**ROUNDS)
        for rank in range(4):
            for number in range(NUM_ROUNDS - 1):
                start = number * BATCHES_PER_ROUND
                indices = segment.block(rank, start, start + BATCHES_PER_ROUND).indices
                in_own_window = np.sort(np.bincount(indices // 10))[-4:].sum()
                # Runs shift by what the short chunk lacks, and by less than W for each rounding.
                assert len(indices) - in_own_window < missing + 2 * 4


@pytest.mark.parametrize("num_samples", [957, 953, 931, 845])
def test_in_the_short_last_round_a_rank_reads_at_most_two_windows(num_samples: int) -> None:
    segment = equal(num_samples, 10, 4, tail="drop").segment(world_size=4, batch_size=1)
    start = (num_samples - 1) // 160 * 40
    for rank in range(4):
        assert len(reads(segment, rank, start, segment.num_batches)) <= 2 * 4


@given(
    st.lists(st.integers(0, 30), min_size=30, max_size=80).filter(any),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 5),
)
def test_a_window_of_unequal_chunks_is_read_by_few_ranks(
    sizes: list[int], preload: int, world_size: int, seed: int
) -> None:
    assume(sum(sizes) >= world_size)
    plan = WindowPlan(chunks=UnequalChunks(sizes), preload=preload, seed=seed, tail="drop")
    segment = plan.segment(world_size=world_size, batch_size=1)
    num_windows = -(-len(sizes) // preload)
    num_rounds = -(-num_windows // world_size)
    total = sum(len(reads(segment, r, 0, segment.num_batches)) for r in range(world_size))
    # Every window by one rank, and by one more for each border between the runs of a round and for
    # each of the fewer than W positions by which a round begins early.
    assert total <= preload * (num_windows + 2 * (num_rounds + 1) * world_size)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 4), st.integers(1, 6))
def test_the_last_short_round_is_equal_on_all_ranks(
    num_samples: int, chunk_size: int, preload: int, world_size: int
) -> None:
    assume(num_samples >= world_size)
    plan = equal(num_samples, chunk_size, preload)
    segment = plan.segment(world_size=world_size, batch_size=1)
    blocks = [segment.block(rank, 0, segment.num_batches) for rank in range(world_size)]
    assert {len(block.indices) for block in blocks} == {num_samples // world_size}
    together = np.concatenate([block.indices for block in blocks])
    assert len(np.unique(together)) == len(together)


def test_a_few_chunks_are_still_shared_out_among_many_ranks() -> None:
    """Two windows for eight ranks: each window is cut for several of them."""
    segment = equal(80, 10, 4).segment(world_size=8, batch_size=5)
    assert segment.num_batches == 2
    everything = [segment.block(rank, 0, 2).indices for rank in range(8)]
    assert sorted(np.concatenate(everything).tolist()) == list(range(80))


@pytest.mark.parametrize("preload", [1, 3])
def test_empty_chunks_are_never_read(preload: int) -> None:
    sizes = [0, 5, 0, 0, 7, 1, 0, 9, 0]
    plan = WindowPlan(chunks=UnequalChunks(sizes), preload=preload, tail="even")
    for epoch in range(5):
        segment = plan.segment(world_size=2, batch_size=3, epoch=epoch)
        chunks = reads(segment, 0, 0, segment.num_batches) | reads(
            segment, 1, 0, segment.num_batches
        )
        assert chunks == {1, 4, 5, 7}


def test_a_run_of_positions_touches_few_chunks() -> None:
    order = WindowOrder(chunks=EqualChunks(num_samples=1000, chunk_size=10), preload=5)
    for start in range(0, 1000, 50):
        chunks = order.indices(0, range(start, start + 50)) // 10
        assert len(np.unique(chunks)) == 5


def test_samples_of_a_window_are_mixed() -> None:
    """In chunk order all ten neighbours of a window would be one apart."""
    order = WindowOrder(chunks=EqualChunks(num_samples=1000, chunk_size=100), preload=5)
    indices = order.indices(0, range(500))
    same_chunk = (indices[1:] // 100 == indices[:-1] // 100).mean()
    # A fifth by chance, 0.8 or more in any order that takes chunks one by one.
    assert 0.1 < same_chunk < 0.3
    assert (np.diff(indices) == 1).mean() < 0.05


def test_chunks_come_in_another_order_in_another_epoch_and_for_another_seed() -> None:
    def chunk_order(seed: int, epoch: int) -> list[int]:
        segment = equal(300, 10, 1, seed=seed).segment(world_size=1, batch_size=10, epoch=epoch)
        plan = segment.plan
        assert isinstance(plan, WindowPlan)
        return plan.reads(segment, 0, 0, 30).tolist()

    orders = [chunk_order(0, 0), chunk_order(0, 1), chunk_order(1, 0), chunk_order(1, 1)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len(set(map(tuple, orders))) == 4


def test_without_shuffling_every_rank_reads_its_windows_in_order() -> None:
    segment = equal(80, 10, 2, shuffle=False).segment(world_size=2, batch_size=10)
    found = [segment.block(rank, 0, 4).indices.tolist() for rank in (0, 1)]
    assert found[0] == [*range(20), *range(40, 60)]
    assert found[1] == [*range(20, 40), *range(60, 80)]


def test_reads_stay_few_after_a_resize_in_the_middle_of_a_round() -> None:
    plan = equal(960, 10, 4)
    segment = plan.segment(**ROUNDS)
    cursor = through_json(segment.cursor(BATCHES_PER_ROUND + 3))
    resumed = plan.resume(cursor, world_size=3, batch_size=5)
    # Four rests of 25 samples, then whole windows: the first round is 3 of the rests.
    for rank in range(3):
        assert len(reads(resumed, rank, 0, 5)) <= 4


def test_many_resizes_in_one_round_account_for_every_sample() -> None:
    plan = WindowPlan(
        chunks=UnequalChunks([5, 90, 0, 33, 60, 1, 1, 47, 200, 12]), preload=2, tail="even"
    )
    segment = plan.segment(world_size=3, batch_size=1)
    account = Account(plan, 0)
    for number in range(60):
        stop = min(segment.num_done + 2, segment.num_batches)
        account.receive(segment, segment.num_done, stop)
        cursor = through_json(segment.cursor(stop))
        segment = plan.resume(cursor, world_size=2 + number % 3, batch_size=1)
    account.receive(segment, segment.num_done, segment.num_batches)
    account.close(segment)
