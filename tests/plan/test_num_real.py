"""How many real samples all ranks get, without looking at any of them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from feedline.errors import FeedlineError, InvalidValueError
from feedline.plan import (
    FILE_STRATEGIES,
    BucketPlan,
    DrawnOrder,
    EqualChunks,
    FileSharesPlan,
    Plan,
    RoundsPlan,
    SamplePlan,
    Segment,
    Shuffled,
    WindowOrder,
    WindowPlan,
)
from plan_kinds import any_plan, batch_sizes, check_num_real, fits, tails, world_sizes

sizes = st.lists(st.tuples(world_sizes, batch_sizes), min_size=1, max_size=3)


def resized(plan: Plan, sizes: list[tuple[int, int]], data: st.DataObject) -> Segment:
    """Consume part of an epoch on some ranks, part of the rest on others, and so on."""
    assume(all(fits(plan, batch_size) for _, batch_size in sizes))
    segment = Segment(plan=plan, world_size=sizes[0][0], batch_size=sizes[0][1])
    for world_size, batch_size in sizes[1:]:
        cursor = segment.cursor(data.draw(st.integers(0, segment.num_batches)))
        segment = plan.resume(cursor, world_size=world_size, batch_size=batch_size)
    return segment


def draw_and_check(segment: Segment, data: st.DataObject) -> None:
    stop = data.draw(st.integers(0, segment.num_batches))
    check_num_real(segment, data.draw(st.integers(0, stop)), stop)
    assert segment.num_real(0, segment.num_batches) == segment.num_left - segment.num_dropped


@given(any_plan, sizes, st.data())
def test_it_is_the_number_of_real_entries_of_all_ranks_also_after_resizes(
    plan: Plan, sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    draw_and_check(resized(plan, sizes, data), data)


@given(st.integers(1, 60), st.integers(1, 7), tails, st.booleans(), sizes, st.data())
def test_it_holds_for_rounds(
    num_samples: int,
    chunk_size: int,
    tail: str,
    drawn: bool,
    sizes: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    chunks = EqualChunks(num_samples=num_samples, chunk_size=chunk_size)
    order = (
        DrawnOrder(num_samples=60, num_drawn=num_samples, chunk_size=chunk_size, preload=2)
        if drawn
        else WindowOrder(chunks=chunks, preload=2, keep_last=True)
    )
    draw_and_check(resized(RoundsPlan(order=order, tail=tail), sizes, data), data)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=14).filter(any),
    st.sampled_from(FILE_STRATEGIES),
    st.integers(1, 9),
    st.lists(st.integers(1, 8), min_size=1, max_size=3),
    st.data(),
)
def test_it_holds_for_files_tied_to_ranks(
    files: list[int], strategy: str, world_size: int, batches: list[int], data: st.DataObject
) -> None:
    plan = FileSharesPlan(sizes=files, strategy=strategy)
    try:
        segment = resized(plan, [(world_size, batch_size) for batch_size in batches], data)
    except InvalidValueError:
        assume(False)
        raise
    stop = data.draw(st.integers(0, segment.num_batches))
    check_num_real(segment, data.draw(st.integers(0, stop)), stop)


NUM_HUGE = 10**15 + 1
HUGE = [
    SamplePlan(order=Shuffled(num_samples=NUM_HUGE), tail="even"),
    WindowPlan(chunks=EqualChunks(num_samples=NUM_HUGE, chunk_size=1000), tail="even"),
    BucketPlan.from_groups({"small": range(NUM_HUGE - 5), "large": range(NUM_HUGE - 5, NUM_HUGE)}),
]


@pytest.mark.parametrize("plan", HUGE, ids=["samples", "windows", "buckets"])
def test_a_million_ranks_are_counted_without_a_look_at_each(plan: Plan) -> None:
    segment = plan.segment(world_size=2**20, batch_size=2**10)
    assert segment.num_real(0, segment.num_batches) == NUM_HUGE - segment.num_dropped
    assert segment.num_real(5, 7) == 2 * 2**30


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (-1, 2), (3, 2), (0, 1.5)])
def test_batches_that_are_not_there_are_refused(start: int, stop: int) -> None:
    segment = SamplePlan(order=Shuffled(num_samples=10)).segment(world_size=1, batch_size=2)
    with pytest.raises(FeedlineError, match="must be"):
        segment.num_real(start, stop)
