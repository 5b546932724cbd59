"""Batches that are skipped: those and no others are left out, on any number of ranks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from feedline.chunks import ClassSampler
from feedline.errors import CursorFormatError, EmptyEpochError, InvalidValueError, PlanMismatchError
from feedline.plan import (
    Cursor,
    EqualChunks,
    FileSharesPlan,
    PastSegment,
    Plan,
    Replay,
    RoundsPlan,
    SamplePlan,
    Segment,
    Sequential,
    Shuffled,
    WindowOrder,
    WindowPlan,
    skipped_samples,
)
from feedline.plan.skipping import joined, num_behind, shifted
from plan_kinds import (
    Account,
    any_plan,
    batch_sizes,
    check_num_real,
    fits,
    through_json,
    world_sizes,
)


def fresh(plan: Plan, world_size: int, batch_size: int) -> Segment:
    assume(fits(plan, batch_size))
    try:
        return plan.segment(world_size=world_size, batch_size=batch_size)
    except EmptyEpochError:
        assume(False)
        raise


def real_of(segment: Segment, start: int, stop: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for rank in range(segment.world_size):
        found.update(segment.block(rank, start, stop).real_indices.tolist())
    return found


def a_range(draw: Any, low: int, high: int) -> tuple[int, int]:
    start = draw(st.integers(low, high))
    return start, draw(st.integers(start, high))


@given(any_plan, world_sizes, batch_sizes, st.data())
def test_on_the_same_ranks_the_other_batches_stay_as_they_are(
    plan: Plan, world_size: int, batch_size: int, data: st.DataObject
) -> None:
    whole = segment = fresh(plan, world_size, batch_size)
    kept = list(range(whole.num_batches))
    done = 0
    for _ in range(data.draw(st.integers(1, 3))):
        done = data.draw(st.integers(done, segment.num_batches))
        start, stop = a_range(data.draw, done, segment.num_batches)
        segment = segment.skipping(done, start, stop)
        del kept[start:stop]
        cursor = through_json(segment.cursor(done))
        segment = plan.resume(cursor, world_size=world_size, batch_size=batch_size)
        assert segment.cursor(done) == cursor
    assert segment.num_batches == len(kept)
    for rank in range(world_size):
        every = [whole.batch(rank, number) for number in kept]
        for one, other in zip(every, segment.batches(rank, 0), strict=True):
            assert one.indices.tolist() == other.indices.tolist()
            assert one.is_real.tolist() == other.is_real.tolist()
            assert one.bucket == other.bucket
        step = data.draw(st.integers(1, 3))
        numbers = range(data.draw(st.integers(0, len(kept))), len(kept), step)
        picked, bounds = segment.picked(rank, numbers)
        assert picked.tolist() == [i for n in numbers for i in every[n].indices.tolist()]
        assert np.diff(bounds).tolist() == [len(every[n].indices) for n in numbers]
        if hasattr(whole.deal, "draws") and len(numbers):
            expected = [whole.draws(rank, range(kept[n], kept[n] + 1)) for n in numbers]
            found = segment.draws(rank, numbers)
            assert found.numbers.tolist() == [i for d in expected for i in d.numbers.tolist()]
            assert found.sources.tolist() == [i for d in expected for i in d.sources.tolist()]
    check_num_real(segment, *a_range(data.draw, 0, segment.num_batches))
    blocks = [segment.block(rank, 0, segment.num_batches) for rank in range(world_size)]
    num_entries = sum(len(block.indices) for block in blocks)
    assert segment.num_padded == num_entries - segment.num_real(0, segment.num_batches)
    assert segment.num_dropped == whole.num_dropped


@given(any_plan, st.data())
def test_skips_resizes_and_resumes_leave_out_those_samples_and_no_others(
    plan: Plan, data: st.DataObject
) -> None:
    segment = fresh(plan, data.draw(world_sizes), data.draw(batch_sizes))
    account = Account(plan, 0)
    skipped: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(1, 5))):
        stop = data.draw(st.integers(segment.num_done, segment.num_batches))
        account.receive(segment, segment.num_done, stop)
        if data.draw(st.booleans()):
            low, high = a_range(data.draw, stop, segment.num_batches)
            skipped += real_of(segment, low, high)
            segment = segment.skipping(stop, low, high)
        cursor = through_json(segment.cursor(stop))
        batch_size = data.draw(batch_sizes)
        assume(fits(plan, batch_size))
        sizes = {"world_size": data.draw(world_sizes), "batch_size": batch_size}
        resized = segment.resized(stop, **sizes)
        segment = plan.resume(cursor, **sizes)
        assert resized == segment
        assert resized.num_left_after(resized.num_done) == segment.num_left_after(segment.num_done)
        told: Counter[int] = Counter()
        for samples in skipped_samples(plan, 0, cursor.history):
            told.update(samples.tolist())
        assert told == skipped
        # An index that is skipped is found nowhere, as often as it is skipped.
        replay = Replay.of(plan, cursor, **sizes)
        for index in list(skipped)[:2]:
            found = [time for time in replay.find(index) if time.is_real]
            to_come = real_of(segment, segment.num_done, segment.num_batches)[index]
            assert len(found) == account.real[index] + to_come
    account.receive(segment, segment.num_done, segment.num_batches)
    account.real += skipped
    account.close(segment)


@given(st.integers(1, 90), st.integers(1, 4), st.integers(1, 4), st.data())
def test_groups_and_rounds_of_chunk_samplers_skip_exactly_too(
    num_chunks: int, world_size: int, preload: int, data: st.DataObject
) -> None:
    """Orders of chunk samplers; groups must be divided by the batch size, so sizes are few."""
    chunks = EqualChunks(num_samples=2 * num_chunks, chunk_size=2)
    plan: Plan = RoundsPlan(order=WindowOrder(chunks=chunks, preload=preload), tail="even")
    if data.draw(st.booleans()):
        labels = np.arange(40) // 10
        sampler = ClassSampler(4, 2, 4, classes=labels, num_samples=3 * num_chunks, rng=3)
        plan = sampler.plan(40)
    segment = plan.segment(world_size=world_size, batch_size=2)
    due = Counter(real_of(segment, 0, segment.num_batches))
    real: Counter[int] = Counter()
    for _ in range(3):
        stop = data.draw(st.integers(segment.num_done, segment.num_batches))
        real += real_of(segment, segment.num_done, stop)
        low, high = a_range(data.draw, stop, segment.num_batches)
        real += real_of(segment, low, high)
        cursor = through_json(segment.skipping(stop, low, high).cursor(stop))
        sizes = {
            "world_size": data.draw(world_sizes),
            "batch_size": data.draw(st.sampled_from([1, 2, 4])),
        }
        segment = plan.resume(cursor, **sizes)
    real += real_of(segment, segment.num_done, segment.num_batches)
    assert real == due


def test_orders_that_tie_samples_to_ranks_refuse_other_sizes_before_a_skip_ahead() -> None:
    plan = FileSharesPlan(sizes=[20, 20], strategy="exact")
    segment = plan.segment(world_size=2, batch_size=2).skipping(1, 3, 5)
    cursor = segment.cursor(1)
    assert plan.resume(cursor, world_size=2, batch_size=2).num_batches == 8
    with pytest.raises(PlanMismatchError, match=r"skips some of the next 4 batches; resume on oth"):
        plan.resume(cursor, world_size=2, batch_size=4)
    behind = plan.resume(segment.cursor(4), world_size=2, batch_size=4)
    assert real_of(behind, 0, behind.num_batches).total() == 40 - 4 * 4 - 2 * 4


def test_a_skip_over_ten_million_batches_costs_nothing() -> None:
    plan = SamplePlan(order=Shuffled(num_samples=10**12), tail="even")
    segment = plan.segment(world_size=64, batch_size=16).skipping(1000, 10**6, 9 * 10**6)
    resumed = plan.resume(through_json(segment.cursor(1000)), world_size=48, batch_size=16)
    whole = plan.segment(world_size=1, batch_size=1)
    hole = 64 * 16 * 10**6, 64 * 16 * 9 * 10**6
    assert resumed.num_left == 10**12 - 1000 * 64 * 16 - (hole[1] - hole[0])
    number = -(-(hole[0] - 1000 * 64 * 16) // (48 * 16))
    shift = 1000 * 64 * 16 + number * 48 * 16 + hole[1] - hole[0]
    assert resumed.batch(0, number).indices[0] == whole.batch(0, shift).indices[0]


def test_a_skip_over_many_windows_costs_nothing() -> None:
    chunks = EqualChunks(num_samples=10**12, chunk_size=10**4)
    plan = WindowPlan(chunks=chunks, preload=4, tail="even")
    segment = plan.segment(world_size=64, batch_size=16).skipping(1000, 10**6, 9 * 10**6)
    resumed = plan.resume(through_json(segment.cursor(1000)), world_size=48, batch_size=16)
    assert resumed.num_left == 10**12 - (1000 + 8 * 10**6) * 64 * 16
    assert len(set(resumed.batch(3, 10**6).indices.tolist())) == 16


# The cursor.


PLAN = SamplePlan(order=Sequential(num_samples=100))


def test_a_cursor_with_a_skip_has_another_format_and_one_without_is_as_before() -> None:
    segment = PLAN.segment(world_size=2, batch_size=3)
    plain = segment.cursor(4).to_dict()
    assert plain["format"] == "feedline.cursor/1"
    assert plain["history"] == [[2, 3, 4]]
    told = segment.skipping(4, 6, 9).cursor(4).to_dict()
    assert told["format"] == "feedline.cursor/2"
    assert told["history"] == [[2, 3, 4, [[6, 9]]]]
    assert repr(Cursor.from_dict(told)).startswith("<Cursor: epoch 0, 4 batches, the latest on 2 r")
    assert "3 skipped" in repr(Cursor.from_dict(told))


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        ([[3, 3]], "stop in skipped=3 must be"),
        ([[-1, 3]], "start in skipped=-1 must be"),
        ([[4, 6], [1, 2]], "must begin after"),
        ([[1, 4], [3, 6]], "must begin after"),
        ([[1]], "must hold pairs"),
        ([5], "skipped"),
        ("abc", "skipped"),
        ([[1.5, 2]], "start in skipped=1.5"),
        ([[0, 10**30]], "stop in skipped"),
    ],
)
def test_damaged_skips_are_refused(skipped: Any, reason: str) -> None:
    state = PLAN.segment(world_size=2, batch_size=3).cursor(4).to_dict()
    state |= {"format": "feedline.cursor/2", "history": [[2, 3, 4, skipped]]}
    with pytest.raises(CursorFormatError, match=reason):
        Cursor.from_json(json.dumps(state))


def test_the_first_format_cannot_skip() -> None:
    state = PLAN.segment(world_size=2, batch_size=3).skipping(1, 1, 2).cursor(1).to_dict()
    with pytest.raises(CursorFormatError, match="cannot skip batches"):
        Cursor.from_dict({**state, "format": "feedline.cursor/1"})


def test_a_skip_of_more_batches_than_the_deal_has_is_refused() -> None:
    cursor = Cursor(fields=PLAN.fields, history=(PastSegment(2, 5, 3, ((8, 11),)),))
    with pytest.raises(CursorFormatError, match=r"num_batches=11 must be in \[0, 10\]"):
        PLAN.resume(cursor, world_size=2, batch_size=5)
    with pytest.raises(InvalidValueError, match="must be in"):
        PLAN.segment(world_size=2, batch_size=5).skipping(3, 8, 11)


def test_a_skip_of_what_was_consumed_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="start=2 must be in"):
        PLAN.segment(world_size=2, batch_size=5).skipping(3, 2, 4)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=5), st.data())
def test_numbers_of_batches_are_those_that_are_left(
    given_spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    spans = joined((start, start + size) for start, size in given_spans)
    left = [n for n in range(60) if not any(start <= n < stop for start, stop in spans)]
    start = data.draw(st.integers(0, 30))
    numbers = range(start, data.draw(st.integers(start, 34)), data.draw(st.integers(1, 4)))
    assert [n for part in shifted(spans, numbers) for n in part] == [left[n] for n in numbers]
    assert num_behind(spans, start) == left[start]
