"""Mixtures: exact counts, passes, phases, and how they end."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from feedline.plan import Mixture, Phase, SamplePlan
from mixture_draws import drawn, num_drawn

Integers = NDArray[np.int64]

# Lengths of an epoch: one block of draws in order, several such, and several shuffled blocks.
ONE_BLOCK, SEVERAL_BLOCKS, SHUFFLED_BLOCKS = 900, 20_000, 4_500_000


def by_largest_remainder(length: int, weights: list[float]) -> list[int]:
    """Seats by the method of largest remainder; the earlier source wins a tie."""
    total = sum(map(Fraction, weights))
    quotas = [length * Fraction(weight) / total for weight in weights]
    counts = [quota.numerator // quota.denominator for quota in quotas]
    shortfalls = [count - quota for quota, count in zip(quotas, counts, strict=True)]
    # Sorting is stable, so equal remainders stay in the order of their sources.
    for source in sorted(range(len(weights)), key=shortfalls.__getitem__)[: length - sum(counts)]:
        counts[source] += 1
    return counts


weight_lists = st.lists(
    st.one_of(st.integers(0, 9), st.floats(0, 1e6)), min_size=1, max_size=6
).filter(any)


@given(weight_lists, st.integers(1, 700))
def test_counts_are_those_of_the_largest_remainder(weights: list[float], length: int) -> None:
    mixture = Mixture(sizes=[50] * len(weights), weights=weights, epoch_size=length)
    assert num_drawn(mixture) == by_largest_remainder(length, weights)


@pytest.mark.parametrize("length", [SEVERAL_BLOCKS, SHUFFLED_BLOCKS])
def test_counts_are_exact_over_many_blocks(length: int) -> None:
    weights = [1, 0, 3.5, 0.001, 7]
    mixture = Mixture(sizes=[100, 5, 9, 60, 10**7], weights=weights, epoch_size=length)
    assert num_drawn(mixture) == by_largest_remainder(length, weights)


def test_counts_are_exact_over_many_sources() -> None:
    weights = [1 + number % 7 for number in range(3000)]
    mixture = Mixture(sizes=[3] * 3000, weights=weights, epoch_size=50_000)
    assert num_drawn(mixture) == by_largest_remainder(50_000, weights)


@pytest.mark.parametrize("temperature", [1e-6, 0.1, 1.0, 3.0, 1e9])
def test_a_weight_of_zero_draws_nothing_at_any_temperature(temperature: float) -> None:
    mixture = Mixture(
        sizes=[50, 50, 50], weights=[5, 0, 1], temperature=temperature, epoch_size=400
    )
    assert num_drawn(mixture)[1] == 0


@pytest.mark.parametrize("temperature", [0.5, 2.0, 3.3, 100.0])
def test_a_weight_counts_as_its_power(temperature: float) -> None:
    weights = np.array([8.0, 4.0, 1.0, 0.25])
    mixture = Mixture(
        sizes=[9] * 4, weights=weights.tolist(), temperature=temperature, epoch_size=10_000
    )
    powers = weights ** (1 / temperature)
    assert np.abs(num_drawn(mixture) - 10_000 * powers / powers.sum()).max() < 1.001


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9, 1e200])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 2.0])
def test_only_the_ratios_of_weights_count(scale: float, temperature: float) -> None:
    def mixture(factor: float) -> Mixture:
        weights = [4 * factor, 2 * factor, factor]
        return Mixture(sizes=[9] * 3, weights=weights, temperature=temperature, epoch_size=1000)

    # Largest remainder may round a scaled weight the other way, by one.
    difference = np.subtract(num_drawn(mixture(scale)), num_drawn(mixture(1.0)))
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("length", [ONE_BLOCK, SEVERAL_BLOCKS])
def test_a_source_is_drawn_pass_by_pass_each_in_a_new_order(length: int) -> None:
    mixture = Mixture(sizes=[37, 1000], weights=[2, 1], epoch_size=length, seed=4)
    sources, indices = drawn(mixture)
    of_first = indices[sources == 0]
    passes = [of_first[i : i + 37].tolist() for i in range(0, len(of_first) - 36, 37)]
    assert len(passes) >= 16
    assert all(sorted(one) == list(range(37)) for one in passes)
    assert all(one != other for one, other in pairwise(passes))


def test_every_index_comes_equally_often_in_shuffled_blocks() -> None:
    mixture = Mixture(sizes=[1000, 10**7], weights=[1, 3], epoch_size=SHUFFLED_BLOCKS)
    sources, indices = drawn(mixture)
    times = np.bincount(indices[sources == 0], minlength=1000)
    assert set(times.tolist()) == {SHUFFLED_BLOCKS // 4 // 1000}
    assert np.bincount(indices[sources == 1]).max() == 1


@pytest.mark.parametrize(("length", "block"), [(SEVERAL_BLOCKS, 4000), (SHUFFLED_BLOCKS, 2**17)])
def test_a_position_gives_alone_what_it_gives_among_all(length: int, block: int) -> None:
    """Blocks begin near multiples of their length, the more sources the less near."""
    mixture = Mixture(
        sizes=[1000] * 60, weights=[1 + number % 5 for number in range(60)], epoch_size=length
    )
    at = mixture.at(0)
    num_blocks = -(-length // block)
    for number in (1, num_blocks // 2, num_blocks - 1):
        border = length * number // num_blocks
        places = np.arange(border - 80, border + 80)
        together = at.indices(np.arange(border - 2000, border + 2000))[2000 - 80 : 2000 + 80]
        alone = [int(at.indices(places[i : i + 1])[0]) for i in range(len(places))]
        assert alone == together.tolist()


def test_every_epoch_starts_its_sources_anew_in_another_order() -> None:
    mixture = Mixture(sizes=[60, 60], weights=[1, 1], epoch_size=60)
    orders = [mixture.indices(epoch, range(60)).tolist() for epoch in range(3)]
    assert all(len(set(order)) == 60 for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_the_epoch_is_the_sum_of_the_sizes_by_default() -> None:
    assert Mixture(sizes=[30, 50, 4], weights=[9, 1, 1]).num_positions() == 84


PHASES = [Phase(weights=(0, 1), position=200), Phase(weights=(3, 1), position=450)]


def test_every_phase_has_exact_counts() -> None:
    mixture = Mixture(sizes=[500, 500], weights=[1, 1], epoch_size=850, phases=PHASES)
    assert num_drawn(mixture, 0, 200) == [100, 100]
    assert num_drawn(mixture, 200, 450) == [0, 250]
    assert num_drawn(mixture, 450, 850) == [300, 100]


def test_draws_carry_on_from_phase_to_phase() -> None:
    mixture = Mixture(sizes=[100, 150], weights=[1, 1], epoch_size=850, phases=PHASES)
    sources, indices = drawn(mixture)
    # 400 draws of the first source are four passes, 450 of the second are three.
    for source, size in enumerate(mixture.sizes):
        passes = indices[sources == source].reshape(-1, size)
        assert (np.sort(passes, axis=1) == np.arange(size)).all()


def test_a_phase_of_a_later_epoch_leaves_the_earlier_ones_alone() -> None:
    phases = [Phase(weights=(1, 3), epoch=2, position=40)]
    mixture = Mixture(sizes=[80, 80], weights=[1, 0], epoch_size=80, phases=phases)
    assert num_drawn(mixture, epoch=1) == [80, 0]
    assert num_drawn(mixture, epoch=2) == [50, 30]
    assert num_drawn(mixture, epoch=3) == [20, 60]


@pytest.mark.parametrize("grad_acc_steps", [1, 4])
def test_at_step_begins_where_that_step_begins(grad_acc_steps: int) -> None:
    world_size, batch_size, step = 3, 5, 7
    first = Mixture(sizes=[2000, 2000], weights=[1, 0], epoch_size=1000)
    num_batches = (
        SamplePlan(order=first).segment(world_size=world_size, batch_size=batch_size).num_batches
    )
    phase = Phase.at_step(
        (0, 1),
        step=step,
        world_size=world_size,
        batch_size=batch_size,
        num_batches=num_batches,
        grad_acc_steps=grad_acc_steps,
    )
    mixture = Mixture(sizes=[2000, 2000], weights=[1, 0], epoch_size=1000, phases=[phase])
    segment = SamplePlan(order=mixture).segment(world_size=world_size, batch_size=batch_size)
    for rank in range(world_size):
        for batch in segment.batches(rank):
            has_begun = batch.number // grad_acc_steps >= step
            assert ((batch.indices >= 2000) == has_begun).all()


def test_at_step_counts_on_into_later_epochs() -> None:
    sizes = {"world_size": 2, "batch_size": 5, "num_batches": 10}
    # With three batches a step, an epoch of ten batches has four steps, the last one short.
    phase = Phase.at_step((1,), step=9, grad_acc_steps=3, **sizes)
    assert (phase.epoch, phase.position) == (2, 1 * 3 * 2 * 5)
    phase = Phase.at_step((1,), step=29, **sizes)
    assert (phase.epoch, phase.position) == (2, 9 * 2 * 5)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=5), st.data())
def test_stop_repeats_nothing_and_ends_within_one_sample_of_a_source(
    sizes: list[int], data: st.DataObject
) -> None:
    weights = data.draw(
        st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)).filter(any)
    )
    mixture = Mixture(sizes=sizes, weights=weights, strategy="stop", seed=data.draw(st.integers()))
    indices = mixture.indices(0, range(mixture.num_positions()))
    assert len(np.unique(indices)) == len(indices)
    unused = np.subtract(sizes, num_drawn(mixture))
    assert min(left for left, weight in zip(unused, weights, strict=True) if weight) <= 1


def test_stop_ends_no_later_than_the_epoch_size() -> None:
    mixture = Mixture(sizes=[100, 100], weights=[1, 1], strategy="stop", epoch_size=70)
    assert mixture.num_positions() == 70


def test_stop_with_phases_ends_when_the_first_source_is_used_up() -> None:
    phases = [Phase(weights=(1, 3), position=40)]
    mixture = Mixture(sizes=[100, 80], weights=[1, 1], strategy="stop", phases=phases)
    # 20 of the second are gone after 40 positions, so 60 are left for three in four.
    assert num_drawn(mixture) == [40, 80]


def test_without_shuffling_sources_and_samples_come_in_order() -> None:
    mixture = Mixture(sizes=[3, 2], weights=[1, 1], epoch_size=8, shuffle=False)
    assert mixture.indices(0, range(8)).tolist() == [0, 1, 2, 0, 3, 4, 3, 4]
    assert mixture.indices(5, range(8)).tolist() == [0, 1, 2, 0, 3, 4, 3, 4]
