"""Results come in the order of their jobs, whatever threads do; errors come where they belong."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from feedline.feed import BlocksAhead
from feedline.feed.readahead import ReadAhead
from plan_kinds import any_plan, batch_sizes, fits, world_sizes
from reader_threads import Readers, readers_since_now, wait_until


@pytest.fixture
def new_readers() -> Readers:
    """The threads that this test has started; a test that failed may have left others."""
    return readers_since_now()


def no_split(job: Any) -> list[Any]:
    return [job]


def split(job: tuple[int, int]) -> list[tuple[int, int]]:
    return [(number, number + 1) for number in range(*job)]


@pytest.mark.parametrize("num_threads", [0, 1, 2, 5])
@pytest.mark.parametrize("num_ahead", [0, 1, 3, 20])
def test_results_come_in_the_order_of_the_jobs(
    num_threads: int, num_ahead: int, new_readers: Readers
) -> None:
    results = ReadAhead(
        iter(range(1, 60)),
        lambda job: job * job,
        no_split,
        num_threads=num_threads,
        num_ahead=num_ahead,
    )
    assert list(results) == [job * job for job in range(1, 60)]
    assert list(results) == []
    wait_until(lambda: not new_readers())


def test_a_slow_job_does_not_let_later_ones_overtake_it() -> None:
    later = threading.Event()

    def work(job: int) -> int:
        if job == 2:
            assert later.wait(60)
        elif job > 2:
            later.set()
        return job

    results = ReadAhead(iter([1, 2, 3, 4]), work, no_split, num_threads=2, num_ahead=3)
    assert list(results) == [1, 2, 3, 4]


@pytest.mark.parametrize(("num_threads", "num_ahead"), [(1, 1), (2, 3), (3, 2), (2, 7)])
def test_no_more_jobs_are_begun_than_are_to_be_ahead(num_threads: int, num_ahead: int) -> None:
    begun: list[int] = []
    asked = 0
    excess: list[int] = []

    def work(job: int) -> int:
        begun.append(job)
        if len(begun) > asked + num_ahead:
            excess.append(job)
        return job

    results = ReadAhead(
        itertools.count(1), work, no_split, num_threads=num_threads, num_ahead=num_ahead
    )
    for number in range(1, 30):
        asked = number
        assert next(results) == number
        # What may be read ahead is read ahead, without being asked for.
        wait_until(lambda number=number: len(begun) == number + num_ahead)
    results.close()
    assert excess == []


def test_no_more_threads_work_than_were_asked_for() -> None:
    threads = set()

    def work(job: int) -> int:
        threads.add(threading.current_thread().name)
        return job

    list(ReadAhead(iter(range(1, 200)), work, no_split, num_threads=3, num_ahead=9))
    # The consumer may do the first job itself rather than wait.
    threads.discard(threading.main_thread().name)
    assert 1 <= len(threads) <= 3
    assert all(name.startswith("feedline-reader") for name in threads)


@pytest.mark.parametrize(("num_threads", "num_ahead"), [(0, 0), (0, 5), (2, 0)])
def test_without_threads_or_room_nothing_is_begun_before_it_is_asked_for(
    num_threads: int, num_ahead: int
) -> None:
    begun: list[int] = []

    def work(job: int) -> int:
        begun.append(job)
        assert threading.current_thread() is threading.main_thread()
        return job

    results = ReadAhead(
        iter(range(1, 9)), work, no_split, num_threads=num_threads, num_ahead=num_ahead
    )
    assert begun == []
    for number in range(1, 9):
        assert next(results) == number
        assert begun == list(range(1, number + 1))


@pytest.mark.parametrize("num_threads", [0, 1, 4])
@given(data=st.data())
@settings(max_examples=25)
def test_an_error_comes_at_its_part_after_all_before_it(
    num_threads: int, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    edges = list(itertools.accumulate(lengths, initial=0))
    bad = data.draw(st.integers(0, edges[-1] - 1))

    def work(job: tuple[int, int]) -> list[int]:
        if job[0] <= bad < job[1]:
            raise OSError(f"part {bad}")
        return list(range(*job))

    jobs = list(itertools.pairwise(edges))
    results = ReadAhead(iter(jobs), work, split, num_threads=num_threads, num_ahead=3)
    received: list[int] = []
    while len(received) < bad:
        received += next(results)
    assert received == list(range(bad))
    for _ in range(3):
        with pytest.raises(OSError, match=f"part {bad}$"):
            next(results)
    results.close()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_job_that_fails_once_and_then_works_loses_nothing(num_threads: int) -> None:
    failed = set()

    def work(job: tuple[int, int]) -> list[int]:
        if job[0] % 3 == 0 and job not in failed:
            failed.add(job)
            raise OSError("once")
        return list(range(*job))

    jobs = [(start, start + 4) for start in range(0, 40, 4)]
    results = ReadAhead(iter(jobs), work, split, num_threads=num_threads, num_ahead=3)
    received: list[int] = []
    while True:
        try:
            received += next(results)
        except StopIteration:
            break
        except OSError:
            # A part that cannot be cut any further may say so; but then it must not be passed over.
            break
    assert received == list(range(len(received)))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_interrupt_does_not_pass_over_a_job(num_threads: int) -> None:
    interrupts = [KeyboardInterrupt()]

    def work(job: int) -> int:
        if job == 3 and interrupts:
            raise interrupts.pop()
        return job

    results = ReadAhead(iter(range(1, 9)), work, no_split, num_threads=num_threads, num_ahead=2)
    received = [next(results), next(results)]
    with pytest.raises(KeyboardInterrupt):
        next(results)
    try:
        received += results
    except KeyboardInterrupt:
        pass
    finally:
        results.close()
    assert received in ([1, 2], list(range(1, 9))), "a job was passed over"


@pytest.mark.parametrize("num_threads", [0, 3])
def test_after_close_nothing_comes_and_nothing_is_begun(
    num_threads: int, new_readers: Readers
) -> None:
    begun: list[int] = []
    jobs = itertools.count(1)

    def work(job: int) -> int:
        begun.append(job)
        return job

    results = ReadAhead(jobs, work, no_split, num_threads=num_threads, num_ahead=4)
    next(results)
    results.close()
    results.close()
    wait_until(lambda: not new_readers())
    count = len(begun)
    assert next(results, None) is None
    assert len(begun) == count
    assert next(jobs) <= 7


def test_close_does_not_wait_for_a_job_that_hangs(new_readers: Readers) -> None:
    release = threading.Event()
    begun = threading.Event()

    def work(job: int) -> int:
        if job > 1:
            begun.set()
            assert release.wait(60)
        return job

    results = ReadAhead(iter(range(1, 9)), work, no_split, num_threads=2, num_ahead=4)
    assert next(results) == 1
    assert begun.wait(60)
    results.close()
    assert not release.is_set()
    assert new_readers()
    release.set()
    wait_until(lambda: not new_readers())


@pytest.mark.parametrize("num_results", [1, 2, 5])
@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_what_was_taken_on_before_the_finish_still_comes(
    num_threads: int, num_results: int
) -> None:
    results = ReadAhead(
        itertools.count(1), lambda job: job, no_split, num_threads=num_threads, num_ahead=4
    )
    received = [next(results) for _ in range(num_results)]
    latest = results.latest
    results.finish()
    received += results
    assert received == [*range(1, (latest or 0) + 1)]


def test_dropping_it_ends_its_threads(new_readers: Readers) -> None:
    results = ReadAhead(itertools.count(1), lambda job: job, no_split, num_threads=3, num_ahead=4)
    assert next(results) == 1
    assert new_readers()
    del results
    wait_until(lambda: not new_readers())


@pytest.mark.parametrize("keeper", ["threading.main_thread()", "sys.modules['json']"])
def test_nothing_is_printed_at_the_end_of_the_process(keeper: str) -> None:
    code = (
        "import json, sys, threading\n"
        "from feedline.feed.readahead import ReadAhead\n"
        "results = ReadAhead(\n"
        "    iter(range(1, 999)), abs, lambda job: [job], num_threads=2, num_ahead=5)\n"
        "next(results), next(results)\n"
        # Kept by what is taken apart late.
        f"{keeper}.kept = results\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@given(any_plan, world_sizes, batch_sizes, st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_any_part_of_the_blocks_is_what_the_segment_says(
    plan: Any, world_size: int, batch_size: int, starts: list[int]
) -> None:
    if not fits(plan, batch_size):
        return
    try:
        segment = plan.segment(world_size=world_size, batch_size=batch_size)
    except ValueError:
        return
    blocks = BlocksAhead(segment, world_size - 1)
    for start, length in zip(starts, reversed(starts), strict=True):
        first = start % segment.num_batches
        stop = min(first + 1 + length % 4, segment.num_batches)
        found = list(blocks.part(first, stop))
        expected = list(segment.block(world_size - 1, first, stop))
        assert len(found) == len(expected) == stop - first
        for one, other in zip(found, expected, strict=True):
            assert one.number == other.number
            assert one.bucket == other.bucket
            assert one.indices.tolist() == other.indices.tolist()
            assert one.is_real.tolist() == other.is_real.tolist()


def test_a_job_that_the_caller_was_interrupted_in_is_done_again() -> None:
    is_interrupted, has_come_to_three = threading.Event(), threading.Event()

    def work(job: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            assert is_interrupted.wait(30)
            if job == 3:
                has_come_to_three.set()
        elif job and not is_interrupted.is_set():
            is_interrupted.set()
            raise KeyboardInterrupt
        return job

    results = ReadAhead(iter(range(6)), work, no_split, num_threads=1, num_ahead=3)
    assert next(results) == 0
    # The only thread is in job 1, so the caller helps with a job behind it.
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert has_come_to_three.wait(30)
    assert list(results) == [1, 2, 3, 4, 5]
