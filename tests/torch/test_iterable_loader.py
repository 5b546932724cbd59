"""Iterable datasets with a state: what the loop received is what a resumed run goes on behind."""

from __future__ import annotations

import copy
import json
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from examples import few_examples
from feedline.errors import EmptyEpochError, InvalidValueError
from feedline.feed import Loader
from feedline.torch import StepScheduler
from iterable_data import Counting, Shuffling, Unequal
from iterable_runs import batches, make, plain, saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

KINDS = {
    "state in the dataset": Counting(45),
    "workers that end one by one": Unequal(28, pause=0.002),
    "state in the iterator": Shuffling(45),
}
each_kind = pytest.mark.parametrize("data", [pytest.param(d, id=name) for name, d in KINDS.items()])


# Resuming.


@each_kind
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_state_saved_after_any_batch_goes_on_at_the_next_one(data: Any, num_workers: int) -> None:
    options = {"num_workers": num_workers, "prefetch_factor": 4 if num_workers else None}
    loader = make(data, **options)
    whole, states = [], [saved(loader)]
    for batch in loader:
        whole.append(plain(batch))
        states.append(saved(loader))
    assert len(whole) > 8
    following = batches(loader)
    chosen = range(len(states)) if num_workers == 0 else (1, 2, 7, len(whole) - 1, len(whole))
    for number in chosen:
        resumed = make(data, **options)
        resumed.load_state_dict(states[number])
        assert saved(resumed) == states[number]
        assert batches(resumed) == whole[number:]
        assert (resumed.epoch, len(batches(resumed, 2))) == (0, 2)
        assert resumed.epoch == 1
    resumed = make(data, **options)
    resumed.load_state_dict(saved(loader))
    assert (loader.epoch, resumed.epoch) == (1, 1)
    again = make(data, **options)
    again.set_epoch(1)
    assert batches(again) == following


@pytest.mark.parametrize("data", [Counting(25), Shuffling(25)], ids=["dataset", "iterator"])
@few_examples(0.5)
@given(draw=st.data())
def test_a_run_that_is_killed_often_sees_each_batch_once(data: Any, draw: st.DataObject) -> None:
    sizes = st.integers(1, 4)
    whole = [sample for batch in batches(make(data, batch_size=1)) for sample in samples_of(batch)]
    seen: list[Any] = []
    state = None
    for _ in range(6):
        if len(seen) == len(whole):
            break
        loader = make(data, batch_size=draw.draw(sizes))
        if state is not None:
            loader.load_state_dict(state)
        running = iter(loader)
        for batch in islice(running, draw.draw(st.integers(0, 4))):
            seen += samples_of(plain(batch))
        state = saved(loader)
        # Lost with the process.
        list(islice(running, draw.draw(st.integers(0, 3))))
    loader = make(data)
    if state is not None:
        loader.load_state_dict(state)
    for batch in [] if len(seen) == len(whole) else loader:
        seen += samples_of(plain(batch))
    assert seen == whole


def samples_of(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
    return list(batch)


@pytest.mark.slow
@each_kind
@few_examples(0.2)
@given(draw=st.data())
def test_a_run_with_workers_that_is_killed_often_sees_each_batch_once(
    data: Any, draw: st.DataObject
) -> None:
    num_workers = draw.draw(st.integers(2, 4))
    options = {"num_workers": num_workers, "prefetch_factor": draw.draw(st.integers(1, 4))}
    whole = batches(make(data, **options))
    seen: list[Any] = []
    state = None
    for _ in range(3):
        loader = make(data, **options)
        if state is not None:
            loader.load_state_dict(state)
        running = iter(loader)
        seen += [plain(batch) for batch in islice(running, draw.draw(st.integers(0, 4)))]
        state = saved(loader)
        list(islice(running, draw.draw(st.integers(0, 3))))
        del running
    loader = make(data, **options)
    loader.load_state_dict(state)
    assert seen + batches(loader) == whole


def test_the_state_counts_what_the_loop_received_and_not_what_workers_read() -> None:
    loader = make(Counting(60), num_workers=2, prefetch_factor=8)
    running = iter(loader)
    assert [plain(next(running)) for _ in range(3)] == [[0, 2, 4], [1, 3, 5], [6, 8, 10]]
    readers = json.loads(saved(loader)["cursor"])["readers"]
    assert readers == [{"dataset": {"at": 12}}, {"dataset": {"at": 7}}]
    assert json.loads(loader.state_before(1)["cursor"])["readers"][0] == {"dataset": {"at": 6}}
    assert json.loads(loader.state_before(3)["cursor"])["num_batches"] == 0
    with pytest.raises(InvalidValueError, match=r"num_batches=4 must be in \[0, 3\]"):
        loader.state_before(4)


def test_batches_of_the_dataset_itself_pass_unchanged() -> None:
    loader = make(Counting(5), batch_size=None, collate_fn=lambda sample: (sample, "x"))
    running = iter(loader)
    assert [next(running), next(running)] == [(0, "x"), (1, "x")]
    resumed = make(Counting(5), batch_size=None)
    resumed.load_state_dict(saved(loader))
    assert list(resumed) == [2, 3, 4]


def test_incomplete_batches_are_dropped_on_demand() -> None:
    assert batches(make(Counting(8), drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    found = batches(make(Counting(8), drop_last=True, num_workers=2))
    assert found == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.slow
def test_spawned_workers_resume_too() -> None:
    options = {"num_workers": 2, "multiprocessing_context": "spawn"}
    whole = batches(make(Counting(20), num_workers=2))
    loader = make(Counting(20), **options)
    assert batches(loader, 3) == whole[:3]
    resumed = make(Counting(20), **options)
    resumed.load_state_dict(saved(loader))
    assert batches(resumed) == whole[3:]


def test_batches_arrive_on_a_device() -> None:
    loader = make(Shuffling(10), device="cpu")
    expected = batches(make(Shuffling(10)))
    assert batches(loader, 1) == expected[:1]
    resumed = make(Shuffling(10), device="cpu", num_workers=1)
    resumed.load_state_dict(saved(loader))
    assert batches(resumed) == expected[1:]


# Epochs.


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_epochs_follow_the_rules_of_every_loader(options: dict[str, Any]) -> None:
    data = Shuffling(20)
    loader = make(data, **options)
    first = batches(loader)
    assert loader.epoch == 0
    assert batches(loader, 2) != first[:2]
    assert loader.epoch == 1
    second = batches(loader)
    assert (loader.epoch, len(second)) == (1, len(first)), "a pass that is left is begun again"
    loader.set_epoch(1)
    third = batches(loader)
    assert loader.epoch == 2, "the epoch that it is in does not move it"
    loader.set_epoch(0)
    assert batches(loader, 3) == first[:3]
    loader.load_state_dict(saved(loader))
    assert batches(loader) == first[3:]
    assert batches(loader) == second
    copied = copy.deepcopy(loader)
    assert batches(copied) == third
    loader.close()
    copied.close()


def test_a_copy_goes_on_at_the_place_of_its_loader() -> None:
    loader = make(Counting(20))
    whole = batches(loader)
    loader.set_epoch(1)
    loader.set_epoch(0)
    running = iter(loader)
    next(running)
    assert batches(copy.deepcopy(loader)) == whole[1:]
    assert [plain(batch) for batch in running] == whole[1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_is_closed_keeps_its_place(num_workers: int) -> None:
    loader = make(Counting(20), num_workers=num_workers)
    whole = batches(loader)
    loader.set_epoch(1)
    loader.set_epoch(0)
    running = iter(loader)
    seen = [plain(next(running)), plain(next(running))]
    loader.close()
    assert list(running) == []
    resumed = make(Counting(20), num_workers=num_workers)
    resumed.load_state_dict(saved(loader))
    assert seen + batches(resumed) == whole


def test_an_iterator_of_an_earlier_pass_is_refused() -> None:
    loader = make(Counting(9))
    running = iter(loader)
    next(running)
    batches(loader, 1)
    with pytest.raises(InvalidValueError, match="belongs to an earlier pass"):
        next(running)


def test_a_loader_says_what_the_protocol_asks() -> None:
    loader = make(Counting(9), num_workers=2)
    assert isinstance(loader, Loader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.delivered, loader.epoch) == (3, None, 0)
    assert (loader.peers.rank, loader.peers.world_size) == (0, 1)
    assert repr(loader).startswith("<IterableLoader of Counting: ")
    assert repr(loader).endswith(", epoch 0, batch 0>")
    for ask in (lambda: len(loader), loader.num_batches_left):
        with pytest.raises(TypeError, match="has no number of batches"):
            ask()
    next(iter(loader))
    assert loader.delivered is not None
    assert (loader.delivered.number, loader.delivered.num_real) == (0, 3)
    assert loader.delivered.ids is None


def test_an_epoch_without_a_batch_is_an_error() -> None:
    with pytest.raises(EmptyEpochError, match="num_batches=0 must be at least 1: Counting has no"):
        next(iter(make(Counting(0))))
    with pytest.raises(EmptyEpochError):
        next(iter(make(Counting(2), drop_last=True)))


# The clock.


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_clock_of_a_run_walks_through_epochs_and_resumes(num_workers: int) -> None:
    def clock() -> StepScheduler:
        loader = make(Counting(20), num_workers=num_workers)
        sizes = {"global_batch_size": 6, "local_batch_size": 3, "dp_size": 1}
        return StepScheduler(dataloader=loader, num_epochs=2, max_steps=99, **sizes)

    def steps(scheduler: StepScheduler, count: int | None = None) -> list[Any]:
        found = []
        for _ in scheduler.epochs:
            for group in scheduler:
                found.append((scheduler.step, scheduler.epoch, [plain(batch) for batch in group]))
                if len(found) == count:
                    return found
        return found

    whole = steps(clock())
    assert [epoch for _, epoch, _ in whole] == [0] * 4 + [1] * 4
    for count in (1, 3, 4, 5):
        scheduler = clock()
        seen = []
        for _ in scheduler.epochs:
            for group in scheduler:
                seen.append((scheduler.step, scheduler.epoch, [plain(batch) for batch in group]))
                state = json.loads(json.dumps(scheduler.state_dict()))
                if len(seen) == count:
                    break
            if len(seen) == count:
                break
        assert seen == whole[:count]
        resumed = clock()
        resumed.load_state_dict(state)
        assert [group for _, _, group in seen + steps(resumed)] == [g for _, _, g in whole]
