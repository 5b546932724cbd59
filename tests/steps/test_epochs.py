"""Epochs reach whatever wants to know them; a loop that was left goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data

from clock_loaders import (
    MAKERS,
    Sized,
    bucket_loader,
    chunk_loader,
    each_with,
    feed,
    ids_of,
    torch_loader,
)
from clock_runs import Model, epochs_of, record_of, scheduler_for, steps_of
from loader_data import Ids


class Told:
    """Remembers which epochs it was told, each once."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        if self.epochs[-1:] != [epoch]:
            self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(range(6))


class ToldSampler(Told, torch.utils.data.Sampler[int]):
    def __len__(self) -> int:
        return 6


class ToldBatches(ToldSampler):
    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1, 2], [3, 4, 5]])

    def __len__(self) -> int:
        return 2


class ToldDataset(Told, torch.utils.data.IterableDataset[int]):
    pass


def inside(told: Any, place: str) -> Any:
    """A loader with something at one of its places."""
    make: Any = torch.utils.data.DataLoader
    if place == "dataset":
        return make(told)
    if place == "sampler":
        return make(Ids(6), batch_size=2, sampler=told)
    if place == "batch_sampler":
        return make(Ids(6), batch_sampler=told)
    if place == "sampler of a batch_sampler":
        return make(Ids(6), batch_sampler=torch.utils.data.BatchSampler(told, 2, False))
    return told


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("loader", Told),
        ("dataset", ToldDataset),
        ("sampler", ToldSampler),
        ("batch_sampler", ToldBatches),
        ("sampler of a batch_sampler", ToldSampler),
    ],
)
def test_whatever_wants_to_know_the_epoch_is_told(place: str, kind: Any) -> None:
    told = kind()
    scheduler = scheduler_for(inside(told, place), num_epochs=3, start_epoch=1, max_steps=100)
    for _ in scheduler.epochs:
        for _ in scheduler:
            pass
    assert told.epochs == [1, 2]


OURS: dict[str, Callable[[], Any]] = {
    "torch": torch_loader,
    "buckets": bucket_loader,
    "feed": feed,
    "chunks": chunk_loader,
}


@pytest.mark.parametrize("kind", OURS)
def test_an_epoch_that_is_set_is_the_one_that_comes(kind: str) -> None:
    make = OURS[kind]
    scheduler = scheduler_for(make(), num_epochs=3)
    scheduler.set_epoch(2)
    found = [ids_of(batches[0]) for batches in scheduler]
    assert found == epochs_of(make, 3)[2]


@pytest.mark.parametrize("kind", OURS)
def test_an_epoch_that_has_ended_can_be_set_again(kind: str) -> None:
    make = OURS[kind]
    expected = epochs_of(make, 1)[0]
    scheduler = scheduler_for(make(), num_epochs=3)
    for _ in range(2):
        scheduler.set_epoch(0)
        assert [ids_of(batches[0]) for batches in scheduler] == expected


@pytest.mark.parametrize(
    ("kind", "grad_acc"),
    [case for case in each_with(1, 3) if case.values[0] != "sized places of its own"],
)
def test_a_loop_that_was_left_goes_on_at_the_next_step(kind: str, grad_acc: int) -> None:
    make = MAKERS[kind]
    expected = Model(epochs=epochs_of(make, 2), grad_acc=grad_acc).records()
    scheduler = scheduler_for(make(), grad_acc=grad_acc, num_epochs=2, max_steps=100)
    found = []
    for _ in range(len(expected)):
        for batches in scheduler:
            found.append(record_of(scheduler, batches))
            break
    assert steps_of(found) == steps_of(expected)
    assert list(scheduler) == []


@pytest.mark.parametrize("kind", ["list", "sized", "unsized", "plain torch", *OURS])
def test_the_epoch_after_one_that_was_left_is_the_next(kind: str) -> None:
    make = {**MAKERS, **OURS}[kind]
    whole = epochs_of(make, 3)
    scheduler = scheduler_for(make(), num_epochs=3, max_steps=100)
    found = []
    for epoch in scheduler.epochs:
        for batches in scheduler:
            found.append((epoch, scheduler.step, [ids_of(batch) for batch in batches]))
            if scheduler.step == 2:
                break
    expected = [(0, step, [whole[0][step]]) for step in range(3)]
    for epoch in (1, 2):
        for batch in whole[epoch]:
            expected.append((epoch, len(expected), [batch]))
    assert found == expected


def test_no_epoch_follows_a_loop_that_was_left_at_the_last_step() -> None:
    scheduler = scheduler_for(Sized(3), num_epochs=9, max_steps=4)
    begun = []
    for epoch in scheduler.epochs:
        begun.append(epoch)
        for _ in scheduler:
            if scheduler.is_last_step:
                break
    assert begun == [0, 1]


def test_epochs_without_their_iterator_follow_each_other() -> None:
    scheduler = scheduler_for(Sized(3), num_epochs=2)
    found = [(scheduler.epoch, scheduler.step) for _ in range(5) for _ in scheduler]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]


@pytest.mark.parametrize("kind", ["list", "plain torch", "feedline torch", "feed", "chunks"])
@pytest.mark.parametrize("num_kept", [0, 1, 3])
def test_a_run_goes_back_to_a_state_that_is_loaded_in_its_loop(kind: str, num_kept: int) -> None:
    expected = Model(epochs=epochs_of(MAKERS[kind], 3), grad_acc=1).records()
    for num_done in range(num_kept + 1, len(expected) + 1):
        scheduler = scheduler_for(MAKERS[kind](), num_epochs=3)
        states = [scheduler.state_dict()]
        found: list[Any] = []
        for _ in scheduler.epochs:
            for batches in scheduler:
                found.append(record_of(scheduler, batches))
                states.append(scheduler.state_dict())
                if len(found) == num_done:
                    scheduler.load_state_dict(states[num_kept])
        again = expected[:num_done] + expected[num_kept:]
        assert steps_of(found) == steps_of(again), f"at step {num_done - 1}"


def test_an_epoch_that_is_set_in_the_loop_comes_next() -> None:
    scheduler = scheduler_for(torch_loader(), num_epochs=3)
    found = []
    for epoch in scheduler.epochs:
        for _ in scheduler:
            found.append(epoch)
            if found.count(2) == 1 and found.count(0) < 2 * scheduler.epoch_len:
                scheduler.set_epoch(0)
    assert scheduler.epoch_len
    assert [found.count(epoch) // scheduler.epoch_len for epoch in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    "name",
    [
        "max_steps",
        "global_batch_size",
        "local_batch_size",
        "dp_size",
        "grad_acc_steps",
        "epoch_len",
    ],
)
def test_what_a_scheduler_is_made_with_cannot_be_assigned_later(name: str) -> None:
    scheduler = scheduler_for(Sized(3), num_epochs=2)
    before = getattr(scheduler, name)
    with pytest.raises(AttributeError):
        setattr(scheduler, name, 1)
    assert getattr(scheduler, name) == before


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_loader_that_is_replaced_in_the_loop_does_not_repeat_the_epoch(is_resumed: bool) -> None:
    scheduler = scheduler_for(Sized(3), num_epochs=3)
    if is_resumed:
        scheduler.load_state_dict(scheduler.state_dict())
    found = []
    for epoch in scheduler.epochs:
        for _ in scheduler:
            found.append(epoch)
            break
        scheduler.dataloader = Sized(3)
    assert found == [0, 1, 2]
