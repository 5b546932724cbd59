"""Indices of whole blocks equal those of single positions, however they are computed together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from feedline.plan import (
    Block,
    BucketPlan,
    EqualChunks,
    Mixture,
    Plan,
    SamplePlan,
    Segment,
    UnequalChunks,
    WindowOrder,
    WindowPlan,
)
from feedline.plan.chunk_lookup import lookups_of
from feedline.plan.feistel import FeistelNetwork
from feedline.plan.feistel_tables import FeistelTables
from feedline.plan.interleave import Interleave
from feedline.plan.many_permutations import permute_runs
from feedline.plan.permutation import Permutation
from feedline.plan.strided_layout import StridedLayout

# Small words multiply and add by other rules in older versions of numpy.
pytestmark = pytest.mark.matrix
KEY = 77


def hashed(n: int, values: list[int], *, backward: bool) -> list[int]:
    """Walk one value at a time, so that no network ever makes tables."""
    networks = (FeistelNetwork(n, KEY, 3) for _ in values)
    walks = (network.inverse if backward else network.forward for network in networks)
    return [walk(np.array([v]))[0] for walk, v in zip(walks, values, strict=True)]


@given(
    st.one_of(st.integers(4097, 5000), st.integers(4097, 2**32), st.integers(2**30, 2**30 + 2)),
    st.booleans(),
    st.data(),
)
def test_tables_say_what_hashing_says(n: int, backward: bool, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    network = FeistelNetwork(n, KEY, 3)
    network.forward(np.arange(min(n, 2**17)))
    assert isinstance(network._tables, FeistelTables)
    found = (network.inverse if backward else network.forward)(np.array(values)).tolist()
    assert found == hashed(n, values, backward=backward)


@given(
    st.one_of(st.integers(4097, 6000), st.integers(4097, 2**32), st.integers(2**16, 2**16 + 700)),
    st.data(),
)
@settings(max_examples=60)
def test_runs_and_strides_say_what_single_positions_say(n: int, data: st.DataObject) -> None:
    # Larger runs than what is computed at once, and those that begin and end inside a row.
    step = data.draw(st.sampled_from([1, 1, 3, 700]))
    first = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(first + 1, min(n, first + 40_000 * step)))
    positions = range(first, end, step)
    expected = Permutation(n, KEY, 3).forward(np.array(positions))
    assert np.array_equal(Permutation(n, KEY, 3).stride(positions), expected)
    assert np.array_equal(Permutation(n, KEY, 3).words(np.array(positions)), expected)


@given(st.lists(st.tuples(st.integers(1, 2**32 + 9), st.integers(1, 9000)), min_size=1, max_size=6))
@settings(max_examples=40)
def test_permutations_say_the_same_together(runs: list[tuple[int, int]]) -> None:
    permutations = [Permutation(n, KEY, number) for number, (n, _) in enumerate(runs)]
    edges = [0, *accumulate(count for _, count in runs)]
    parts = [np.arange(count) * 999_983 % n for n, count in runs]
    together = permute_runs(permutations, edges, np.concatenate(parts))
    alone = [own.forward(part) for own, part in zip(permutations, parts, strict=True)]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("n", [4097, 4102, 4160, 4161, 4225, 4226, 9950])
def test_values_that_leave_come_back_as_in_a_plain_walk(n: int, number: int) -> None:
    # In some of these networks values outside go round among themselves for ever.
    permutation = Permutation(n, KEY, number)
    forward = permutation.forward(np.arange(n))
    assert np.array_equal(np.sort(forward), np.arange(n))
    assert np.array_equal(permutation.inverse(forward), np.arange(n))


chunk_sizes = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    st.lists(st.sampled_from([1, 9000]), min_size=1, max_size=4),
    st.integers(1, 30).map(lambda size: [size] * 5),
).filter(any)


@given(st.lists(chunk_sizes, min_size=1, max_size=4), st.sampled_from([0, 50, 2**16]))
def test_a_place_is_looked_up_in_the_chunk_that_holds_it(
    windows: list[list[int]], most_listed: int
) -> None:
    edges = [[0, *accumulate(sizes)] for sizes in windows]
    starts = np.array([start for own in edges for start in own[:-1]])
    ends = np.array([end for own in edges for end in own[1:]])
    shifts = np.arange(len(starts)) ** 2 * 1000 - 77
    cuts = np.array([0, *accumulate(map(len, windows))])
    lookups = lookups_of(starts, ends, shifts, cuts, most_listed)
    first = 0
    for lookup, sizes in zip(lookups, windows, strict=True):
        places = np.arange(sum(sizes))
        indices = np.empty(len(places), dtype=np.int64)
        plain = np.repeat(shifts[first : first + len(sizes)], sizes) + places
        for kind in (np.int64, np.uint32, np.uint16):
            lookup.write(places.astype(kind), indices)
            assert indices.tolist() == plain.tolist()
        first += len(sizes)


def window_plans() -> list[WindowPlan]:
    chosen = np.random.default_rng(0)
    return [
        WindowPlan(chunks=EqualChunks(num_samples=99_990, chunk_size=700), preload=8),
        WindowPlan(chunks=EqualChunks(num_samples=99_990, chunk_size=700), preload=1),
        WindowPlan(chunks=UnequalChunks(chosen.integers(500, 1500, 100)), preload=7),
        WindowPlan(chunks=UnequalChunks([0, 5000, 1, 9000, 0, 0, 30_000, 1, 1, 2000]), preload=2),
    ]


def plain_windows(plan: WindowPlan) -> list[int]:
    """Return a whole epoch of windows, written down window by window from single positions."""
    order = plan.order.at(0)
    positions = np.arange(order.num_positions)
    # Positions in descending order are no runs, so each is looked up by itself.
    return order.indices(positions[::-1].copy())[::-1].tolist()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("world_size", [1, 3])
def test_blocks_of_windows_are_those_of_single_positions(number: int, world_size: int) -> None:
    plan = window_plans()[number]
    plain = np.array(plain_windows(plan))
    assert sorted(plain.tolist()) == list(range(plan.chunks.num_samples))
    segment = plan.segment(world_size=world_size, batch_size=16)
    for rank in range(world_size):
        positions = segment.deal.positions_of(rank, 0, segment.num_batches * 16)  # type: ignore[attr-defined]
        expected = plain[positions]
        for size in (segment.num_batches, 61, 1000):
            found = [
                segment.block(rank, first, min(first + size, segment.num_batches)).indices
                for first in range(0, segment.num_batches, size)
            ]
            assert np.array_equal(np.concatenate(found), expected)


@given(st.integers(0, 3), st.integers(1, 5), st.data())
@settings(max_examples=15)
def test_blocks_of_windows_do_not_depend_on_what_was_asked_before(
    number: int, world_size: int, data: st.DataObject
) -> None:
    plan: Plan = window_plans()[number]
    if data.draw(st.booleans()):
        halted = plan.segment(world_size=4, batch_size=8).cursor(90)
        used = plan.resume(halted, world_size=world_size, batch_size=8)
    else:
        used = plan.segment(world_size=world_size, batch_size=8)
    for _ in range(6):
        rank = data.draw(st.integers(0, world_size - 1))
        start = data.draw(st.integers(0, used.num_batches - 1))
        stop = data.draw(st.integers(start, used.num_batches))
        fresh = plan.resume(used.cursor(0), world_size=world_size, batch_size=8)
        if used.history:
            assert fresh.history == used.history
        found, expected = (each.block(rank, start, stop).indices for each in (used, fresh))
        assert np.array_equal(found, expected)


def test_runs_of_positions_in_any_sequence_give_the_same_indices() -> None:
    order = WindowOrder(chunks=EqualChunks(num_samples=50_000, chunk_size=900), preload=3)
    runs = [np.arange(40_000, 49_000), np.arange(100, 9000), np.arange(20_000, 30_000)]
    together = order.indices(0, np.concatenate(runs))
    assert together.tolist() == [i for run in runs for i in order.indices(0, run).tolist()]


@pytest.mark.parametrize("counts", [[5, 7], [0, 10**6, 3, 2 * 10**6], [10**5] * 16, [9, 10**6] * 9])
def test_positions_scattered_over_blocks_are_located_as_single_ones(counts: list[int]) -> None:
    total = sum(counts)
    layout = Interleave(counts, key=KEY, block_length=5000, in_order=False)
    for stride in (1, 613, 4999, 60_000):
        positions = np.arange(stride // 2, total, stride)[:2000]
        labels, ordinals = layout.locate(positions)
        chosen = slice(None, None, max(1, len(positions) // 50))
        alone = [layout.locate(np.array([position])) for position in positions[chosen].tolist()]
        assert labels[chosen].tolist() == [int(label[0]) for label, _ in alone]
        assert ordinals[chosen].tolist() == [int(ordinal[0]) for _, ordinal in alone]


@pytest.mark.parametrize("counts", [[5, 7], [0, 10**6, 3, 2 * 10**6], [10**5] * 16, [2**32, 1, 9]])
@pytest.mark.parametrize("least", [1000, 4100, 5000])
def test_evenly_spaced_positions_are_located_as_any(counts: list[int], least: int) -> None:
    total = sum(counts)
    layout = Interleave(counts, key=KEY, block_length=max(least, total // 2000), in_order=False)
    strided = StridedLayout.of(layout)
    assert strided is not None
    for step in (1, 2, 613, 4999, 60_000):
        for first in (0, step // 2, max(0, total - 3000 * step)):
            count = min(3000, -(-(total - first) // step))
            if count > 0:
                labels, ordinals = strided.locate(first, step, count)
                expected = layout.locate(np.arange(count) * step + first)
                assert np.array_equal(labels, expected[0])
                assert np.array_equal(ordinals, expected[1])
                lows, highs = strided.ordinals_around(first, first + (count - 1) * step)
                assert np.all(np.array(lows)[expected[0]] <= expected[1])
                assert np.all(expected[1] < np.array(highs)[expected[0]])
                begun = np.array(lows)
                _, later = strided.locate(first, step, count, begun)
                assert np.array_equal(later, expected[1] - begun[expected[0]])


def plans_read_ahead() -> list[Plan]:
    parts = [range(0, 700), range(700, 1500), range(1500, 9000)]
    return [
        SamplePlan(order=Mixture(sizes=[5_000_000, 900], weights=[5, 1]), tail="pad"),
        SamplePlan(order=Mixture(sizes=[300, 500], weights=[1, 1]), tail="even"),
        BucketPlan.from_groups(dict(enumerate(parts)), mode="interleaved", tail="pad"),
        BucketPlan.from_groups(
            dict(enumerate(parts)), mode="interleaved", tail="even", cost=lambda key: 1 + key
        ),
    ]


def assert_same_block(found: Block, expected: Block) -> None:
    assert found.first == expected.first
    for name in ("indices", "bounds", "is_real", "buckets"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and np.array_equal(one, other)), name


@given(st.integers(0, 3), st.integers(1, 3), st.data())
@settings(max_examples=25)
def test_blocks_do_not_depend_on_what_was_computed_ahead(
    number: int, world_size: int, data: st.DataObject
) -> None:
    plan = plans_read_ahead()[number]
    used = plan.segment(world_size=world_size, batch_size=8)
    rank, start = 0, data.draw(st.integers(0, used.num_batches - 1))
    if data.draw(st.booleans()):
        # The tail, where blocks hold padding.
        start = max(0, used.num_batches - 40)
    for _ in range(8):
        stop = min(start + data.draw(st.integers(0, 30)), used.num_batches)
        found = used.block(rank, start, stop)
        fresh = plan.segment(world_size=world_size, batch_size=8).block(rank, start, stop)
        assert_same_block(found, fresh)
        # Who asked may write to what it got.
        found.indices[:] = -1
        start = stop
        if data.draw(st.integers(0, 5)) == 0:
            rank = data.draw(st.integers(0, world_size - 1))
            start = data.draw(st.integers(0, used.num_batches))


def test_threads_that_share_a_segment_get_their_own_blocks() -> None:
    for plan in plans_read_ahead():
        shared = plan.segment(world_size=2, batch_size=8)
        last = min(shared.num_batches, 300)
        starts = [(rank, start) for start in range(0, last, 3) for rank in (0, 1)]

        def indices(
            place: tuple[int, int], shared: Segment = shared, last: int = last
        ) -> list[int]:
            rank, start = place
            return shared.block(rank, start, min(start + 3, last)).indices.tolist()

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(indices, starts))
        fresh = plan.segment(world_size=2, batch_size=8)
        whole = [fresh.block(rank, 0, last) for rank in (0, 1)]
        assert found == [
            whole[rank].part(start, min(start + 3, last)).indices.tolist() for rank, start in starts
        ]


@pytest.mark.parametrize("world_size", [1, 8, 1024])
@pytest.mark.parametrize("num_sources", [5, 17])
def test_blocks_of_a_mixture_are_those_of_single_positions(
    num_sources: int, world_size: int
) -> None:
    sizes = [4000, 5000, 10**6, 3 * 10**7, 10**9] + [10**5] * (num_sources - 5)
    mixture = Mixture(sizes=sizes, weights=[1.0] * num_sources, epoch_size=10**8)
    segment = SamplePlan(order=mixture).segment(world_size=world_size, batch_size=8)
    block = segment.block(world_size // 2, 3, 700).indices
    chosen = range(0, len(block), 97)
    positions = [(24 + entry) * world_size + world_size // 2 for entry in chosen]
    alone = [int(mixture.indices(0, [position])[0]) for position in positions]
    assert block[list(chosen)].tolist() == alone


def networks_made(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, world_size: int, blocks: list[tuple[int, int]]
) -> int:
    """Return how many networks are prepared for some blocks of one rank."""
    segment = plan.segment(world_size=world_size, batch_size=32)
    made, prepare = [0], FeistelNetwork.__init__

    def counting(*arguments: object) -> None:
        made[0] += 1
        prepare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FeistelNetwork, "__init__", counting)
    for start, stop in blocks:
        segment.block(world_size // 2, start, stop)
    return made[0]


@pytest.mark.parametrize("world_size", [1, 8, 1024])
def test_short_blocks_of_one_window_prepare_it_once(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = EqualChunks(num_samples=10**9, chunk_size=10_000)
    plan = WindowPlan(chunks=chunks, preload=4)
    blocks = [(number * 64, number * 64 + 64) for number in range(19)]
    assert networks_made(monkeypatch, plan, world_size, blocks) == 1


def test_a_block_of_a_mixture_on_many_ranks_prepares_few_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixture = Mixture(sizes=[2 * 10**8] * 5, weights=[5, 4, 3, 2, 1])
    plan = SamplePlan(order=mixture)
    assert networks_made(monkeypatch, plan, 1024, [(0, 1024)]) <= 7


def test_the_chunks_of_a_block_are_permuted_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    order = WindowOrder(chunks=EqualChunks(num_samples=10**8, chunk_size=100), preload=100)
    epoch = order.at(0)
    sizes: list[int] = []
    forward = Permutation.forward

    def counting(permutation: Permutation, positions: np.ndarray) -> np.ndarray:
        sizes.append(permutation.n)
        return forward(permutation, positions)

    monkeypatch.setattr(Permutation, "forward", counting)
    epoch.indices(np.arange(5000, 55_000))
    assert sizes.count(10**6) == 1
