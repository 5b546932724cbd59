"""The draw of a sample depends on its position in the order alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import InvalidValueError
from feedline.plan import (
    BucketPlan,
    Concatenated,
    DrawnOrder,
    EqualChunks,
    FileSharesPlan,
    Mixture,
    Plan,
    RoundsPlan,
    SamplePlan,
    Sequential,
    Shuffled,
    Subset,
    Weighted,
    WindowPlan,
)

MIXTURE = Mixture(sizes=(5, 0, 40), weights=(1, 0, 1), epoch_size=100)
PLANS: dict[str, Plan] = {
    "shuffled": SamplePlan(order=Shuffled(num_samples=61), tail="even"),
    "padded": SamplePlan(order=Shuffled(num_samples=61), tail="pad"),
    "mixture": SamplePlan(order=MIXTURE, tail="even"),
    "changed": SamplePlan(order=MIXTURE.changed((3, 0, 1), epoch=0, position=37), tail="even"),
    "weighted": SamplePlan(order=Weighted(np.arange(1.0, 40.0)), tail="even"),
    "listed": SamplePlan(order=Subset([3, 3, 1, 7, 3]), tail="even"),
    "concatenated": SamplePlan(order=Concatenated((MIXTURE, Shuffled(num_samples=9))), tail="even"),
    "windows": WindowPlan(chunks=EqualChunks(num_samples=50, chunk_size=7), preload=2, tail="even"),
    "drawn": RoundsPlan(
        order=DrawnOrder(num_samples=60, chunk_size=4, preload=2, num_drawn=60), tail="drop"
    ),
    "buckets": BucketPlan.from_groups(
        {"a": range(10), "b": [11, 12, 13, 11]}, tail="even", mode="interleaved"
    ),
    "files": FileSharesPlan(sizes=[5, 9, 4], strategy="oversampling"),
}


def draws_of(plan: Plan, world_size: int, batch_size: int, step: int) -> list[tuple[int, ...]]:
    """Return (index, source, draw) of all entries of all ranks that are not padding."""
    segment = plan.segment(world_size=world_size, batch_size=batch_size)
    found = []
    for rank in range(world_size):
        for first in range(step):
            numbers = range(first, segment.num_batches, step)
            draws = segment.draws(rank, numbers)
            indices, _ = segment.picked(rank, numbers)
            marks = [segment.batch(rank, number).is_real for number in numbers]
            is_real = np.concatenate([np.empty(0, np.bool_), *marks])
            columns = np.stack([indices, *draws])[:, is_real]
            found += [tuple(entry) for entry in columns.T.tolist()]
    return sorted(found)


ELASTIC = [name for name in PLANS if name not in ("files", "drawn")]


@pytest.mark.parametrize("name", ELASTIC)
@given(world_size=st.integers(1, 4), batch_size=st.integers(1, 7), step=st.integers(1, 3))
def test_draws_do_not_depend_on_ranks_batch_sizes_and_workers(
    name: str, world_size: int, batch_size: int, step: int
) -> None:
    plan = PLANS[name]
    assert draws_of(plan, world_size, batch_size, step) == draws_of(plan, 1, 1, 1)


@pytest.mark.parametrize("name", PLANS)
def test_no_two_draws_of_an_epoch_are_alike(name: str) -> None:
    found = draws_of(PLANS[name], 1, 1, 1)
    assert len(found) > 3
    assert len(set(found)) == len(found)


def test_a_mixture_names_its_sources_and_counts_its_passes() -> None:
    found = draws_of(PLANS["mixture"], 1, 1, 1)
    small = sorted((index, number) for index, source, number in found if source == 0)
    assert small == [(index, number) for index in range(5) for number in range(10)]
    assert {source for _, source, _ in found} == {0, 2}


def test_draws_are_those_of_batches_after_a_resize() -> None:
    plan = PLANS["changed"]
    first = plan.segment(world_size=3, batch_size=4)
    rest = first.resized(5, world_size=2, batch_size=7)
    indices, _ = rest.picked(1, range(rest.num_batches))
    draws = rest.draws(1, range(rest.num_batches))
    got = set(zip(indices.tolist(), *(part.tolist() for part in draws), strict=True))
    assert got < set(draws_of(plan, 1, 1, 1))


def test_repeated_files_are_drawn_in_another_pass() -> None:
    segment = PLANS["files"].segment(world_size=3, batch_size=3)
    draws = segment.draws(2, range(segment.num_batches))
    assert draws.numbers.tolist() == [0] * 4 + [1] * 4 + [2]


@pytest.mark.parametrize(
    ("plan", "seed"),
    [
        (SamplePlan(order=Shuffled(num_samples=9, seed=5)), 5),
        (SamplePlan(order=Sequential(num_samples=9)), 0),
        (SamplePlan(order=Subset(range(9), Shuffled(num_samples=9, seed="a"))), "a"),
        (SamplePlan(order=Concatenated((Shuffled(num_samples=9, seed=4),))), 4),
        (BucketPlan.from_groups({0: range(9)}, seed=6), 6),
        (WindowPlan(chunks=EqualChunks(num_samples=9, chunk_size=3), seed=8), 8),
    ],
)
def test_a_plan_knows_its_seed(plan: Plan, seed: Any) -> None:
    assert plan.main_seed == seed


class Silent:
    """Deals as another deal does, but does not tell its draws."""

    def __init__(self, deal: Any) -> None:
        self.num_batches = deal.num_batches


class SilentRest:
    """What is left of an epoch of a plan of the user's own."""

    num_left = 9

    def deal(self, world_size: int, batch_size: int) -> Any:
        rest = SamplePlan(order=Sequential(num_samples=9)).begin(0)
        return Silent(rest.deal(world_size, batch_size))


class OwnPlan(Plan):
    """A plan of the user's own."""

    num_indices = 9

    def begin(self, epoch: int) -> Any:
        return SilentRest()

    def describe(self) -> dict[str, Any]:
        return {}


def test_a_plan_that_does_not_tell_its_draws_is_refused() -> None:
    segment = OwnPlan().segment(world_size=1, batch_size=3)
    with pytest.raises(InvalidValueError, match="OwnPlan does not say how often"):
        segment.draws(0, range(1))
