"""Iterable datasets: what cannot be exact is refused, and errors leave the state where it was."""

from __future__ import annotations

import json
import os
import signal
from multiprocessing import active_children
from typing import Any

import pytest

import feedline
from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    WorkerError,
)
from feedline.torch import DataLoader
from iterable_data import Counting, Stateless
from iterable_runs import batches, make, plain, saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# What cannot be exact is refused.


def test_a_dataset_without_a_state_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        InvalidValueError, match=r"Stateless has no state.*or pack its samples"
    ) as e:
        DataLoader(Stateless())
    assert "give it, or its iterator, state_dict and load_state_dict" in str(e.value)
    with pytest.raises(InvalidValueError, match="is an iterator without a state"):
        DataLoader(number for number in range(3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shuffle", True), ("seed", 3), ("sampler", [0]), ("num_replicas", 2), ("log", "folder")),
        *(("with_mask", True), ("window", 8), ("transform", print), ("num_threads", 2)),
    ],
)
def test_arguments_that_the_dataset_decides_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"{name}=.* cannot be used with an iterable"):
        DataLoader(Counting(5), **{name: value})


def test_loaders_and_datasets_of_our_own_are_not_read_as_samples() -> None:
    loader = DataLoader([1, 2, 3])
    for data in (loader, make(Counting(5))):
        with pytest.raises(InvalidValueError, match="must be a store, which"):
            DataLoader(data)
        with pytest.raises(InvalidValueError, match="must be a store"):
            feedline.DataLoader(data)


def test_arguments_out_of_bounds_are_named() -> None:
    with pytest.raises(InvalidValueError, match="in_order=False must be True"):
        DataLoader(Counting(5), in_order=False)
    with pytest.raises(InvalidValueError, match="batch_size=0 must be"):
        DataLoader(Counting(5), 0)
    with pytest.raises(InvalidValueError, match="num_workers=-1 must be"):
        DataLoader(Counting(5), num_workers=-1)
    with pytest.raises(InvalidValueError, match="tail='pad' must be one of 'drop', 'exact'"):
        DataLoader(Counting(5), tail="pad")


def state_of(**sizes: int) -> dict[str, Any]:
    loader = make(Counting(20))
    batches(loader, 2)
    state = loader.state_dict()
    return {**state, "cursor": json.dumps({**json.loads(state["cursor"]), **sizes})}


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"world_size": 4}, "saved after 2 batches of an epoch on 4 ranks, but now there are 1"),
        ({"world_size": 2, "rank": 1}, "on 2 ranks, but now there are 1"),
        ({"num_readers": 2, "readers": ["fresh", "fresh"]}, "num_workers=2, but now it is 0 or 1"),
        ({"dataset": "Other"}, "saved with a dataset of the class 'Other'"),
        ({"format": "x"}, "was not saved with an iterable dataset"),
    ],
)
def test_a_state_of_other_sizes_is_refused_with_what_to_do(sizes: Any, told: str) -> None:
    loader = make(Counting(20))
    with pytest.raises(PlanMismatchError, match=told):
        loader.load_state_dict(state_of(**sizes))
    assert batches(loader, 1) == [[0, 1, 2]]


def test_a_state_that_cannot_be_saved_is_refused_with_what_it_may_hold() -> None:
    class Opaque(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"at": lambda: self.at}

    with pytest.raises(InvalidValueError, match=r"Opaque has a state that .* return dicts, lists"):
        next(iter(make(Opaque(20))))


@pytest.mark.parametrize(
    "sizes",
    [
        *({"version": 2}, {"epoch": -1}, {"num_batches": "3"}, {"readers": []}, {"readers": {}}),
        *({"next_reader": 1}, {"rank": 1}, {"has_ended": 2}, {"num_readers": 10**9}),
        {"readers": [{"!": "pickle", "of": "gASVKAAAAAAAAACMBXBvc2l4"}]},
    ],
)
def test_a_damaged_state_is_one_clear_error(sizes: Any) -> None:
    with pytest.raises(CursorFormatError):
        make(Counting(20)).load_state_dict(state_of(**sizes))


@pytest.mark.parametrize(
    "state", [None, {}, {"cursor": 3}, {"cursor": "{"}, {"cursor": "[" * 10**5}]
)
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(CursorFormatError):
        make(Counting(20)).load_state_dict(state)


def test_states_of_other_loaders_are_refused_both_ways() -> None:
    planned = DataLoader(list(range(9)), batch_size=3)
    ours = make(Counting(20))
    with pytest.raises(PlanMismatchError, match="was not saved with an iterable dataset"):
        ours.load_state_dict(planned.state_dict())
    with pytest.raises(ValueError, match="cursor"):
        planned.load_state_dict(ours.state_dict())


def test_a_state_from_the_end_of_an_epoch_loads_on_any_number_of_workers() -> None:
    loader = make(Counting(20), num_workers=3)
    batches(loader)
    state = saved(loader)
    assert json.loads(state["cursor"])["readers"] == []
    resumed = make(Counting(20), num_workers=0)
    resumed.load_state_dict(state)
    assert batches(resumed, 1) == [[1000, 1001, 1002]]


def test_a_state_that_cannot_be_saved_is_named() -> None:
    class Odd(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"file": range(3)}

    loader = make(Odd(20))
    next(iter(loader))
    with pytest.raises(InvalidValueError, match=r"state\['dataset'\]\['file'\] is of type range"):
        loader.state_dict()


def test_a_dataset_that_cannot_be_copied_is_named() -> None:
    data = Counting(20)
    data.file = (number for number in range(3))  # type: ignore[attr-defined]
    with pytest.raises(
        InvalidValueError, match=r"Counting cannot be copied .* open files .* in __i"
    ):
        next(iter(make(data)))


# Errors on the way.


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_follows_an_error_and_the_state_is_at_the_last_batch(num_workers: int) -> None:
    """torch takes a reader that failed for one that has ended, and loses the rest silently."""
    loader = make(Counting(30, fails_at=13), num_workers=num_workers)
    running = iter(loader)
    seen: list[Any] = []
    with pytest.raises(RuntimeError, match="sample 13 is broken"):
        seen.extend(map(plain, running))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="sample 13 is broken"):
            next(running)
    resumed = make(Counting(30), num_workers=num_workers)
    resumed.load_state_dict(saved(loader))
    assert seen + batches(resumed) == batches(make(Counting(30), num_workers=num_workers))


def test_a_killed_worker_is_one_clear_error_and_loses_nothing() -> None:
    loader = make(Counting(300, pause=0.002), num_workers=2)
    before = set(active_children())
    running = iter(loader)
    seen = [plain(next(running)) for _ in range(3)]
    worker = min(set(active_children()) - before, key=lambda process: process.pid or 0)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by signal 9"):
        seen.extend(map(plain, running))
    resumed = make(Counting(300), num_workers=2)
    resumed.load_state_dict(saved(loader))
    assert seen + batches(resumed) == batches(make(Counting(300), num_workers=2))
