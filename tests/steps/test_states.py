"""States after errors, after closing, and for loaders that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clock_loaders import MAKERS, SizedPlaces, torch_loader
from clock_runs import Silent, records_of, saved, scheduler_for
from feedline.errors import CursorFormatError, FeedlineError, PlanMismatchError
from feedline.steps import StepScheduler
from feedline.torch import DataLoader, DistributedSampler
from loader_data import FailsOnce


def stopped_at(step: int, loader: Any, **options: Any) -> StepScheduler:
    """A clock whose loop was left at a step."""
    scheduler = scheduler_for(loader, **{"num_epochs": 3, "max_steps": 100, **options})
    for _ in scheduler:
        if scheduler.step == step:
            break
    return scheduler


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("list", 2),
        ("unsized", 2),
        ("feedline torch", 2),
        ("sized places", 2),
        pytest.param("places", 2),
        pytest.param("list", 7),
        pytest.param("feedline torch", 7),
        pytest.param("feed", 7),
    ],
)
def test_closing_a_clock_does_not_change_its_state(kind: str, step: int) -> None:
    with stopped_at(step, MAKERS[kind]()) as scheduler:
        before = saved(scheduler)
    assert saved(scheduler) == before


def test_an_error_within_a_group_loses_none_of_its_batches() -> None:
    whole = records_of(scheduler_for(torch_loader(), grad_acc=3, num_epochs=1))
    bad = whole[1]["ids"][2][0]
    sampler = DistributedSampler(range(23), seed=5, drop_last=False)
    failing = DataLoader(FailsOnce(23, bad), batch_size=3, sampler=sampler)
    scheduler = scheduler_for(failing, grad_acc=3, num_epochs=1)
    with pytest.raises(RuntimeError, match="cannot be read"):
        records_of(scheduler)
    state = saved(scheduler)
    assert state["step"] == 1
    resumed = scheduler_for(torch_loader(), grad_acc=3, num_epochs=1)
    resumed.load_state_dict(state)
    assert records_of(resumed) == whole[1:]


def test_an_error_in_the_loop_leaves_the_state_after_the_step() -> None:
    whole = records_of(scheduler_for(torch_loader(), num_epochs=1))
    scheduler = scheduler_for(torch_loader(), num_epochs=1)

    def train() -> None:
        for _ in scheduler:
            if scheduler.step == 2:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    resumed = scheduler_for(torch_loader(), num_epochs=1)
    resumed.load_state_dict(saved(scheduler))
    assert records_of(resumed) == whole[3:]


def test_a_plain_loader_s_place_in_mid_epoch_is_refused_by_a_loader_with_its_own() -> None:
    state = saved(stopped_at(3, MAKERS["plain torch"]()))
    with pytest.raises(FeedlineError):
        scheduler_for(torch_loader(), num_epochs=3).load_state_dict(state)


class Samples:
    """A foreign loader that knows its place in samples, so that batches may have another size."""

    def __init__(self, batch_size: int, num_samples: int = 24) -> None:
        self._batch_size = batch_size
        self._num_samples = num_samples
        self._place = 0

    def __len__(self) -> int:
        return self._num_samples // self._batch_size

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place = state["place"]

    def __iter__(self) -> Iterator[list[int]]:
        while self._place < self._num_samples:
            first = self._place
            self._place += self._batch_size
            yield list(range(first, self._place))
        self._place = 0


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 4)])
def test_a_foreign_loader_goes_on_in_batches_of_another_size(before: int, after: int) -> None:
    first = StepScheduler(4, before, 1, Samples(before), num_epochs=1, preemption_signal=None)
    for _ in first:
        if first.step == 3:
            break
    second = StepScheduler(4, after, 1, Samples(after), num_epochs=1, preemption_signal=None)
    second.load_state_dict(saved(first))
    records = records_of(second)
    ids = [[one for batch in record["ids"] for one in batch] for record in records]
    assert ids == [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert [record["is_last_step"] for record in records] == [False, True]


def test_a_plain_loader_in_mid_epoch_is_refused_on_other_ranks_or_in_other_batches() -> None:
    def make(local: int, size: int) -> StepScheduler:
        options: dict[str, Any] = {"num_epochs": 3, "preemption_signal": None}
        return StepScheduler(8, local, size, [[1]] * 8, peers=Silent(size), **options)

    first = make(2, 2)
    for _ in first:
        break
    state = saved(first)
    for local, size in ((2, 4), (4, 2), (8, 1)):
        other = make(local, size)
        with pytest.raises(PlanMismatchError, match="dp_size=2, local_batch_size=2") as caught:
            other.load_state_dict(state)
        assert caught.value.differences
        assert (other.step, other.epoch) == (0, 0), "an error leaves the clock as it was"
    list(first)
    edge = make(8, 1)
    edge.load_state_dict(saved(first))
    assert (edge.step, edge.epoch) == (4, 1), "between epochs nothing is in the way"


@pytest.mark.parametrize("kind", ["feedline torch", "feed", "chunks"])
def test_a_damaged_loader_state_is_refused_and_changes_nothing(kind: str) -> None:
    state = saved(stopped_at(3, MAKERS[kind]()))
    scheduler = scheduler_for(MAKERS[kind](), num_epochs=3, max_steps=100)
    for damaged in ({}, {"epoch": 0, "cursor": {}}, {"sampler": {}, "data": "?"}):
        with pytest.raises(FeedlineError):
            scheduler.load_state_dict({**state, "dataloader": damaged})
        assert (scheduler.step, scheduler.epoch) == (0, 0)
    with pytest.raises(CursorFormatError, match="dataloader=3 must be the state of a loader"):
        scheduler.load_state_dict({**state, "dataloader": 3})


def test_a_state_of_another_system_says_nothing_about_the_place_of_a_loader() -> None:
    loader = SizedPlaces(24)
    loader.load_state_dict({**loader.state_dict(), "place": 12})
    clock = StepScheduler(4, 1, 1, loader, num_epochs=1, preemption_signal=None)
    clock.load_state_dict({"step": 3, "epoch": 0})
    flags = [clock.is_last_batch for _ in clock]
    assert flags == [False, False, True]
    assert clock.step == 6
