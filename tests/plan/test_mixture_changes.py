"""Weights that change while a run is on its way: what has been is kept, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Phase,
    Plan,
    SamplePlan,
    Shuffled,
    WindowPlan,
)
from mixture_draws import drawn, num_drawn

Integers = NDArray[np.int64]

# Sizes of two sources: an epoch of one block, of several blocks with draws in order, and of several
# in which draws are shuffled. The places at which weights change lie inside of blocks.
SIZES = {"one block": 900, "several blocks": 9_000, "shuffled blocks": 2_200_000}
every_regime = pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))


@every_regime
def test_what_came_before_a_change_stays_as_it_was(size: int) -> None:
    mixture = Mixture(sizes=[size, size], weights=[1, 1])
    position = size // 3 + 7
    changed = mixture.changed((1, 4), epoch=0, position=position)
    before = np.arange(position)
    np.testing.assert_array_equal(changed.indices(0, before), mixture.indices(0, before))


@every_regime
def test_counts_after_a_change_are_exact(size: int) -> None:
    position = size // 4 * 4 + 3
    mixture = Mixture(sizes=[size, size], weights=[1, 1]).changed(
        (1, 4), epoch=0, position=position
    )
    num_after = 2 * size - position
    # Largest remainder of one fifth and four fifths.
    expected = num_after // 5 + (num_after % 5 >= 3)
    assert num_drawn(mixture, position) == [expected, num_after - expected]


@every_regime
def test_any_number_of_changes_loses_and_repeats_nothing(size: int) -> None:
    """The last one draws from one source until `stop` says that it is used up."""
    mixture = Mixture(sizes=[size, size], weights=[1, 1], strategy="stop", seed="changes")
    places = [size * part // 9 + 1 for part in (2, 3, 5, 6)]
    for place, weights in zip(places, [(1, 3), (5, 1), (1, 1), (0, 1)], strict=True):
        mixture = mixture.changed(weights, epoch=0, position=place)
    sources, indices = drawn(mixture)
    of_first, of_second = indices[sources == 0], indices[sources == 1]
    assert len(np.unique(of_first)) == len(of_first)
    np.testing.assert_array_equal(np.sort(of_second), np.arange(size))


@every_regime
def test_a_small_source_is_drawn_equally_often_across_changes(size: int) -> None:
    mixture = Mixture(sizes=[50, 2 * size], weights=[1, 1], epoch_size=2 * size)
    mixture = mixture.changed((2, 1), epoch=0, position=size // 2 + 1)
    mixture = mixture.changed((1, 2), epoch=0, position=size + 5)
    sources, indices = drawn(mixture)
    times = np.bincount(indices[sources == 0], minlength=50)
    assert times.max() - times.min() <= 1


@every_regime
def test_every_place_is_found_again_across_changes(size: int) -> None:
    mixture = Mixture(sizes=[size, size // 3], weights=[2, 1], epoch_size=2 * size)
    mixture = mixture.changed((1, 2), epoch=0, position=size // 2 + 1)
    mixture = mixture.changed((3, 1), epoch=0, position=size + 5)
    at = mixture.at(0)
    everything = at.indices(np.arange(2 * size))
    chosen = np.random.default_rng(1).integers(0, mixture.num_indices, 20)
    for index in chosen.tolist():
        assert at.find(index).tolist() == np.flatnonzero(everything == index).tolist()


def test_a_change_cancels_the_phases_that_were_planned_for_later() -> None:
    phases = [Phase(weights=(0, 1), position=60), Phase(weights=(1, 0), epoch=1, position=10)]
    mixture = Mixture(sizes=[200, 200], weights=[1, 0], epoch_size=100, phases=phases)
    changed = mixture.changed((1, 1), epoch=0, position=30)
    assert num_drawn(changed, 0, 30) == [30, 0]
    assert num_drawn(changed, 30) == [35, 35]
    assert num_drawn(changed, epoch=1) == [50, 50]


def test_a_changed_mixture_gives_alone_what_it_gives_among_all() -> None:
    phases = [Phase(weights=(0, 1), position=60), Phase(weights=(1, 2), position=80)]
    mixture = Mixture(sizes=[200, 200], weights=[1, 0], epoch_size=100, phases=phases)
    changed = mixture.changed((1, 1), epoch=0, position=30).changed((3, 1), epoch=0, position=70)
    together = changed.indices(0, range(100)).tolist()
    assert [int(changed.indices(0, [place])[0]) for place in range(100)] == together


def test_a_change_leaves_a_phase_that_has_begun_as_it_was() -> None:
    phases = [Phase(weights=(0, 1), position=60)]
    mixture = Mixture(sizes=[200, 200], weights=[1, 0], epoch_size=100, phases=phases)
    changed = mixture.changed((1, 0), epoch=0, position=80)
    assert num_drawn(changed, 0, 60) == [60, 0]
    assert num_drawn(changed, 60, 80) == [0, 20]
    assert num_drawn(changed, 80) == [20, 0]


def test_a_change_holds_in_all_later_epochs_and_in_no_earlier_one() -> None:
    mixture = Mixture(sizes=[90, 90], weights=[1, 2], epoch_size=90)
    changed = mixture.changed((2, 1), epoch=3, position=45)
    assert [num_drawn(changed, epoch=epoch) for epoch in range(3)] == [[30, 60]] * 3
    assert num_drawn(changed, 45, epoch=3) == [30, 15]
    assert [num_drawn(changed, epoch=epoch) for epoch in (4, 9)] == [[60, 30]] * 2


def test_a_change_replaces_those_that_were_to_begin_later() -> None:
    mixture = Mixture(sizes=[90, 90], weights=[1, 2], epoch_size=90)
    twice = mixture.changed((1, 0), epoch=0, position=60).changed((0, 1), epoch=0, position=30)
    assert twice == mixture.changed((0, 1), epoch=0, position=30)


def test_a_change_at_the_same_place_replaces_the_one_before() -> None:
    mixture = Mixture(sizes=[90, 90], weights=[1, 2], epoch_size=90)
    twice = mixture.changed((1, 0), epoch=0, position=30).changed((0, 1), epoch=0, position=30)
    assert num_drawn(twice, 30) == [0, 60]


def test_a_change_at_the_very_start_is_as_if_planned_so() -> None:
    mixture = Mixture(sizes=[90, 90], weights=[1, 2], epoch_size=90)
    changed = mixture.changed((2, 1), epoch=0, position=0)
    planned = Mixture(sizes=[90, 90], weights=[2, 1], epoch_size=90)
    assert changed.indices(0, range(90)).tolist() == planned.indices(0, range(90)).tolist()


def test_a_change_returns_another_mixture_and_leaves_the_first_as_it_was() -> None:
    mixture = Mixture(sizes=[90, 90], weights=[1, 2], epoch_size=90)
    before = mixture.indices(0, range(90)).tolist()
    mixture.changed((2, 1), epoch=0, position=0)
    assert mixture.indices(0, range(90)).tolist() == before
    assert mixture.changes == ()


def test_a_change_may_come_with_a_temperature() -> None:
    mixture = Mixture(sizes=[200, 200], weights=[1, 0], epoch_size=100)
    changed = mixture.changed((9, 1), epoch=0, position=60, temperature=2.0)
    assert num_drawn(changed, 60) == [30, 10]


def test_a_plan_over_a_mixture_says_and_changes_its_weights() -> None:
    mixture = Mixture(sizes=[50, 50], weights=[1, 3], temperature=2.0)
    plan = SamplePlan(order=mixture, tail="pad")
    assert plan.weights_now == ((1.0, 3.0), 2.0)
    changed = plan.reweighted([4, 1], 0.5, epoch=1, position=30)
    assert changed.weights_now == ((4.0, 1.0), 0.5)
    order = mixture.changed([4, 1], epoch=1, position=30, temperature=0.5)
    assert changed == SamplePlan(order=order, tail="pad")
    assert plan.weights_now == ((1.0, 3.0), 2.0)


@pytest.mark.parametrize(
    "plan",
    [
        SamplePlan(order=Shuffled(num_samples=9)),
        WindowPlan(chunks=EqualChunks(num_samples=9, chunk_size=3)),
        BucketPlan.from_groups({0: range(9)}),
    ],
    ids=["samples", "windows", "buckets"],
)
def test_a_plan_without_weights_has_none_to_change(plan: Plan) -> None:
    assert plan.weights_now is None
    with pytest.raises(InvalidValueError, match=f"{type(plan).__name__} has no weights"):
        plan.reweighted([1, 2], 1.0, epoch=0, position=0)
