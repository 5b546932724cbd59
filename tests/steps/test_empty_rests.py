"""A rest that makes no batch ends its epoch, for the loader and for the clock alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clock_loaders import MemoryStore
from clock_runs import saved
from feedline.feed import Feed
from feedline.plan import SamplePlan, Shuffled
from feedline.steps import Alone, StepScheduler

Sizes = tuple[int, int, int]
State = dict[str, Any]


def clocks(num_samples: int, tail: str, sizes: Sizes, num_epochs: int) -> list[StepScheduler]:
    """The clocks of all ranks, each with a feed of its own."""
    size, local, grad_acc = sizes
    plan = SamplePlan(order=Shuffled(num_samples=num_samples, seed=3), tail=tail)
    store: Any = MemoryStore(num_samples)
    options: dict[str, Any] = {"num_epochs": num_epochs, "preemption_signal": None}
    return [
        StepScheduler(
            size * local * grad_acc,
            dataloader=Feed(store, plan, batch_size=local, world_size=size, rank=rank),
            peers=Alone(),
            **options,
        )
        for rank in range(size)
    ]


def steps_of(clock: StepScheduler, num_steps: int | None) -> list[tuple[int, int, list[int]]]:
    """Epoch, number and real samples of the next steps."""
    found: list[tuple[int, int, list[int]]] = []
    for epoch in clock.epochs:
        for batches in clock:
            assert clock.dataloader.epoch == clock.epoch == epoch
            ids = [int(one) for batch in batches for one in batch.indices[batch.is_real]]
            found.append((epoch, clock.step, ids))
            if len(found) == num_steps:
                return found
    return found


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_an_epoch_whose_rest_makes_no_batch_is_over(num_epochs: int) -> None:
    first = clocks(10, "drop", (1, 3, 1), num_epochs)[0]
    before = steps_of(first, 2)
    # Four samples are left; in batches of five they make none.
    resumed = clocks(10, "drop", (1, 5, 1), num_epochs)[0]
    resumed.load_state_dict(saved(first))
    assert resumed.dataloader.num_batches_left() == 0
    assert resumed.epoch == 0
    after = steps_of(resumed, None)
    assert [(epoch, step) for epoch, step, _ in after] == [(1, 2), (1, 3)][: 2 * (num_epochs - 1)]
    for epoch in range(num_epochs):
        ids = [one for of, _, ids in before + after if of == epoch for one in ids]
        assert len(ids) == len(set(ids))
    assert resumed.epoch == num_epochs


def test_loops_without_epochs_see_the_empty_rest_once() -> None:
    first = clocks(10, "drop", (1, 3, 1), 2)[0]
    steps_of(first, 2)
    resumed = clocks(10, "drop", (1, 5, 1), 2)[0]
    resumed.load_state_dict(saved(first))
    assert list(resumed) == []
    assert (resumed.epoch, resumed.step) == (1, 2)
    again = clocks(10, "drop", (1, 5, 1), 2)[0]
    again.load_state_dict(saved(resumed))
    for clock in (resumed, again):
        assert [clock.step for _ in clock] == [2, 3]
        assert list(clock) == []


@given(
    num_samples=st.integers(12, 40),
    tail=st.sampled_from(["drop", "pad", "even"]),
    parts=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6)),
        min_size=1,
        max_size=6,
    ),
)
def test_any_saves_and_resizes_give_each_epoch_once_and_no_epoch_too_many(
    num_samples: int, tail: str, parts: list[tuple[int, int, int, int]]
) -> None:
    num_epochs, next_step = 3, 0
    taken: list[Counter[int]] = [Counter() for _ in range(num_epochs)]
    state: State | None = None
    for number, (size, local, grad_acc, num_steps) in enumerate(parts):
        ranks = clocks(num_samples, tail, (size, local, grad_acc), num_epochs)
        if state is not None:
            for clock in ranks:
                clock.load_state_dict(state)
        limit = None if number == len(parts) - 1 else num_steps
        by_rank = [steps_of(clock, limit) for clock in ranks]
        for together in zip(*by_rank, strict=True):
            epoch, step, _ = together[0]
            assert {(of, at) for of, at, _ in together} == {(epoch, step)}
            assert (step, epoch < num_epochs) == (next_step, True)
            next_step += 1
            for _, _, ids in together:
                taken[epoch].update(ids)
        states = [saved(clock) for clock in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    most = max(size * local for size, local, *_ in parts)
    for counts in taken:
        assert set(counts.values()) <= {1}, "no sample comes twice"
        dropped = num_samples - len(counts)
        assert dropped < most if tail == "drop" else dropped == 0
    assert state is not None
    assert state["epoch"] == num_epochs
