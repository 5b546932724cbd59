"""Work and state that stay small with very many buckets, sources and resizes.

What is computed for all labels at once equals the formulas for one; work is counted, not timed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import floor
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from feedline.errors import InvalidValueError, PlanMismatchError, TailError
from feedline.plan import (
    Bucket,
    BucketPlan,
    CostBatch,
    Cursor,
    EqualChunks,
    FixedBatch,
    Mixture,
    PastSegment,
    Plan,
    Replay,
    SamplePlan,
    Segment,
    Share,
    Shuffled,
    TokenBatch,
    WindowPlan,
    interleave,
)
from feedline.plan import buckets as buckets_module
from feedline.plan.bucket_deal import batch_sizes_of
from feedline.plan.bucket_shares import BucketShares, sum_of
from feedline.plan.deals import Remaining
from feedline.plan.interleave import Interleave
from feedline.plan.many_permutations import permute_each
from feedline.plan.permutation import Permutation
from feedline.plan.seeds import derive_key, derive_keys
from feedline.plan.shares import PrefixRest
from feedline.plan.window_deal import WindowDeal
from feedline.plan.windows import WindowEpoch
from feedline.runs import RunConfig, dry_run
from plan_kinds import any_plan, fits, tails

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**62))


def many_buckets(count: int, **options: Any) -> BucketPlan:
    buckets = [Bucket(number, range(40 * number, 40 * number + 40)) for number in range(count)]
    return BucketPlan(buckets=buckets, mode="interleaved", **options)


def ordinals_one_by_one(counts: list[int], offsets: list[int], block: int, total: int) -> list[int]:
    """The ordinals before a block, in Python's integers."""
    pairs = zip(counts, offsets, strict=True)
    return [(block * count + offset) // total for count, offset in pairs]


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 2000), st.integers(0, 99))
def test_blocks_start_where_the_formula_says(counts: list[int], length: int, key: int) -> None:
    assume(0 < sum(counts) < 2**62)
    layout = Interleave(counts, key=key, block_length=length)
    num_blocks = max(1, -(-sum(counts) // length))
    offsets = [derive_key(key, "offset", 0, i) % num_blocks for i in range(len(counts))]
    for block in (0, 1, num_blocks // 3, num_blocks - 1, num_blocks):
        expected = ordinals_one_by_one(counts, offsets, block, num_blocks)
        assert layout._ordinals_at(block).tolist() == expected
    position = sum(counts) // 2
    block = layout.block_at(position)
    assert block.start <= position < block.end


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any), st.booleans())
def test_every_position_is_found_again(counts: list[int], in_order: bool) -> None:
    layout = Interleave(counts, key=3, block_length=16, in_order=in_order)
    total = sum(counts)
    labels, ordinals = layout.locate(np.arange(total))
    assert np.bincount(labels, minlength=len(counts)).tolist() == counts
    for label in set(labels.tolist()):
        own = np.flatnonzero(labels == label)
        by_ordinal = own[np.argsort(ordinals[own])]
        assert layout.positions_of(label, np.arange(counts[label])).tolist() == by_ordinal.tolist()
    for position in (0, total // 2, total):
        expected = np.bincount(labels[:position], minlength=len(counts))
        if in_order:
            assert layout.counts_before(position).tolist() == expected.tolist()
        pending, rest = layout.cut(position)
        left = [
            sorted([*early.tolist(), *range(first, count)])
            for early, first, count in zip(pending, rest, counts, strict=True)
        ]
        assert left == [
            sorted(ordinals[position:][labels[position:] == label].tolist())
            for label in range(len(counts))
        ]


@given(
    st.lists(st.tuples(numbers, st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(1, 2**31),
    tails,
)
def test_shares_of_all_buckets_are_those_of_each(
    each: list[tuple[int, int]], world_size: int, tail: str
) -> None:
    left, sizes = (np.array(column, dtype=np.int64) for column in zip(*each, strict=True))
    together = BucketShares(left, world_size, sizes, tail)
    alone = [Share(count, world_size, size, tail) for count, size in each]
    assert together.num_batches.tolist() == [share.num_batches for share in alone]
    assert together.num_dropped == sum(share.num_dropped for share in alone)
    assert together.num_padded == sum(share.num_padded for share in alone)
    half = together.num_batches // 2
    assert together.num_consumed(half).tolist() == [
        share.num_consumed(count) for share, count in zip(alone, half.tolist(), strict=True)
    ]


def test_the_first_bucket_that_does_not_fit_exactly_is_named() -> None:
    with pytest.raises(TailError, match="num_positions=7 must be a multiple"):
        BucketShares(np.array([8, 7, 5]), 2, np.array([2, 2, 2]), "exact")
    with pytest.raises(InvalidValueError, match="batch_size=0"):
        BucketShares(np.array([8, 7]), 2, np.array([2, 0]), "drop")


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9), st.integers(1, 2**31))
def test_batch_sizes_of_costs_are_exact(costs: list[float], batch_size: int) -> None:
    expected = [max(1, floor(batch_size / Fraction(cost))) for cost in costs]
    if max(expected) > 2**31:
        bucket = next(n for n, size in enumerate(expected) if size > 2**31)
        with pytest.raises(InvalidValueError, match=f"the batch size of bucket {bucket}="):
            batch_sizes_of(CostBatch(costs), len(costs), batch_size)
        return
    found = batch_sizes_of(CostBatch(costs), len(costs), batch_size)
    assert found.tolist() == expected


@given(st.integers(1, 2**20), st.integers(1, 1000))
def test_a_cost_that_divides_the_batch_exactly_loses_nothing(count: int, scale: int) -> None:
    cost = 1 / count
    rule = CostBatch([cost, 3 * cost])
    expected = [rule.batch_size(bucket, scale) for bucket in (0, 1)]
    assert batch_sizes_of(rule, 2, scale).tolist() == expected


def test_rules_of_users_are_asked_for_each_bucket() -> None:
    class Halved(FixedBatch):
        def batch_size(self, bucket: int, batch_size: int) -> int:
            return batch_size // (bucket + 1)

    assert batch_sizes_of(Halved(), 3, 12).tolist() == [12, 6, 4]
    assert batch_sizes_of(TokenBatch([3, 5]), 2, 30).tolist() == [10, 6]
    with pytest.raises(InvalidValueError, match="must be at least 2000"):
        batch_sizes_of(TokenBatch([3, 2000]), 2, 30)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 60), st.integers(4000, 6000), st.integers(2**32, 2**60)),
            st.integers(0, 2**128 - 1),
            st.integers(0, 5),
            st.sampled_from([0, 1, 3, 300]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_many_permutations_together_are_those_of_each(
    each: list[tuple[int, int, int, int]], chosen: Any
) -> None:
    sizes, keys, which, counts = (list(column) for column in zip(*each, strict=True))
    values = [
        np.array([chosen.randrange(size) for _ in range(count)], dtype=np.int64)
        for size, count in zip(sizes, counts, strict=True)
    ]
    found = permute_each(
        np.array(sizes), keys, np.array(which), np.array(counts), np.concatenate(values)
    )
    expected = [
        Permutation(size, key, number).forward(own)
        for size, key, number, own in zip(sizes, keys, which, values, strict=True)
    ]
    assert found.tolist() == np.concatenate(expected).tolist()


def test_keys_of_many_names_are_those_of_each() -> None:
    assert derive_keys("x", "y", 3, 20) == [derive_key("x", "y", 3, i) for i in range(20)]


def test_sums_may_exceed_64_bits() -> None:
    assert sum_of(np.array([2**62] * 5)) == 5 * 2**62
    assert sum_of(np.array([], dtype=np.int64)) == 0


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Count the calls of a function from now on, in a list of one number."""
    calls, original = [0], getattr(owner, name)

    def counting(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_a_segment_of_very_many_buckets_derives_few_keys_and_deals_no_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = many_buckets(70_000)
    keys = [counted(monkeypatch, module, "derive_key") for module in (interleave, buckets_module)]
    many = counted(monkeypatch, interleave, "derive_keys")
    deals = counted(monkeypatch, PrefixRest, "deal")
    segment = plan.segment(world_size=2, batch_size=4)
    resumed = plan.resume(segment.cursor(100), world_size=3, batch_size=4)
    assert keys[0][0] + keys[1][0] <= 8
    assert (many[0], deals[0]) == (0, 0)
    resumed.block(0, 0, 5)
    assert deals[0] <= 5


def test_offsets_of_very_many_labels_are_spread_evenly() -> None:
    offsets = interleave._offsets(70_000, key=5, num_blocks=7)
    expected = len(offsets) / 7
    assert np.abs(np.bincount(offsets) - expected).max() < 5 * expected**0.5


def test_a_cursor_of_very_many_buckets_is_short_and_resumes() -> None:
    plan = many_buckets(5000, rule=CostBatch([1.0 + n % 3 for n in range(5000)]))
    segment = plan.segment(world_size=2, batch_size=4)
    text = segment.cursor(100).to_json()
    assert len(text) < 10_000
    resumed = plan.resume(Cursor.from_json(text), world_size=2, batch_size=4)
    assert resumed.num_done == 100
    assert json.loads(text)["fields"]["buckets"]["num_entries"] == 5000


def test_a_cursor_that_lists_its_buckets_still_loads() -> None:
    plan = many_buckets(300)
    segment = plan.segment(world_size=2, batch_size=4)
    listed = [bucket.describe() for bucket in plan.buckets]
    cursor = replace(segment.cursor(7), fields={**plan.fields, "buckets": listed})
    again = Cursor.from_json(cursor.to_json())
    assert plan.resume(again, world_size=2, batch_size=4).num_done == 7
    other = many_buckets(301)
    with pytest.raises(PlanMismatchError, match=r"buckets\[300\]"):
        other.resume(again, world_size=2, batch_size=4)


@pytest.mark.parametrize("as_lists", [False, True])
def test_the_part_of_the_buckets_that_changed_is_named(as_lists: bool) -> None:
    def plan(changed: int | None = None, key: int | None = None) -> BucketPlan:
        buckets = []
        for number in range(640):
            members: Any = range(9 * number, 9 * number + 9 - (number == changed))
            named = (number, "other") if number == key else number
            buckets.append(Bucket(named, np.array(members) if as_lists else members))
        return BucketPlan(buckets=buckets)

    cursor = plan().segment(world_size=1, batch_size=2).cursor(3)
    assert plan().resume(cursor, world_size=1, batch_size=2).num_done == 3
    for changed in (plan(changed=25), plan(key=25)):
        with pytest.raises(PlanMismatchError, match=r"buckets\.\[20:30\] was") as caught:
            changed.resume(cursor, world_size=1, batch_size=2)
        assert len(caught.value.differences) == 1


def test_a_range_and_a_list_of_the_same_samples_are_told_apart() -> None:
    one = BucketPlan(buckets=[Bucket(n, range(n, n + 1)) for n in range(200)])
    other = BucketPlan(buckets=[Bucket(n, np.array([n])) for n in range(200)])
    assert one.fingerprint != other.fingerprint


def test_one_batch_of_very_many_buckets_is_found_and_counted_in_its_block() -> None:
    plan = many_buckets(3000, tail="pad")
    segment = plan.segment(world_size=3, batch_size=7)
    batch = segment.batch(1, 1234)
    assert segment.num_real(1234, 1235) == sum(
        int(segment.batch(rank, 1234).is_real.sum()) for rank in range(3)
    )
    place = next(p for p in segment.find(int(batch.indices[0])) if p.is_real)
    assert (place.batch, place.rank, place.slot) == (1234, 1, 0)
    assert segment.num_left_after(1234) == segment.deal.after(1234).num_left


@given(any_plan, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=5))
def test_a_segment_that_follows_directly_is_the_one_that_a_cursor_gives(
    plan: Plan, sizes: list[tuple[int, int]]
) -> None:
    assume(all(fits(plan, batch_size) for _, batch_size in sizes))
    segment = Segment(plan=plan, world_size=sizes[0][0], batch_size=sizes[0][1])
    for number, (world_size, batch_size) in enumerate(sizes[1:]):
        end = min(segment.num_batches, segment.num_done + number % 3)
        now = {"world_size": world_size, "batch_size": batch_size}
        expected = plan.resume(Cursor.from_json(segment.cursor(end).to_json()), **now)
        assert segment.num_left_after(end) == segment.deal.after(end).num_left
        segment = segment.resized(end, **now)
        assert segment == expected
        assert segment.num_batches == expected.num_batches
        for rank in range(world_size):
            found = [batch.indices.tolist() for batch in segment.batches(rank)]
            assert found == [batch.indices.tolist() for batch in expected.batches(rank)]


class _Counting(SamplePlan):
    """A plan that counts how often its epoch is begun."""

    begun: int = 0

    def begin(self, epoch: int) -> Remaining:
        type(self).begun += 1
        return super().begin(epoch)


def test_a_replay_goes_through_its_history_once() -> None:
    plan = _Counting(order=Shuffled(num_samples=10**9))
    _Counting.begun = 0
    history = [PastSegment(1 + number % 7, 8, 5) for number in range(50)]
    replay = Replay(plan=plan, world_size=3, batch_size=8, history=history)
    assert _Counting.begun == 1
    alone = plan.resume(
        Cursor(fields=plan.fields, history=tuple(history)), world_size=3, batch_size=8
    )
    assert replay.segments[-1] == alone


def test_a_dry_run_deals_each_of_many_parts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.from_dict({"batch_size": 8, "data": {"samples": 10**12}})
    deals = counted(monkeypatch, PrefixRest, "deal")
    sizes = [1 + number % 9 for number in range(300)]
    assert dry_run(config, sizes).coverage.num_missing == 0
    assert deals[0] <= 2 * len(sizes)


def test_a_resize_of_windows_asks_for_few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = EqualChunks(num_samples=10**12, chunk_size=1000)
    plan = WindowPlan(chunks=chunks, preload=16)
    history = tuple(PastSegment(1 + number % 64, 32, 1 + number) for number in range(60))
    cursor = Cursor(fields=plan.fields, history=history)
    asked = [counted(monkeypatch, WindowEpoch, name) for name in ("window_start", "window_of")]
    arrays = counted(monkeypatch, WindowEpoch, "window_starts")
    plan.resume(cursor, world_size=5, batch_size=32)
    assert asked[0][0] + asked[1][0] <= 4 * (len(history) + 1)
    assert arrays[0] == 0


@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 5), st.integers(1, 7), st.data())
def test_rounds_are_found_as_by_searching_them(
    num_samples: int, chunk_size: int, world_size: int, preload: int, data: st.DataObject
) -> None:
    chunks = EqualChunks(num_samples=num_samples, chunk_size=chunk_size)
    plan = WindowPlan(chunks=chunks, preload=preload, tail="even")
    segment = Segment(plan=plan, world_size=3, batch_size=2)
    done = data.draw(st.integers(0, segment.num_batches))
    deal = segment.resized(done, world_size=world_size, batch_size=1).deal
    assert isinstance(deal, WindowDeal)
    starts = [deal._round_edge(number) // world_size for number in range(deal._num_rounds)]
    assert starts == (deal._round_edges(np.arange(deal._num_rounds)) // world_size).tolist()
    for entry in range(deal.share.num_whole):
        expected = max(number for number, first in enumerate(starts) if first <= entry)
        assert deal._round_of(entry) == expected


def test_a_mixture_of_thousands_of_sources_draws_each_sample_once() -> None:
    sizes = [1 + number % 13 for number in range(2000)] + [5000, 7]
    mixture = Mixture(sizes=sizes, weights=sizes)
    drawn = mixture.indices(0, range(sum(sizes)))
    assert np.sort(drawn).tolist() == list(range(sum(sizes)))


def test_a_mixture_repeats_sources_pass_by_pass() -> None:
    sizes = [3, 5000, 9, *[4] * 300]
    mixture = Mixture(sizes=sizes, weights=[1] * len(sizes), epoch_size=30 * len(sizes))
    drawn = mixture.indices(1, range(30 * len(sizes)))
    starts = [0, *accumulate(sizes)]
    for source in (0, 2, 7):
        own = drawn[(drawn >= starts[source]) & (drawn < starts[source + 1])]
        num_passes, rest = divmod(len(own), sizes[source])
        counts = np.bincount(own - starts[source], minlength=sizes[source])
        assert counts.min() == num_passes
        assert int((counts > num_passes).sum()) == rest
