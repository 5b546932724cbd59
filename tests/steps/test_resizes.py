"""A run that goes on with other ranks and batches has every sample of an epoch once."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from clock_loaders import feed, ids_of, torch_loader
from clock_runs import State, saved
from feedline.steps import Alone, StepScheduler

MAKERS = {"torch": torch_loader, "feed": feed}
GLOBAL = 12


class Ranks:
    """All ranks of a run, taken through their steps one after another in this process."""

    def __init__(self, kind: str, size: int, local: int, num_samples: int, total: int) -> None:
        self.schedulers = [
            StepScheduler(
                total,
                local,
                size,
                MAKERS[kind](rank=rank, world_size=size, batch_size=local, num_samples=num_samples),
                num_epochs=3,
                preemption_signal=None,
                peers=Alone(),
            )
            for rank in range(size)
        ]

    def load(self, state: State) -> None:
        for scheduler in self.schedulers:
            scheduler.load_state_dict(state)

    def take(self, num_steps: int | None) -> list[tuple[int, int, Counter[int]]]:
        """Epoch, step and ids of some steps; padding is left out where a batch shows it."""
        by_rank = [list(self._take_one(rank, num_steps)) for rank in range(len(self.schedulers))]
        found = []
        for together in zip(*by_rank, strict=True):
            places = {place for place, _ in together}
            assert len(places) == 1, "ranks are at the same step"
            ids = Counter(one for _, ids in together for one in ids)
            found.append((*places.pop(), ids))
        return found

    def _take_one(self, rank: int, num_steps: int | None) -> Any:
        scheduler = self.schedulers[rank]
        left = itertools.count() if num_steps is None else iter(range(num_steps))
        for epoch in scheduler.epochs:
            for batches in self._some(scheduler, left):
                ids = [one for batch in batches for one in ids_of(batch)]
                yield (epoch, scheduler.step), ids
            if next(left, None) is None:
                return
            left = itertools.chain([0], left)

    def _some(self, scheduler: StepScheduler, left: Any) -> Any:
        if next(left, None) is None:
            return
        for batches in scheduler:
            yield batches
            if next(left, None) is None:
                return


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("size", "local"), [(1, 1), (2, 3), (3, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("num_steps", [1, 3, 4, 6])
def test_steps_have_the_same_samples_on_other_ranks(
    kind: str, size: int, local: int, num_steps: int
) -> None:
    whole = Ranks(kind, 1, 4, 48, GLOBAL).take(None)
    assert [step for _, step, _ in whole] == list(range(12))
    first = Ranks(kind, 2, 2, 48, GLOBAL)
    before = first.take(num_steps)
    second = Ranks(kind, size, local, 48, GLOBAL)
    second.load(saved(first.schedulers[-1]))
    assert before + second.take(None) == whole


@settings(max_examples=25)
@given(
    kind=st.sampled_from(sorted(MAKERS)),
    num_samples=st.integers(20, 60),
    sizes=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_number_of_resizes_covers_each_epoch_once(
    kind: str, num_samples: int, sizes: list[tuple[int, int, int, int]]
) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    state = None
    next_step = 0
    for number, (size, local, grad_acc, num_steps) in enumerate(sizes):
        ranks = Ranks(kind, size, local, num_samples, size * local * grad_acc)
        if state is not None:
            ranks.load(state)
        is_last = number == len(sizes) - 1
        for epoch, step, ids in ranks.take(None if is_last else num_steps):
            assert step == next_step
            next_step += 1
            taken.update({(epoch, one): count for one, count in ids.items()})
        state = saved(ranks.schedulers[0])
    assert set(taken) == {(epoch, one) for epoch in range(3) for one in range(num_samples)}
    # What does not fill the ranks is padded at the end of an epoch, by less than a global batch.
    num_padded = sum(taken.values()) - len(taken)
    assert num_padded <= 3 * max(size * local for size, local, *_ in sizes)
