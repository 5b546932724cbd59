"""Slabs have the batches of the plan, in order, and say where each of their samples is."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from feedline.errors import InvalidValueError
from feedline.feed import Reading
from feedline.feed.readahead import MadeAhead
from feedline.feed.reading import auto_threads
from feedline.feed.slab_jobs import slab_jobs
from feedline.plan import Plan, Segment, UnequalChunks
from plan_kinds import any_plan, batch_sizes, fits, world_sizes


@given(plan=any_plan, world_size=world_sizes, batch_size=batch_sizes, data=st.data())
def test_jobs_cover_the_batches_of_a_rank_in_order(
    plan: Plan, world_size: int, batch_size: int, data: st.DataObject
) -> None:
    assume(fits(plan, batch_size))
    segment = Segment(plan=plan, world_size=world_size, batch_size=batch_size)
    rank = data.draw(st.integers(0, world_size - 1))
    start = data.draw(st.integers(0, segment.num_batches))
    most = data.draw(st.integers(1, 9))
    num_indices = plan.num_indices
    cuts = sorted(data.draw(st.lists(st.integers(0, num_indices), max_size=5)))
    chunking = UnequalChunks(np.diff([0, *cuts, num_indices]))
    jobs = [job for make in slab_jobs(segment, rank, start, chunking, most) for job in make()]
    expected = segment.block(rank, start, segment.num_batches)
    number = start
    for job in jobs:
        assert job.block.first == number
        assert 1 <= len(job.block) <= most
        number += len(job.block)
        found = chunking.starts(job.chunks) + job.rows
        assert np.array_equal(found, job.block.indices)
        assert job.needed == tuple(sorted(set(job.chunks.tolist())))
    assert number == segment.num_batches
    if jobs:
        assert len(jobs[0].block) == 1
        joined = np.concatenate([job.block.indices for job in jobs])
        assert np.array_equal(joined, expected.indices)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_blocks_that_are_made_in_threads_come_in_order(num_threads: int) -> None:
    blocks = ((lambda n=n: list(range(10 * n, 10 * n + 10))) for n in range(20))
    assert list(MadeAhead(blocks, num_threads=num_threads)) == list(range(200))


@pytest.mark.parametrize("num_before", [0, 1, 2])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_of_a_block_comes_after_the_blocks_before_it_and_passes_over_none(
    num_threads: int, num_before: int
) -> None:
    def failing() -> list[int]:
        raise OSError("no block")

    before = [lambda n=n: [n, n] for n in range(num_before)]
    jobs = MadeAhead(iter([*before, failing, lambda: [9]]), num_threads=num_threads)
    assert [next(jobs) for _ in range(2 * num_before)] == sorted([*range(num_before)] * 2)
    for _ in range(3):
        with pytest.raises(OSError, match="no block"):
            next(jobs)


def test_an_interrupt_passes_over_no_block() -> None:
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def interrupted() -> list[int]:
        if interrupts:
            raise interrupts.pop()
        return [2]

    jobs = MadeAhead(iter([lambda: [1], interrupted, lambda: [3]]), num_threads=0)
    assert next(jobs) == 1
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(jobs)
    assert list(jobs) == [2, 3]


def test_threads_are_the_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert auto_threads() == 12
    for ranks, expected in (("4", 7), ("8", 3), ("32", 1), ("100", 1), ("0", 12), ("many", 12)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert auto_threads() == expected
    assert Reading().count == auto_threads()
    assert Reading(num_threads=5).count == 5


def test_other_words_than_auto_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="num_threads="):
        Reading(num_threads="all")
