"""Batches of map-style datasets, fetched by threads and by processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import InvalidValueError, WorkerError
from feedline.feed import Batching, Pass
from feedline.feed.map_batches import Fetching, Readers, num_samples_of
from feedline.plan import SamplePlan, Shuffled
from loader_data import Deadly, FailsOnce, Ids, ProcessIds, WholeBatches
from processes import is_running, python, wait_for


def running_pass(num_samples: int = 40, batch_size: int = 4) -> Pass:
    plan = SamplePlan(order=Shuffled(num_samples=num_samples, seed=5), tail="pad")
    return Pass(plan.segment(world_size=1, batch_size=batch_size), 0, Batching())


def test_batches_come_in_order_whoever_fetches_them() -> None:
    running = running_pass()
    expected = [running.planned(number).indices.tolist() for number in range(10)]
    for options in ({}, {"num_threads": 1}, {"num_threads": 3}):
        batches = Readers(Fetching(Ids(40)), **options).batches(running_pass())
        assert [batch.tolist() for batch in batches] == expected
        assert next(batches, None) is None


def test_workers_live_from_pass_to_pass_and_end_when_they_are_closed() -> None:
    readers = Readers(Fetching(ProcessIds(40)), num_workers=2)
    pids = {int(i) for batch in readers.batches(running_pass()) for i in batch}
    assert os.getpid() not in pids
    assert {int(i) for batch in readers.batches(running_pass()) for i in batch} & pids
    # A pass that is dropped in the middle leaves nothing to the next one.
    dropped = readers.batches(running_pass())
    next(dropped)
    dropped.close()
    assert next(dropped, None) is None
    assert len(list(readers.batches(running_pass()))) == 10
    readers.close()
    assert not any(is_running(pid) for pid in pids)


def test_a_worker_that_is_killed_is_named_and_a_new_pass_has_new_ones() -> None:
    readers = Readers(Fetching(Deadly(8)), num_workers=1)
    with pytest.raises(WorkerError, match="a worker was killed"):
        list(readers.batches(running_pass(8)))
    with pytest.raises(WorkerError, match="begin a new pass"):
        list(readers.batches(running_pass(8)))


def test_an_error_in_a_worker_is_that_of_its_batch() -> None:
    readers = Readers(Fetching(FailsOnce(8, bad=int(running_pass(8).planned(0).indices[0]))))
    readers.num_workers = 1
    batches = readers.batches(running_pass(8))
    with pytest.raises(RuntimeError, match="cannot be read"):
        next(batches)
    assert len(next(batches)) == 4
    readers.close()


def test_a_dataset_that_cannot_be_sent_to_workers_is_refused() -> None:
    class Local(Ids):
        pass

    with pytest.raises(InvalidValueError, match="dataset=Local or collate_fn cannot be sent"):
        Readers(Fetching(Local(8)), num_workers=1).batches(running_pass(8))


@pytest.mark.parametrize("options", [{}, {"num_threads": 2}])
def test_after_an_error_the_next_batch_follows(options: dict[str, Any]) -> None:
    batches = Readers(Fetching(FailsOnce(40, bad=9)), **options).batches(running_pass())
    found, num_errors = [], 0
    for _ in range(10):
        try:
            found += next(batches).tolist()
        except RuntimeError:
            num_errors += 1
    assert num_errors == 1
    assert len(found) == 36
    assert next(batches, None) is None


def test_threads_read_no_further_than_they_may_and_end_with_their_pass() -> None:
    fetched = []

    class Noting(Ids):
        def __getitem__(self, index: int) -> int:
            fetched.append(index)
            return index

    batches = Readers(Fetching(Noting(400)), num_threads=2).batches(running_pass(400))
    list(islice(batches, 3))
    assert len(fetched) <= 4 * (3 + 4)
    del batches
    end = time.monotonic() + 20
    while any(t.name.startswith("feedline-reader") for t in threading.enumerate()):
        assert time.monotonic() < end, "the threads of a pass that was dropped are left"
        time.sleep(0.01)


def test_samples_are_stacked_or_collated_or_fetched_whole() -> None:
    assert Fetching([(1, "a"), (2, "b")])([1, 0])[1] == ["b", "a"]
    assert Fetching([1, 2, 3], sum)([0, 2]) == 4
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    whole = WholeBatches(rows)
    assert Fetching(whole)([3, 1]).tolist() == rows[[3, 1]].tolist()
    assert whole.num_calls == 1


def test_fewer_samples_than_asked_for_are_an_error() -> None:
    class Short(Ids):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices[1:]

    with pytest.raises(InvalidValueError, match="returned 3 samples for 4 indices"):
        next(Readers(Fetching(Short(40))).batches(running_pass()))


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (b"abc", "open it with feedline.open"),
        (Path("data"), "open it with feedline.open"),
        ({"x": [1]}, "pack the columns"),
        ({3, 4}, "give it __len__ and __getitem__"),
        (None, "give it __len__ and __getitem__"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        num_samples_of(dataset)
    assert num_samples_of({0: "a", 1: "b"}) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with python("map_workers_job.py", str(tmp_path)) as job:
        wait_for(lambda: len(list(tmp_path.glob("worker-*"))) == 2, job)
        pids = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
        os.kill(job.pid, signal.SIGKILL)
        job.wait(timeout=30)
        end = time.monotonic() + 30
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < end, "workers outlived their parent"
            time.sleep(0.02)
