"""Permutations against chance: statistics that could fail, with fixed keys (see `chance`)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from chance import LIMIT, chi_square_z, coincidences_z
from feedline.plan import Permutation, SamplePlan, Shuffled, derive_key, feistel
from feedline.plan.permutation import shuffled_tables

# The golden vectors guard the orders; their chance need not be looked at with every change.
pytestmark = pytest.mark.slow

Integers = NDArray[np.int64]

NUM_KEYS = 100_000
MIDDLE, LARGE = 1000, 10**6
both_sizes = pytest.mark.parametrize("n", [MIDDLE, LARGE])


def keys(purpose: str, num_keys: int) -> list[int]:
    return [derive_key("statistics", purpose, number) for number in range(num_keys)]


def count_permutations(rows: Integers) -> Integers:
    """How often each permutation comes, by its number in the factorial system."""
    num_rows, n = rows.shape
    codes = np.zeros(num_rows, dtype=np.int64)
    for place in range(n):
        smaller_later = (rows[:, place + 1 :] < rows[:, place : place + 1]).sum(axis=1)
        codes += smaller_later * math.factorial(n - 1 - place)
    return np.bincount(codes, minlength=math.factorial(n))


@pytest.mark.parametrize(
    "n", [2, 4, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 6, 8))]
)
def test_every_permutation_is_equally_likely_over_keys(n: int) -> None:
    places = np.arange(n)
    rows = np.array([Permutation(n, key).forward(places) for key in keys(f"whole {n}", NUM_KEYS)])
    assert abs(chi_square_z(count_permutations(rows), NUM_KEYS / math.factorial(n))) < LIMIT


@pytest.mark.parametrize("n", range(2, 9))
def test_every_permutation_is_equally_likely_over_the_numbers_of_one_key(n: int) -> None:
    rows = shuffled_tables(n, keys("numbers", 1)[0], np.arange(NUM_KEYS, dtype=np.uint64))
    found = count_permutations(rows.astype(np.int64))
    assert abs(chi_square_z(found, NUM_KEYS / math.factorial(n))) < LIMIT


@pytest.mark.parametrize("n", [2, 3, 4])
def test_successive_numbers_of_one_key_are_independent(n: int) -> None:
    rows = shuffled_tables(n, keys("pairs", 1)[0], np.arange(2 * NUM_KEYS, dtype=np.uint64))
    pairs = rows.astype(np.int64).reshape(NUM_KEYS, 2 * n)
    # Code the pair as one permutation of 2n, the second half shifted.
    pairs[:, n:] += n
    num_cells = math.factorial(n) ** 2
    found = count_permutations(pairs)
    assert np.count_nonzero(found) == num_cells
    assert abs(chi_square_z(found[found > 0], NUM_KEYS / num_cells)) < LIMIT


@pytest.mark.parametrize("n", [2, 8, 1000, 4096])
def test_tables_made_together_are_those_made_one_by_one(n: int) -> None:
    key = keys("rows", 1)[0]
    numbers = np.array([0, 1, 7, 2**40, 2**64 - 1], dtype=np.uint64)
    for number, row in zip(numbers.tolist(), shuffled_tables(n, key, numbers), strict=True):
        assert Permutation(n, key, number).forward(np.arange(n)).tolist() == row.tolist()


@both_sizes
def test_a_position_goes_everywhere_equally_often_over_keys(n: int) -> None:
    root = math.isqrt(n)
    places = np.array([0, 1, 2, root - 1, root, root + 1, n // 2, n - root, n - 2, n - 1])
    num_keys, num_bins = 20_000, 50
    images = np.array([Permutation(n, key).forward(places) for key in keys("place", num_keys)])
    for column, place in enumerate(places):
        for part in (images[:, column] * num_bins // n, images[:, column] % num_bins):
            counts = np.bincount(part, minlength=num_bins)
            assert abs(chi_square_z(counts, num_keys / num_bins)) < LIMIT, place


@lru_cache(maxsize=2)
def whole_orders(n: int) -> Integers:
    """Whole permutations under a few keys, about four million entries together."""
    places = np.arange(n)
    num_keys = 4 * 10**6 // n
    return np.array([Permutation(n, key).forward(places) for key in keys("whole", num_keys)])


def difference_z(differences: Integers, possible: Integers) -> float:
    """How far the leading or the trailing digits of differences are from equally likely ones."""
    num_bins = math.isqrt(len(possible) + 1)
    scores = []
    for digits in (np.floor_divide, np.remainder):
        means = np.bincount(digits(possible, num_bins)) * (differences.size / possible.size)
        scores.append(chi_square_z(np.bincount(digits(differences, num_bins)), means))
    return max(scores, key=abs)


def displacement_z(orders: Integers) -> float:
    """The same for how far positions are moved, modulo n."""
    places = np.arange(orders.shape[1])
    return difference_z(((orders - places) % len(places)).ravel(), places)


def stride_z(orders: Integers, stride: int) -> float:
    """The same for how much the image grows from a position to one that is `stride` further."""
    n = orders.shape[1]
    growth = (orders[:, stride:] - orders[:, :-stride]) % n
    return difference_z(growth.ravel(), np.arange(1, n))


@both_sizes
def test_displacements_are_uniform(n: int) -> None:
    assert abs(displacement_z(whole_orders(n))) < LIMIT


@both_sizes
def test_fixed_points_are_as_many_as_chance_gives(n: int) -> None:
    orders = whole_orders(n)
    count = int((orders == np.arange(n)).sum())
    assert abs(coincidences_z(count, len(orders))) < LIMIT


@both_sizes
@pytest.mark.parametrize("stride", [1, 2, "root", "two roots"])
def test_differences_along_the_order_are_uniform(n: int, stride: int | str) -> None:
    """A stride of sqrt(n) moves one half of the network's pair and keeps the other."""
    named = {"root": math.isqrt(n), "two roots": 2 * math.isqrt(n)}
    num_positions = stride if isinstance(stride, int) else named[stride]
    assert abs(stride_z(whole_orders(n), num_positions)) < LIMIT


def test_too_few_rounds_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above have power: with four rounds both statistics are far off."""
    monkeypatch.setattr(feistel, "NUM_ROUNDS", 4)
    places = np.arange(LARGE)
    orders = np.array([Permutation(LARGE, key).forward(places) for key in keys("whole", 4)])
    assert displacement_z(orders) > 2 * LIMIT
    assert stride_z(orders, math.isqrt(LARGE)) > 2 * LIMIT


PARITY_SIZES = [n + shift for n in (10**6, 2**22, 2**24, 2**26) for shift in (-1, 0, 1)]


@pytest.mark.parametrize("n", PARITY_SIZES)
@pytest.mark.parametrize("world_size", [1, 8])
def test_half_of_the_indices_of_a_batch_are_odd(n: int, world_size: int) -> None:
    batch_size = 1024
    plan = SamplePlan(order=Shuffled(num_samples=n, seed="parity"))
    segment = plan.segment(world_size=world_size, batch_size=batch_size)
    third = segment.num_batches // 3
    blocks = [
        segment.block(world_size - 1, start, start + min(third, 120)).indices
        for start in (0, third, 2 * third)
    ]
    odd = (np.concatenate(blocks) % 2).reshape(-1, batch_size).sum(axis=1)
    scores = (odd - batch_size / 2) / math.sqrt(batch_size / 4)
    assert np.abs(scores).max() < LIMIT
    # And all batches together: neither on one side, nor too far apart.
    num_scores = len(scores)
    assert abs(scores.sum()) / math.sqrt(num_scores) < LIMIT
    assert abs((scores**2).sum() - num_scores) / math.sqrt(2 * num_scores) < LIMIT
