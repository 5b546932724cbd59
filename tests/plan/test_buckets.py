"""Buckets: who shares a batch, how large it is, and in which order buckets take turns."""

from __future__ import annotations

from itertools import groupby

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from feedline.errors import InvalidValueError
from feedline.plan import BucketPlan, Segment
from feedline.plan.buckets import quantile_edges
from plan_kinds import Account, through_json

length_lists = st.lists(st.integers(1, 300), min_size=1, max_size=120)
modes = pytest.mark.parametrize("mode", ["sequential", "interleaved"])


def ranges(*sizes: int) -> dict[int, range]:
    edges = [0, *np.cumsum(sizes).tolist()]
    return {number: range(*edges[number : number + 2]) for number in range(len(sizes))}


def labels(segment: Segment, rank: int = 0) -> list[int]:
    return [int(batch.bucket) for batch in segment.batches(rank) if batch.bucket is not None]


@given(length_lists, st.integers(300, 2000), st.integers(1, 5), st.integers(1, 6))
def test_padded_tokens_of_a_batch_never_exceed_the_budget(
    lengths: list[int], budget: int, world_size: int, num_buckets: int
) -> None:
    plan = BucketPlan.from_lengths(
        lengths, num_buckets=num_buckets, batch_by="tokens", tail="even", mode="interleaved"
    )
    segment = plan.segment(world_size=world_size, batch_size=budget)
    for rank in range(world_size):
        for batch in segment.batches(rank):
            assert batch.bucket is not None
            edge = plan.buckets[batch.bucket].key
            assert max(lengths[index] for index in batch.indices) <= edge
            assert len(batch.indices) * edge <= budget


@given(length_lists, st.integers(300, 2000))
def test_one_more_sample_would_exceed_the_budget(lengths: list[int], budget: int) -> None:
    plan = BucketPlan.from_lengths(lengths, num_buckets=3, batch_by="tokens", tail="pad")
    for batch in plan.segment(world_size=1, batch_size=budget).batches(0):
        assert batch.bucket is not None
        assert (len(batch.indices) + 1) * plan.buckets[batch.bucket].key > budget


@given(length_lists, st.lists(st.integers(1, 299), unique=True, max_size=6))
def test_a_sample_is_in_the_first_bucket_whose_edge_holds_it(
    lengths: list[int], inner: list[int]
) -> None:
    edges = [*sorted(inner), 300]
    plan = BucketPlan.from_lengths(lengths, edges=edges)
    members = {bucket.key: bucket.members.tolist() for bucket in plan.buckets}
    for index, length in enumerate(lengths):
        edge = next(edge for edge in edges if length <= edge)
        assert index in members[edge]
    assert sum(map(len, members.values())) == len(lengths)
    assert list(members) == sorted(members)


@given(length_lists, st.integers(1, 8))
def test_quantile_edges_are_lengths_below_which_their_part_of_the_samples_lies(
    lengths: list[int], num_buckets: int
) -> None:
    edges = quantile_edges(np.array(lengths), num_buckets).tolist()
    in_order = sorted(lengths)
    expected = {
        in_order[-(-len(lengths) * part // num_buckets) - 1] for part in range(1, num_buckets + 1)
    }
    assert edges == sorted(expected)
    assert edges[-1] == max(lengths)


def test_quantile_buckets_of_distinct_lengths_are_equally_large() -> None:
    lengths = np.random.default_rng(0).permutation(1000) + 1
    plan = BucketPlan.from_lengths(lengths, num_buckets=8)
    assert [len(bucket.members) for bucket in plan.buckets] == [125] * 8


@pytest.mark.parametrize(
    ("cost", "base_cost", "sizes"),
    [
        (lambda key: key[0] * key[1], 256 * 256, (32, 8, 2)),
        (lambda key: key[0], 256, (32, 16, 8)),
        (lambda key: 10**9, 1, (1, 1, 1)),
        (lambda key: 0.1, 1.0, (319, 319, 319)),  # 32 / 0.1 in exact arithmetic is just below 320
    ],
    ids=["area", "side", "never-below-one", "rounded-down"],
)
def test_batches_shrink_with_the_cost_of_a_sample(cost, base_cost, sizes) -> None:  # type: ignore[no-untyped-def]
    keys = [(256, 256), (512, 512), (1024, 1024)]
    groups = dict(zip(keys, ranges(1000, 1000, 1000).values(), strict=True))
    plan = BucketPlan.from_groups(groups, cost=cost, base_cost=base_cost)
    segment = plan.segment(world_size=2, batch_size=32)
    found = {batch.bucket: len(batch.indices) for batch in segment.batches(1)}
    assert found == dict(enumerate(sizes))


@modes
def test_all_ranks_are_in_the_same_bucket_at_the_same_step(mode: str) -> None:
    plan = BucketPlan.from_groups(ranges(3000, 5000, 900), mode=mode, tail="even")
    segment = plan.segment(world_size=3, batch_size=2)
    assert segment.num_batches > 1024
    assert labels(segment, 0) == labels(segment, 1) == labels(segment, 2)


@modes
def test_a_batch_holds_samples_of_its_bucket_only(mode: str) -> None:
    plan = BucketPlan.from_groups(ranges(3000, 5000, 900), mode=mode)
    for batch in plan.segment(world_size=2, batch_size=3).batches(1):
        assert batch.bucket is not None
        assert set(batch.indices.tolist()) <= set(plan.buckets[batch.bucket].members)


def test_sequential_finishes_a_bucket_before_the_next() -> None:
    plan = BucketPlan.from_groups(ranges(50, 20, 70, 30))
    visits = [bucket for bucket, _ in groupby(labels(plan.segment(world_size=2, batch_size=2)))]
    assert sorted(visits) == [0, 1, 2, 3]


def test_sequential_takes_the_buckets_as_given_when_nothing_is_shuffled() -> None:
    plan = BucketPlan.from_groups(ranges(3, 2), shuffle_buckets=False, shuffle_within=False)
    segment = plan.segment(world_size=1, batch_size=1)
    assert [int(batch.indices[0]) for batch in segment.batches(0)] == [0, 1, 2, 3, 4]


def test_sequential_takes_the_buckets_in_another_order_in_another_epoch() -> None:
    plan = BucketPlan.from_groups(ranges(*[2] * 20))
    visits = [labels(plan.segment(world_size=1, batch_size=2, epoch=epoch)) for epoch in range(3)]
    assert all(sorted(visit) == list(range(20)) for visit in visits)
    assert visits[0] != visits[1] != visits[2]


@modes
@pytest.mark.parametrize("shuffle_within", [False, True])
def test_samples_are_shuffled_inside_a_bucket_only_when_asked(
    mode: str, shuffle_within: bool
) -> None:
    plan = BucketPlan.from_groups(ranges(40, 60), mode=mode, shuffle_within=shuffle_within)
    segment = plan.segment(world_size=1, batch_size=1)
    found: dict[int | None, list[int]] = {0: [], 1: []}
    for batch in segment.batches(0):
        found[batch.bucket].append(int(batch.indices[0]))
    is_sorted = [found[bucket] == sorted(found[bucket]) for bucket in (0, 1)]
    assert is_sorted == [not shuffle_within] * 2


def test_interleaved_gives_every_thousand_batches_their_share() -> None:
    sizes = (40_000, 20_000, 9_000, 1_000)
    plan = BucketPlan.from_groups(ranges(*sizes), mode="interleaved")
    segment = plan.segment(world_size=2, batch_size=2)
    found = np.array(labels(segment))
    total = len(found)
    assert np.bincount(found).tolist() == [size // 4 for size in sizes]
    for start in range(0, total - 1000, 250):
        counts = np.bincount(found[start : start + 1000], minlength=4)
        # A window of a thousand cuts at most two blocks, whose inside is shuffled: six standard
        # deviations of that, and two for the rounding of the blocks' own shares.
        share = np.array(sizes) / sum(sizes)
        assert (np.abs(counts - 1000 * share) < 2 + 6 * np.sqrt(1000 * share)).all()


def test_interleaved_does_not_stay_in_one_bucket() -> None:
    plan = BucketPlan.from_groups(ranges(4000, 4000), mode="interleaved")
    found = labels(plan.segment(world_size=1, batch_size=1))
    longest = max(len(list(run)) for _, run in groupby(found))
    # A run of 60 equal labels has a probability of 2**-60 at each of 8,000 places.
    assert longest < 60


@modes
def test_many_blocks_of_batches_survive_resizes(mode: str) -> None:
    """More than a thousand batches, so that the labels are shuffled in several blocks."""
    plan = BucketPlan.from_groups(ranges(9000, 2500, 30), mode=mode, tail="even", seed="resize")
    segment = plan.segment(world_size=2, batch_size=2)
    account = Account(plan, 0)
    for world_size, batch_size in ((3, 1), (1, 2), (4, 3)):
        stop = segment.num_batches * 2 // 5
        account.receive(segment, 0, stop)
        cursor = through_json(segment.cursor(stop))
        segment = plan.resume(cursor, world_size=world_size, batch_size=batch_size)
    account.receive(segment, 0, segment.num_batches)
    account.close(segment)


@modes
def test_every_sample_is_found_in_its_batch_among_many_blocks(mode: str) -> None:
    plan = BucketPlan.from_groups(ranges(9000, 2500, 30), mode=mode, tail="even")
    segment = plan.segment(world_size=2, batch_size=2)
    for index in range(0, plan.num_indices, 97):
        (place,) = [place for place in segment.find(index) if place.is_real]
        assert segment.batch(place.rank, place.batch).indices[place.slot] == index


def test_a_batch_among_many_blocks_is_the_same_when_asked_for_alone() -> None:
    """Blocks begin near multiples of their length, the more buckets the less near."""
    plan = BucketPlan.from_groups(ranges(*range(100, 160)), mode="interleaved")
    segment = plan.segment(world_size=2, batch_size=1)
    assert segment.num_batches > 3000
    for batch in segment.batches(1):
        alone = segment.batch(1, batch.number)
        assert (alone.bucket, alone.indices.tolist()) == (batch.bucket, batch.indices.tolist())


def test_a_dropped_tail_of_a_finished_bucket_comes_back_after_a_resize() -> None:
    plan = BucketPlan.from_groups(ranges(7, 7), shuffle_buckets=False)
    segment = plan.segment(world_size=1, batch_size=4)
    assert segment.num_dropped == 6
    resumed = plan.resume(segment.cursor(1), world_size=1, batch_size=1)
    assert resumed.num_batches == 3 + 7
    assert resumed.num_dropped == 0


def test_a_budget_below_the_longest_sample_is_refused() -> None:
    plan = BucketPlan.from_lengths([10, 30], num_buckets=2, batch_by="tokens")
    with pytest.raises(InvalidValueError, match="batch_size=29 tokens must be at least 30"):
        plan.segment(world_size=1, batch_size=29)
