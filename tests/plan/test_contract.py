"""The contract of the design, for every kind of plan, on random plans and random histories."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from feedline.errors import EmptyEpochError, PlanMismatchError
from feedline.plan import Plan, Replay, Segment
from plan_kinds import (
    Account,
    any_plan,
    batch_sizes,
    fits,
    same_batches,
    through_json,
    world_sizes,
)

epochs = st.integers(0, 3)


def fresh(plan: Plan, world_size: int, batch_size: int, epoch: int) -> Segment:
    assume(fits(plan, batch_size))
    try:
        return plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    except EmptyEpochError:
        assume(False)
        raise


@given(any_plan, world_sizes, batch_sizes, epochs)
def test_every_rank_gets_the_same_number_of_batches_in_the_same_buckets(
    plan: Plan, world_size: int, batch_size: int, epoch: int
) -> None:
    segment = fresh(plan, world_size, batch_size, epoch)
    shapes = [[batch.bucket for batch in segment.batches(rank)] for rank in range(world_size)]
    assert all(shape == shapes[0] for shape in shapes)
    assert len(shapes[0]) == segment.num_batches


@given(any_plan, world_sizes, batch_sizes, epochs)
def test_ranks_cover_every_sample_exactly_once_less_what_is_reported(
    plan: Plan, world_size: int, batch_size: int, epoch: int
) -> None:
    segment = fresh(plan, world_size, batch_size, epoch)
    account = Account(plan, epoch)
    account.receive(segment, 0, segment.num_batches)
    account.close(segment)
    assert account.num_padded == segment.num_padded


@given(any_plan, world_sizes, batch_sizes, epochs, st.data())
def test_resuming_with_the_same_ranks_goes_on_with_the_very_next_batch(
    plan: Plan, world_size: int, batch_size: int, epoch: int, data: st.DataObject
) -> None:
    segment = fresh(plan, world_size, batch_size, epoch)
    done = 0
    for _ in range(3):
        done = data.draw(st.integers(done, segment.num_batches))
        cursor = through_json(segment.cursor(done))
        resumed = plan.resume(cursor, world_size=world_size, batch_size=batch_size)
        assert resumed.num_done == done
        assert resumed.cursor(done) == cursor
        same_batches(segment, resumed, done)


@given(any_plan, epochs, st.data())
def test_any_number_of_resizes_in_one_epoch_loses_and_repeats_nothing(
    plan: Plan, epoch: int, data: st.DataObject
) -> None:
    segment = fresh(plan, data.draw(world_sizes), data.draw(batch_sizes), epoch)
    account = Account(plan, epoch)
    for _ in range(data.draw(st.integers(0, 5))):
        stop = data.draw(st.integers(segment.num_done, segment.num_batches))
        account.receive(segment, segment.num_done, stop)
        batch_size = data.draw(batch_sizes)
        assume(fits(plan, batch_size))
        segment = plan.resume(
            through_json(segment.cursor(stop)),
            world_size=data.draw(world_sizes),
            batch_size=batch_size,
        )
    account.receive(segment, segment.num_done, segment.num_batches)
    account.close(segment)


@given(any_plan, world_sizes, batch_sizes, epochs, st.data())
def test_batches_do_not_depend_on_how_they_are_asked_for(
    plan: Plan, world_size: int, batch_size: int, epoch: int, data: st.DataObject
) -> None:
    """Workers that take batches w, w + n, … see what one process sees that takes them all."""
    segment = fresh(plan, world_size, batch_size, epoch)
    rank = data.draw(st.integers(0, world_size - 1))
    num_workers = data.draw(st.integers(1, 4))
    alone = list(segment.batches(rank))
    for worker in range(num_workers):
        for number in range(worker, segment.num_batches, num_workers):
            batch = segment.batch(rank, number)
            assert batch.indices.tolist() == alone[number].indices.tolist()
            assert batch.is_real.tolist() == alone[number].is_real.tolist()
            assert (batch.number, batch.bucket) == (number, alone[number].bucket)


@given(any_plan, epochs, st.data())
def test_replay_says_what_was_consumed_and_finds_it_again(
    plan: Plan, epoch: int, data: st.DataObject
) -> None:
    segment = fresh(plan, data.draw(world_sizes), data.draw(batch_sizes), epoch)
    received: dict[tuple[int, int, int], tuple[int, bool]] = {}
    first = 0
    for last in (False, False, True):
        stop = data.draw(st.integers(0, segment.num_batches))
        stop = segment.num_batches if last else max(stop, segment.num_done)
        for rank in range(segment.world_size):
            for batch in segment.block(rank, segment.num_done, stop):
                number = first + batch.number
                for slot, index in enumerate(batch.indices.tolist()):
                    received[number, rank, slot] = (index, bool(batch.is_real[slot]))
        if last:
            break
        cursor = segment.cursor(stop)
        batch_size = data.draw(batch_sizes)
        assume(fits(plan, batch_size))
        segment = plan.resume(cursor, world_size=data.draw(world_sizes), batch_size=batch_size)
        first = sum(past.num_batches for past in segment.history)
    replay = Replay(
        plan=plan,
        epoch=epoch,
        world_size=segment.world_size,
        batch_size=segment.batch_size,
        history=segment.history,
    )
    for number, rank, slot in received:
        batch = replay.batch(rank=rank, number=number)
        assert (batch.indices[slot], batch.is_real[slot]) == received[number, rank, slot]
    expected: dict[int, set[tuple[int, int, int, bool]]] = {}
    for (number, rank, slot), (index, is_real) in received.items():
        expected.setdefault(index, set()).add((number, rank, slot, is_real))
    for index in data.draw(st.lists(st.integers(0, plan.num_indices - 1), max_size=12)):
        found = {place[1:] for place in replay.find(index)}
        assert found == expected.get(index, set())


@given(any_plan, any_plan)
def test_a_cursor_of_another_plan_is_refused_with_the_fields_that_differ(
    plan: Plan, other: Plan
) -> None:
    assume(plan.fields != other.fields)
    assert plan.fingerprint != other.fingerprint
    segment = fresh(plan, 2, 9, 0)
    with pytest.raises(PlanMismatchError) as caught:
        other.resume(segment.cursor(1), world_size=2, batch_size=9)
    assert caught.value.differences
    for name in caught.value.differences:
        assert name in str(caught.value)


@given(any_plan, world_sizes, batch_sizes)
def test_asking_never_changes_a_plan(plan: Plan, world_size: int, batch_size: int) -> None:
    before = plan.fields
    segment = fresh(plan, world_size, batch_size, 1)
    first = [batch.indices.tolist() for batch in segment.batches(0)]
    segment.find(0)
    segment.cursor(1)
    np.testing.assert_equal([batch.indices.tolist() for batch in segment.batches(0)], first)
    assert plan.fields == before


@given(any_plan, world_sizes, batch_sizes, epochs, st.data())
def test_picked_batches_are_those_of_the_segment(
    plan: Plan, world_size: int, batch_size: int, epoch: int, data: st.DataObject
) -> None:
    segment = fresh(plan, world_size, batch_size, epoch)
    rank = data.draw(st.integers(0, world_size - 1))
    start = data.draw(st.integers(0, segment.num_batches))
    numbers = range(start, segment.num_batches, data.draw(st.integers(1, 5)))
    indices, bounds = segment.picked(rank, numbers)
    picked = [part.tolist() for part in np.split(indices, bounds[1:-1])] if numbers else []
    assert len(bounds) == len(numbers) + 1
    assert picked == [segment.batch(rank, number).indices.tolist() for number in numbers]


@given(any_plan, world_sizes, batch_sizes, epochs)
def test_no_batch_is_larger_than_the_plan_says(
    plan: Plan, world_size: int, batch_size: int, epoch: int
) -> None:
    segment = fresh(plan, world_size, batch_size, epoch)
    largest = max(len(batch.indices) for batch in segment.batches(0))
    assert largest <= plan.largest_batch(batch_size)
