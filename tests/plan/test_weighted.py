"""Draws by weight: the same on any ranks, right in their probabilities, and bounded in memory."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate, permutations
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from numpy.typing import NDArray

from chance import LIMIT, chi_square_z, coincidences_z, correlation_z
from feedline.errors import EmptyEpochError, InvalidValueError, PlanMismatchError
from feedline.plan import (
    Concatenated,
    Order,
    Permutation,
    SamplePlan,
    Subset,
    Weighted,
    derive_key,
)
from plan_kinds import (
    batch_sizes,
    seeds,
    through_json,
    weighted_orders,
    world_sizes,
)

MIB = 2**20
NAN, INF = math.nan, math.inf
HASH_SIZE = 2**62
LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324

any_weight = st.one_of(st.just(0.0), st.floats(0, LARGEST, allow_subnormal=True))
# Sums are held for 16 weights at a time, so lists end and begin anywhere in such a run.
weight_lists = st.lists(any_weight, min_size=1, max_size=70).filter(any)


def whole(order: Order, epoch: int = 0) -> NDArray[np.int64]:
    return order.indices(epoch, np.arange(order.num_positions(epoch)))


# The scheme in exact arithmetic, from public ingredients.


def whole_numbers(weights: list[float]) -> list[int]:
    """The weights as whole numbers whose sum is near `2**61`."""
    exact = list(map(Fraction, weights))
    _, exponent = math.frexp(max(weights))
    shift = 61 - len(weights).bit_length() - exponent
    rough = len(weights) + sum(math.floor(weight * Fraction(2) ** shift) for weight in exact)
    shift += 61 - rough.bit_length()
    return [round(weight * Fraction(2) ** shift) for weight in exact]


def hashes(order: Weighted, purpose: str, epoch: int, size: int) -> list[int]:
    key = derive_key(order.seed, purpose, epoch)
    found: list[int] = Permutation(HASH_SIZE, key).forward(np.arange(size)).tolist()
    return found


@given(weight_lists, seeds, st.integers(0, 3))
def test_a_draw_is_where_the_hash_of_its_position_falls_among_the_cumulated_weights(
    weights: list[float], seed: int | str, epoch: int
) -> None:
    order = Weighted(weights, num_samples=200, seed=seed)
    ends = list(accumulate(whole_numbers(weights)))
    expected = [
        bisect_right(ends, value * ends[-1] // HASH_SIZE)
        for value in hashes(order, "weighted draw", epoch, 200)
    ]
    assert whole(order, epoch).tolist() == expected


@given(weight_lists)
def test_probabilities_are_right_to_two_to_the_minus_58(weights: list[float]) -> None:
    numbers = whole_numbers(weights)
    ends = [0, *accumulate(numbers)]
    # The hashes below this one belong to the samples before each end.
    cuts = [-(-end * HASH_SIZE // ends[-1]) for end in ends]
    total = sum(map(Fraction, weights))
    for sample, weight in enumerate(weights):
        share = Fraction(cuts[sample + 1] - cuts[sample], HASH_SIZE)
        assert abs(share - Fraction(weight) / total) <= Fraction(1, 2**58)
        assert weight or not share


@given(
    st.lists(st.integers(0, 1000).map(float) | st.floats(1e-3, 1e3), min_size=1, max_size=80)
    .filter(any)
    .map(lambda weights: [*weights, 0.0]),
    seeds,
)
def test_without_replacement_samples_come_by_their_exponential_times(
    weights: list[float], seed: int | str
) -> None:
    order = Weighted(weights, replacement=False, seed=seed)
    with localcontext() as context:
        context.prec = 50
        times = {
            sample: -((Decimal(value) + Decimal("0.5")) / HASH_SIZE).ln() / Decimal(weight)
            for sample, (value, weight) in enumerate(
                zip(hashes(order, "weighted time", 2, len(weights)), weights, strict=True)
            )
            if weight
        }
    assert whole(order, 2).tolist() == sorted(times, key=times.__getitem__)


def test_times_of_many_samples_are_in_the_exact_order() -> None:
    order = Weighted([1] * 20_000, replacement=False)
    by_hash = np.argsort(hashes(order, "weighted time", 0, 20_000))[::-1]
    np.testing.assert_array_equal(whole(order), by_hash)


# What ranks see.


@given(weighted_orders(), world_sizes, batch_sizes, st.integers(0, 3))
def test_ranks_together_see_the_order_itself_whatever_their_number(
    order: Weighted, world_size: int, batch_size: int, epoch: int
) -> None:
    plan = SamplePlan(order=order, tail="even")
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    ranks = [
        np.concatenate([batch.indices[batch.is_real] for batch in segment.batches(rank)]).tolist()
        for rank in range(world_size)
    ]
    everything = whole(order, epoch).tolist()
    assert ranks == [everything[rank::world_size] for rank in range(world_size)]


@given(weighted_orders(), st.data())
def test_resizes_go_on_with_the_very_next_draws(order: Weighted, data: st.DataObject) -> None:
    plan = SamplePlan(order=order, tail="drop")
    sizes = {"world_size": data.draw(world_sizes), "batch_size": data.draw(batch_sizes)}
    try:
        segment = plan.segment(**sizes)
    except EmptyEpochError:
        assume(False)
        raise
    seen: Counter[int] = Counter()
    position = 0
    for _ in range(4):
        stop = data.draw(st.integers(segment.num_done, segment.num_batches))
        for rank in range(segment.world_size):
            seen.update(segment.block(rank, segment.num_done, stop).indices.tolist())
        position += (stop - segment.num_done) * segment.world_size * segment.batch_size
        assert seen == Counter(order.indices(0, range(position)).tolist())
        sizes = {"world_size": data.draw(world_sizes), "batch_size": data.draw(batch_sizes)}
        segment = plan.resume(through_json(segment.cursor(stop)), **sizes)


@given(weighted_orders(), st.integers(0, 3), st.data())
def test_any_positions_in_any_order_give_the_same_draws(
    order: Weighted, epoch: int, data: st.DataObject
) -> None:
    everything = whole(order, epoch)
    positions = data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=30))
    assert order.indices(epoch, positions).tolist() == everything[positions].tolist()


@pytest.mark.parametrize("replacement", [True, False])
def test_large_blocks_and_single_positions_agree(replacement: bool) -> None:
    weights = np.arange(70_001) % 7
    order = Weighted(weights, num_samples=50_001, replacement=replacement)
    everything = whole(order)
    at = order.at(0)
    for position in (0, 1, 16_383, 16_384, 32_768, 50_000):
        assert at.indices(np.array([position])).tolist() == [everything[position]]
    assert at.indices(np.array([], dtype=np.int64)).tolist() == []


@given(weighted_orders(), st.integers(0, 3))
def test_without_replacement_each_sample_comes_at_most_once_and_all_of_them_when_all_are_taken(
    order: Weighted, epoch: int
) -> None:
    order = replace(order, replacement=False, num_samples=None)
    drawable = np.flatnonzero(order.weights).tolist()
    assert sorted(whole(order, epoch).tolist()) == drawable
    part = replace(order, num_samples=(len(drawable) + 1) // 2)
    assert whole(part, epoch).tolist() == whole(order, epoch)[: part.num_samples].tolist()


@given(weighted_orders(), st.integers(0, 3))
def test_every_position_of_a_sample_is_found(order: Weighted, epoch: int) -> None:
    everything = whole(order, epoch)
    at = order.at(epoch)
    for index in range(order.num_indices):
        assert at.find(index).tolist() == np.flatnonzero(everything == index).tolist()


def test_draws_of_a_long_epoch_are_found_block_by_block() -> None:
    order = Weighted([3, 0, 1, 90], num_samples=100_000)
    everything = whole(order)
    for index in range(4):
        found = order.at(0).find(index)
        assert found.tolist() == np.flatnonzero(everything == index).tolist()
    assert not len(order.at(0).find(1))


# Chance (see `chance`): all keys are fixed.


def weights_of_all_sizes(size: int) -> NDArray[np.float64]:
    return 1.0 + np.arange(size) ** 2 % 37


def test_frequencies_are_those_of_the_weights() -> None:
    weights = weights_of_all_sizes(100)
    order = Weighted(weights, num_samples=400_000, seed="frequencies")
    counts = np.bincount(whole(order), minlength=100)
    shares = weights / weights.sum()
    assert abs(chi_square_z(counts, shares * counts.sum())) < LIMIT
    # It has power: a twentieth more for one sample in three would be noticed.
    other = np.where(np.arange(100) % 3 == 0, 1.05, 1.0) * weights
    assert chi_square_z(counts, other / other.sum() * counts.sum()) > LIMIT


@pytest.mark.parametrize("scale", [SMALLEST, 1e-300, 1.0, LARGEST / 20])
def test_frequencies_do_not_depend_on_the_scale_of_weights(scale: float) -> None:
    order = Weighted(scale * np.array([1.0, 2, 0, 3, 20]), num_samples=100_000)
    counts = np.bincount(whole(order), minlength=5)
    assert counts[2] == 0
    assert abs(chi_square_z(counts[[0, 1, 3, 4]], np.array([1, 2, 3, 20]) / 26 * 100_000)) < LIMIT


def joint_z(
    first: NDArray[np.int64], second: NDArray[np.int64], weights: NDArray[np.float64]
) -> float:
    """How far pairs of draws are from independent ones."""
    size = len(weights)
    counts = np.bincount(first * size + second, minlength=size * size)
    shares = np.outer(weights, weights).ravel() / weights.sum() ** 2
    return chi_square_z(counts, shares * len(first))


@pytest.mark.parametrize("stride", [1, 2, 3, 8, 2**10, 2**15 + 1])
def test_draws_at_neighbouring_positions_are_independent(stride: int) -> None:
    weights = weights_of_all_sizes(12)
    drawn = whole(Weighted(weights, num_samples=300_000, seed="neighbours"))
    assert abs(joint_z(drawn[:-stride], drawn[stride:], weights)) < LIMIT


def test_draws_of_epochs_and_seeds_are_independent() -> None:
    weights = weights_of_all_sizes(12)
    order = Weighted(weights, num_samples=200_000, seed=7)
    others = [whole(order, 1), whole(order, 2), whole(replace(order, seed=8))]
    for other in others:
        assert abs(joint_z(whole(order), other, weights)) < LIMIT
    assert abs(joint_z(others[0], others[2], weights)) < LIMIT  # seed + epoch is the same


def exact_probability(drawn: tuple[int, ...], weights: list[float]) -> float:
    """The probability that successive draws without replacement are these."""
    left, probability = float(sum(weights)), 1.0
    for sample in drawn:
        probability *= weights[sample] / left
        left -= weights[sample]
    return probability


def test_successive_draws_are_proportional_to_the_weights_that_are_left() -> None:
    weights = [1.0, 2.0, 0.0, 3.0, 10.0]
    num_epochs = 6_000
    order = Weighted(weights, replacement=False, seed="successive")
    rows = [tuple(whole(order, epoch).tolist()) for epoch in range(num_epochs)]
    found = Counter(rows)
    possible = list(permutations((0, 1, 3, 4)))
    expected = [num_epochs * exact_probability(drawn, weights) for drawn in possible]
    assert set(found) <= set(possible)
    assert abs(chi_square_z([found[drawn] for drawn in possible], expected)) < LIMIT
    firsts = np.bincount([row[0] for row in rows], minlength=5)[[0, 1, 3, 4]]
    assert abs(chi_square_z(firsts, np.array([1, 2, 3, 10]) / 16 * num_epochs)) < LIMIT
    for sample in (0, 1, 3, 4):  # is it among the first two?
        share = sum(
            exact_probability(drawn, weights)
            for drawn in permutations((0, 1, 3, 4), 2)
            if sample in drawn
        )
        included = sum(sample in row[:2] for row in rows)
        spread = math.sqrt(num_epochs * share * (1 - share))
        assert abs(included - num_epochs * share) / spread < LIMIT


def martingale_z(is_heavy: NDArray[np.bool_], ratio: float) -> list[float]:
    """How often a heavy sample comes more than its chance at that time, by thirds of the epoch."""
    num_heavy = int(is_heavy.sum())
    before = np.cumsum(is_heavy) - is_heavy
    heavy_left = (num_heavy - before) * ratio
    light_left = len(is_heavy) - num_heavy - (np.arange(len(is_heavy)) - before)
    chance = heavy_left / (heavy_left + light_left)
    surplus, spread = is_heavy - chance, chance * (1 - chance)
    thirds = zip(np.array_split(surplus, 3), np.array_split(spread, 3), strict=True)
    return [float(part.sum() / math.sqrt(part_spread.sum())) for part, part_spread in thirds]


def test_heavy_samples_come_earlier_by_exactly_their_weight() -> None:
    weights = np.where(np.arange(200_000) % 2, 3.0, 1.0)
    drawn = whole(Weighted(weights, replacement=False, seed="martingale"))
    assert max(map(abs, martingale_z(drawn % 2 == 1, 3.0))) < LIMIT
    assert max(map(abs, martingale_z(drawn % 2 == 1, 3.15))) > LIMIT


def test_epochs_and_seeds_without_replacement_are_independent() -> None:
    order = Weighted(np.ones(20_000), replacement=False, seed=7)
    first = whole(order)
    others = [whole(order, 1), whole(order, 2), whole(replace(order, seed=8))]
    for other in others:
        assert abs(correlation_z(first, other)) < LIMIT
    agreements = sum(int((first == other).sum()) for other in others)
    assert abs(coincidences_z(agreements, len(others))) < LIMIT
    assert abs(correlation_z(first, np.arange(20_000))) < LIMIT


# Zeros and extremes.


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 32, 100])
def test_a_single_weight_among_zeros_is_always_drawn(size: int, replacement: bool) -> None:
    for place in {0, size // 2, size - 1}:
        weights = np.zeros(size)
        weights[place] = SMALLEST
        order = Weighted(weights, num_samples=1000 if replacement else 1, replacement=replacement)
        assert set(whole(order).tolist()) == {place}


@given(weight_lists, st.booleans())
def test_a_sample_with_weight_zero_is_never_drawn(weights: list[float], replacement: bool) -> None:
    order = Weighted(weights, 2000 if replacement else None, replacement)
    assert all(weights[sample] > 0 for sample in whole(order).tolist())


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=50).filter(any),
    st.integers(-1074, 1013),
    st.booleans(),
)
def test_a_power_of_two_as_a_factor_changes_nothing(
    weights: list[int], exponent: int, replacement: bool
) -> None:
    scaled = [math.ldexp(weight, exponent) for weight in weights]
    one, other = (Weighted(given, replacement=replacement) for given in (weights, scaled))
    assert whole(one).tolist() == whole(other).tolist()


def test_weights_from_the_smallest_to_the_largest_come_in_their_order() -> None:
    weights = [SMALLEST, 1e-300, 1e-200, 1e-100, 0, 1, 1e100, 1e200, 1e300]
    for epoch in range(20):
        order = Weighted(weights, replacement=False)
        assert whole(order, epoch).tolist() == [8, 7, 6, 5, 3, 2, 1, 0]
        assert set(whole(replace(order, replacement=True), epoch).tolist()) == {8}


def test_a_giant_weight_leaves_the_others_their_share() -> None:
    size = 2**18
    weights = np.full(size, 2.0**-18)
    weights[size // 3] = 2.0**20  # the others together weigh about a millionth of it
    order = Weighted(weights, replacement=False)
    drawn = whole(order)
    assert drawn[0] == size // 3
    assert np.array_equal(np.sort(drawn), np.arange(size))
    weights[size // 3] = 1.0  # about as much as all others together
    counts = np.bincount(whole(Weighted(weights)), minlength=size)
    share = 1 / (2 - 2.0**-18)
    assert abs(counts[size // 3] - size * share) / math.sqrt(size / 4) < LIMIT


# The order as a value.


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"weights": [1, 2, 3, 4.000000000000001]}, "order.weights.digest"),
        ({"weights": [1, 2, 3, 4, 0]}, "order.weights.num_entries"),
        ({"num_samples": 3}, "order.num_samples was 4 and is 3"),
        ({"replacement": False}, "order.replacement was True and is False"),
        ({"seed": 1}, "order.seed was 0 and is 1"),
    ],
)
def test_a_cursor_of_other_weights_is_refused_with_what_differs(
    changed: dict[str, Any], field: str
) -> None:
    order = Weighted([1, 2, 3, 4])
    other = replace(order, **changed)
    assert order != other
    cursor = SamplePlan(order=order).segment(world_size=1, batch_size=1).cursor(2)
    with pytest.raises(PlanMismatchError, match=field.replace(".", r"\.")):
        SamplePlan(order=other).resume(cursor, world_size=1, batch_size=1)


def test_equal_weights_in_any_form_are_one_order() -> None:
    forms: list[Any] = [
        [0, 1, 2],
        (0.0, 1.0, 2.0),
        [-0.0, 1, 2],
        range(3),
        np.arange(3, dtype=np.uint8),
        np.arange(3, dtype=np.float32),
        np.arange(6, dtype=np.float64)[:3],
        np.arange(0, 6, 2.0)[::1] / 2,
        np.array([0, 1, 2], dtype=object),
        [Fraction(0), Decimal(1), 2],
    ]
    orders = [Weighted(form) for form in forms]
    assert len(set(orders)) == 1
    assert len({SamplePlan(order=order).fingerprint for order in orders}) == 1
    assert orders[0] != "Weighted"


@pytest.mark.parametrize("replacement", [True, False])
def test_a_pickled_order_and_its_epoch_go_on_alike(replacement: bool) -> None:
    order = Weighted([3, 1, 0, 2], replacement=replacement, seed="pickled")
    fresh = pickle.loads(pickle.dumps(order))
    expected = whole(order).tolist()
    used = pickle.loads(pickle.dumps(order))
    assert fresh == used == order
    assert whole(fresh).tolist() == whole(used).tolist() == expected
    at = order.at(0)
    at.find(0)
    positions = np.arange(at.num_positions)
    assert pickle.loads(pickle.dumps(at)).indices(positions).tolist() == expected


def test_changing_the_caller_s_array_changes_nothing() -> None:
    weights = np.ones(100)
    order = Weighted(weights)
    before, fingerprint = whole(order).tolist(), SamplePlan(order=order).fingerprint
    weights[:50] = 0
    assert whole(order).tolist() == before
    assert SamplePlan(order=Weighted(np.ones(100))).fingerprint == fingerprint
    with pytest.raises(ValueError, match="read-only"):
        order.weights[0] = 5  # type: ignore[index]


def test_the_representation_is_one_short_line() -> None:
    order = Weighted(np.ones(10**5), seed="run")
    assert repr(order) == (
        "Weighted(100000 weights, num_samples=100000, replacement=True, seed='run')"
    )


def test_subsets_and_concatenations_of_weighted_orders() -> None:
    order = Weighted([1, 0, 5], num_samples=40)
    chosen = Subset([30, 10, 20], order=order)
    assert whole(chosen).tolist() == [[30, 10, 20][place] for place in whole(order).tolist()]
    both = Concatenated([order, Weighted([1, 1], replacement=False)])
    assert both.num_indices == 5
    assert whole(both)[:40].tolist() == whole(order).tolist()
    assert sorted(whole(both)[40:].tolist()) == [3, 4]


# What is refused.

REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "nan": (lambda: Weighted([1, NAN]), ("weights[1]=nan", "finite", "use 0")),
    "infinite": (lambda: Weighted([INF, 1]), ("weights[0]=inf", "finite")),
    "too large": (lambda: Weighted([1, 10**400]), ("weights[1]=inf", "finite")),
    "negative": (lambda: Weighted([1, 2, -1]), ("weights[2]=-1.0", "at least 0")),
    "empty": (lambda: Weighted([]), ("weights is empty", "one number")),
    "two axes": (lambda: Weighted([[1, 2], [3, 4]]), ("2 axes", "must have 1")),
    "a number": (lambda: Weighted(3.0), ("weights=3.0", "0 axes")),
    "ragged": (lambda: Weighted([[1], [1, 2]]), ("weights", "numbers")),
    "text": (lambda: Weighted("12"), ("weights='12'", "0 axes")),
    "texts": (lambda: Weighted(["1", "2"]), ("weights holds <U1", "numbers")),
    "text among objects": (lambda: Weighted(["1", None]), ("weights", "numbers")),
    "complex": (lambda: Weighted([1j]), ("complex128", "numbers")),
    "none": (lambda: Weighted(None), ("weights=None", "0 axes")),
    "all zero": (lambda: Weighted([0, 0.0]), ("2 weights are all zero", "above 0")),
    "no samples": (lambda: Weighted([1], 0), ("num_samples=0", "at least 1")),
    "half a sample": (lambda: Weighted([1], 1.5), ("num_samples=1.5", "integer")),
    "too many samples": (lambda: Weighted([1], 2**62 + 1), ("num_samples=", str(2**62))),
    "more than can be drawn": (
        lambda: Weighted([1, 0, 2], 3, replacement=False),
        ("num_samples=3 must be in [1, 2]", "weights are above 0", "replacement=True"),
    ),
    "replacement": (lambda: Weighted([1], replacement="no"), ("replacement='no'", "True or False")),
    "seed": (lambda: Weighted([1], seed=1.5), ("seed=1.5", "integer or a string")),
    "another subset": (lambda: Subset([1, 2], order=Weighted([1])), ("num_indices=1", "2")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused_with_value_and_bound(case: str) -> None:
    make, parts = REFUSED[case]
    with pytest.raises(InvalidValueError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


# Memory.

NUM_ENTRIES = 10**6


@pytest.fixture
def weights() -> NDArray[np.float64]:
    """A million weights, made before memory is traced."""
    Weighted([1, 2]).indices(0, [0])  # so that lazy imports are not counted
    return weights_of_all_sizes(NUM_ENTRIES)


def live_through_it(order: Weighted) -> SamplePlan:
    plan = SamplePlan(order=order)
    segment = plan.segment(world_size=8, batch_size=64)
    segment.batch(3, 0)
    resumed = plan.resume(segment.cursor(segment.num_batches // 2), world_size=4, batch_size=500)
    resumed.block(1, resumed.num_done, resumed.num_done + 60)
    return plan


def test_weights_with_replacement_cost_about_eight_bytes_an_entry(
    weights: NDArray[np.float64],
) -> None:
    tracemalloc.start()
    try:
        plan = live_through_it(Weighted(weights))
        held, peak = tracemalloc.get_traced_memory()
        plan.order.at(0).find(5)
        peak_of_find = tracemalloc.get_traced_memory()[1]
        shared = live_through_it(replace(plan.order, seed=1))
        held_by_both = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 8.5 * NUM_ENTRIES + MIB / 2
    assert max(peak, peak_of_find) < 8.5 * NUM_ENTRIES + 20 * MIB
    assert held_by_both < 9 * NUM_ENTRIES + MIB  # one array of weights for both
    assert shared.order != plan.order


def test_an_epoch_without_replacement_is_one_more_array_while_it_is_in_use(
    weights: NDArray[np.float64],
) -> None:
    tracemalloc.start()
    try:
        order = Weighted(weights, replacement=False)
        at = order.at(0)
        order_alone = tracemalloc.get_traced_memory()[0]
        at.indices(np.arange(10))
        in_use = tracemalloc.get_traced_memory()[0]
        del at
        later = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert order_alone < 8 * NUM_ENTRIES + MIB
    assert in_use < 16 * NUM_ENTRIES + MIB
    assert later < 8 * NUM_ENTRIES + MIB


def test_counting_batches_sorts_nothing(weights: NDArray[np.float64]) -> None:
    plan = SamplePlan(order=Weighted(weights, replacement=False))
    tracemalloc.start()
    try:
        assert plan.segment(world_size=8, batch_size=10).num_batches == NUM_ENTRIES // 80
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB
