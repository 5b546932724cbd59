"""Sizes that nobody can enumerate: random places, both ends, a resume at 90%, and the way back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Order,
    PastSegment,
    Permutation,
    Plan,
    Replay,
    SamplePlan,
    Segment,
    Shuffled,
    WindowOrder,
    WindowPlan,
)
from feedline.plan.shares import TAILS
from plan_kinds import through_json

pytestmark = pytest.mark.matrix

HUGE = (10**12, 2**63 - 1)
huge = pytest.mark.parametrize("n", HUGE, ids=["10**12", "2**63-1"])
W, B = 6, 50
OTHER_W, OTHER_B = 7, 33


def random_places(n: int, num_places: int) -> NDArray[np.int64]:
    """Distinct places in `[0, n)`, both ends among them."""
    inside = np.random.default_rng(0).integers(0, n, num_places)
    ends = np.array([0, 1, n - 2, n - 1], dtype=np.int64)
    return np.unique(np.concatenate([inside, ends]))


def mixture(n: int) -> Mixture:
    sizes = (n // 2, n // 4, n - n // 2 - n // 4)
    return Mixture(sizes=sizes, weights=(2, 1, 1), epoch_size=n)


def by_windows(n: int) -> WindowOrder:
    return WindowOrder(chunks=EqualChunks(num_samples=n, chunk_size=1000), preload=16)


def by_windows_of_single_samples(n: int) -> WindowOrder:
    return WindowOrder(chunks=EqualChunks(num_samples=n, chunk_size=1), preload=1)


def shuffled(n: int) -> Shuffled:
    return Shuffled(num_samples=n)


ORDERS = (shuffled, mixture, by_windows, by_windows_of_single_samples)
orders = pytest.mark.parametrize("make", ORDERS, ids=lambda make: make.__name__)


def buckets(n: int, mode: str) -> BucketPlan:
    edges = (0, n // 2, n - n // 5, n)
    groups = {i: range(*edges[i : i + 2]) for i in range(3)}
    return BucketPlan.from_groups(groups, mode=mode, tail="even")


PLANS: dict[str, Callable[[int], Plan]] = {
    "shuffled": lambda n: SamplePlan(order=shuffled(n), tail="even"),
    "mixture": lambda n: SamplePlan(order=mixture(n), tail="even"),
    "sequential buckets": lambda n: buckets(n, "sequential"),
    "interleaved buckets": lambda n: buckets(n, "interleaved"),
    "windows": lambda n: WindowPlan(
        chunks=EqualChunks(num_samples=n, chunk_size=1000), preload=16, tail="even"
    ),
}
plans = pytest.mark.parametrize("kind", PLANS)


def entries(segment: Segment, start: int, stop: int) -> NDArray[np.int64]:
    """The real entries of all ranks in batches `[start, stop)`."""
    parts = []
    for rank in range(segment.world_size):
        for batch in segment.block(rank, start, stop):
            parts.append(batch.indices[batch.is_real])
    return np.concatenate(parts)


def resized(plan: Plan) -> tuple[Segment, int, Segment]:
    """A segment, the number of its batches at 90%, and what follows on other ranks."""
    segment = plan.segment(world_size=W, batch_size=B)
    done = segment.num_batches * 9 // 10
    cursor = through_json(segment.cursor(done))
    return segment, done, plan.resume(cursor, world_size=OTHER_W, batch_size=OTHER_B)


@huge
def test_a_permutation_is_undone_by_its_inverse_on_both_sides(n: int) -> None:
    permutation = Permutation(n, key=11)
    places = random_places(n, 20_000)
    there, back = permutation.forward(places), permutation.inverse(places)
    for found in (there, back):
        assert found.min() >= 0
        assert found.max() < n
        assert len(np.unique(found)) == len(places)
    np.testing.assert_array_equal(permutation.inverse(there), places)
    np.testing.assert_array_equal(permutation.forward(back), places)


@huge
@orders
def test_an_order_stays_in_range_and_finds_every_place_again(
    n: int, make: Callable[[int], Order]
) -> None:
    order = make(n)
    places = random_places(n, 60)
    indices = order.indices(0, places)
    assert indices.min() >= 0
    assert indices.max() < n
    at = order.at(0)
    for place, index in zip(places.tolist(), indices.tolist(), strict=True):
        assert place in at.find(index)


@pytest.mark.slow
@huge
@pytest.mark.parametrize("make", ORDERS[2:], ids=lambda make: make.__name__)
def test_the_last_windows_are_permuted_among_themselves(
    n: int, make: Callable[[int], Order]
) -> None:
    tail = np.arange(n - 40_000, n, dtype=np.int64)
    indices = make(n).indices(0, tail)
    assert indices.min() >= 0
    assert indices.max() < n
    assert len(np.unique(indices)) == len(tail)


def expected_last_batch(order: Order, n: int, tail: str, rank: int) -> tuple[list[int], int]:
    """The indices of the last batch and how many are real, in plain Python integers."""
    full, rest = divmod(n, W * B)
    per_rank = -(-n // W)
    match tail:
        case "drop" | "exact":
            first, end = (full - 1) * B, full * B
        case "pad":
            first, end = full * B, (full + 1) * B
        case "even":
            first = full * B
            end = first + rest // W + (rank < rest % W)
        case "pad_ranks":
            first, end = (per_rank - 1) // B * B, per_rank
        case _:
            first, end = (per_rank // B - 1) * B, per_rank // B * B
    places = [entry * W + rank for entry in range(first, end)]
    positions = [place if place < n else place - n for place in places]
    return order.indices(0, positions).tolist(), sum(place < n for place in places)


@pytest.mark.parametrize("tail", [tail for tail in TAILS if tail != "exact"])
@huge
def test_first_and_last_batch_are_where_plain_integers_say(n: int, tail: str) -> None:
    order = Shuffled(num_samples=n, seed="huge")
    segment = SamplePlan(order=order, tail=tail).segment(world_size=W, batch_size=B)
    for rank in range(W):
        first = segment.batch(rank, 0)
        assert first.indices.tolist() == order.indices(0, range(rank, W * B, W)).tolist()
        last = segment.batch(rank, segment.num_batches - 1)
        indices, num_real = expected_last_batch(order, n, tail, rank)
        assert last.indices.tolist() == indices
        assert last.is_real.tolist() == [slot < num_real for slot in range(len(indices))]


@pytest.mark.parametrize(("n", "w", "b"), [(10**12, 8, 125), (2**63 - 1, 7, 73)])
def test_exact_fits_a_huge_epoch_that_divides(n: int, w: int, b: int) -> None:
    order = Shuffled(num_samples=n)
    segment = SamplePlan(order=order, tail="exact").segment(world_size=w, batch_size=b)
    assert segment.num_batches == n // (w * b)
    last = np.sort(entries(segment, segment.num_batches - 1, segment.num_batches))
    expected = order.indices(0, np.arange(n - w * b, n))
    np.testing.assert_array_equal(last, np.sort(expected))


@huge
@plans
def test_first_and_last_batches_hold_distinct_samples_in_range(n: int, kind: str) -> None:
    segment = PLANS[kind](n).segment(world_size=W, batch_size=B)
    first = entries(segment, 0, 3)
    last = entries(segment, segment.num_batches - 3, segment.num_batches)
    both = np.concatenate([first, last])
    assert both.min() >= 0
    assert both.max() < n
    assert len(np.unique(both)) == len(both)
    assert len(first) == 3 * W * B


@huge
@plans
def test_a_resume_at_ninety_percent_leaves_exactly_the_rest(n: int, kind: str) -> None:
    segment, done, resumed = resized(PLANS[kind](n))
    # Only the last batch of a bucket is short; at 90% that may be the case for two of the three.
    slack = 2 * W * B if "buckets" in kind else 0
    assert 0 <= resumed.num_left - (n - done * W * B) <= slack
    before = entries(segment, done - 200, done)
    after = entries(resumed, 0, 200)
    assert len(after) == 200 * OTHER_W * OTHER_B
    assert not np.intersect1d(before, after).size
    assert len(np.unique(after)) == len(after)


@huge
@pytest.mark.parametrize("kind", ["shuffled", "mixture"])
def test_a_resume_at_ninety_percent_goes_on_with_the_next_position(n: int, kind: str) -> None:
    plan = PLANS[kind](n)
    assert isinstance(plan, SamplePlan)
    _, done, resumed = resized(plan)
    start = done * W * B
    for rank in range(OTHER_W):
        positions = range(start + rank, start + OTHER_W * OTHER_B, OTHER_W)
        expected = plan.order.indices(0, positions)
        assert resumed.batch(rank, 0).indices.tolist() == expected.tolist()


@huge
@plans
def test_replay_finds_any_index_where_it_is_consumed(n: int, kind: str) -> None:
    plan = PLANS[kind](n)
    _, done, _ = resized(plan)
    replay = Replay(
        plan=plan, world_size=OTHER_W, batch_size=OTHER_B, history=[PastSegment(W, B, done)]
    )
    for index in random_places(n, 40).tolist():
        found = [place for place in replay.find(index) if place.is_real]
        if kind != "mixture":
            assert len(found) == 1
        for place in found:
            batch = replay.batch(rank=place.rank, number=place.batch)
            assert batch.indices[place.slot] == index


@huge
def test_a_resize_in_the_middle_of_a_round_loses_and_repeats_nothing(n: int) -> None:
    plan = PLANS["windows"](n)
    segment = plan.segment(world_size=4, batch_size=50)
    # A round is one window of 16 * 1000 samples per rank, so 320 batches of 50.
    start = segment.num_batches * 9 // 10 // 320 * 320
    done = start + 100
    resumed = plan.resume(
        through_json(segment.cursor(done)), world_size=OTHER_W, batch_size=OTHER_B
    )
    # The next round has the four interrupted windows and three new ones.
    num_batches = -(-(4 * 11_000 + 3 * 16_000) // (OTHER_W * OTHER_B)) + 1
    before, after = entries(segment, start, done), entries(resumed, 0, num_batches)
    interrupted = entries(segment, done, start + 320)
    assert not np.intersect1d(before, after).size
    assert len(np.unique(after)) == len(after)
    assert np.isin(interrupted, after).all()
