"""Epochs, seeds, passes and sources have nothing to do with each other (see `chance`)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from chance import LIMIT, chi_square_z, coincidences_z, correlation_z
from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Order,
    Permutation,
    SamplePlan,
    Shuffled,
    WindowOrder,
    derive_key,
)

# The golden vectors guard the orders; their chance need not be looked at with every change.
pytestmark = pytest.mark.slow

Pairs = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def shuffled(n: int, seed: int) -> Order:
    return Shuffled(num_samples=n, seed=seed)


def by_windows(n: int, seed: int) -> Order:
    return WindowOrder(chunks=EqualChunks(num_samples=n, chunk_size=n // 50), preload=50, seed=seed)


def next_epochs(make: Callable[[int, int], Order], n: int, num_pairs: int) -> Pairs:
    order, places = make(n, 7), np.arange(n)
    orders = [order.indices(epoch, places) for epoch in range(num_pairs + 1)]
    return list(pairwise(orders))


def next_seeds(make: Callable[[int, int], Order], n: int, num_pairs: int) -> Pairs:
    places = np.arange(n)
    orders = [make(n, seed).indices(0, places) for seed in range(num_pairs + 1)]
    return list(pairwise(orders))


def next_epoch_of_seed_and_next_seed(
    make: Callable[[int, int], Order], n: int, num_pairs: int
) -> Pairs:
    """Epoch 1 of seed s against epoch 0 of seed s + 1: the same if seed and epoch were added."""
    places = np.arange(n)
    return [
        (make(n, seed).indices(1, places), make(n, seed + 1).indices(0, places))
        for seed in range(num_pairs)
    ]


KINDS = pytest.mark.parametrize("make", [shuffled, by_windows], ids=lambda make: make.__name__)
PAIRINGS = pytest.mark.parametrize(
    "pair_up",
    [next_epochs, next_seeds, next_epoch_of_seed_and_next_seed],
    ids=lambda pair_up: pair_up.__name__,
)
SIZES = pytest.mark.parametrize(("n", "num_pairs"), [(1000, 400), (10**6, 3)])


@KINDS
@PAIRINGS
@SIZES
def test_two_orders_agree_as_often_as_chance_gives(
    make: Callable[[int, int], Order], pair_up: Callable[..., Pairs], n: int, num_pairs: int
) -> None:
    pairs = pair_up(make, n, num_pairs)
    count = sum(int((one == other).sum()) for one, other in pairs)
    assert abs(coincidences_z(count, num_pairs)) < LIMIT


@KINDS
@PAIRINGS
@SIZES
def test_two_orders_are_not_correlated(
    make: Callable[[int, int], Order], pair_up: Callable[..., Pairs], n: int, num_pairs: int
) -> None:
    scores = [correlation_z(one, other) for one, other in pair_up(make, n, num_pairs)]
    assert max(map(abs, scores)) < LIMIT
    assert abs(sum(scores)) / len(scores) ** 0.5 < LIMIT


@pytest.mark.parametrize("n", [100, 1000, 4096, 4097, 10**5])
def test_passes_over_one_source_agree_as_often_as_chance_gives(n: int) -> None:
    places, num_pairs = np.arange(n), 300
    orders = [Permutation(n, 5, number).forward(places) for number in range(num_pairs + 1)]
    pairs = list(pairwise(orders))
    count = sum(int((one == other).sum()) for one, other in pairs)
    assert abs(coincidences_z(count, num_pairs)) < LIMIT


@pytest.mark.parametrize("purpose", ["order", "window"])
def test_keys_differ_in_about_half_of_their_bits_when_the_epoch_moves_on(purpose: str) -> None:
    keys = [derive_key(0, purpose, epoch) for epoch in range(2001)]
    flips = sum((one ^ other).bit_count() for one, other in pairwise(keys))
    assert abs(flips - 2000 * 64) / (2000 * 32) ** 0.5 < LIMIT


SEVERAL = {"sizes": (300, 200, 100, 40), "weights": (6, 3, 2, 1)}


def test_every_position_of_a_mixture_draws_each_source_in_proportion_over_seeds() -> None:
    num_seeds, length = 3000, 720
    counts = np.zeros((length, 4))
    for seed in range(num_seeds):
        mixture = Mixture(epoch_size=length, seed=seed, **SEVERAL)
        sources, _ = mixture.sources_of(mixture.indices(0, range(length)))
        counts[np.arange(length), sources] += 1
    means = num_seeds * np.array(SEVERAL["weights"]) / 12
    scores = [chi_square_z(row, means) for row in counts]
    assert max(map(abs, scores)) < LIMIT


@pytest.mark.parametrize(
    ("length", "num_rare"),
    [
        *((100, 1), (20_000, 1), (20_000, 3), (20_000, 40), (5_000_000, 1)),
        pytest.param(5_000_000, 60, marks=pytest.mark.slow),
    ],
)
def test_a_rare_source_comes_anywhere_in_the_epoch_over_seeds(length: int, num_rare: int) -> None:
    """One block, several blocks with draws in order, and several with draws shuffled."""
    num_seeds, num_bins = 2000, 40
    places: list[int] = []
    for seed in range(num_seeds):
        mixture = Mixture(
            sizes=(length, num_rare),
            weights=(length - num_rare, num_rare),
            epoch_size=length,
            seed=seed,
        )
        places += mixture.at(0).find(length + seed % num_rare).tolist()
    assert len(places) == num_seeds
    counts = np.bincount(np.array(places) * num_bins // length, minlength=num_bins)
    edges = -(-np.arange(num_bins + 1) * length // num_bins)
    means = np.diff(edges) * (num_seeds / length)
    assert abs(chi_square_z(counts, means)) < LIMIT


def test_every_step_of_interleaved_buckets_takes_each_in_proportion_over_seeds() -> None:
    num_seeds, sizes = 2000, (60, 30, 10)
    edges = [0, *np.cumsum(sizes).tolist()]
    groups = {i: range(*edges[i : i + 2]) for i in range(3)}
    counts = np.zeros((100, 3))
    for seed in range(num_seeds):
        plan = BucketPlan.from_groups(groups, mode="interleaved", seed=seed)
        block = plan.segment(world_size=1, batch_size=1).block(0, 0, 100)
        counts[np.arange(100), block.buckets] += 1
    scores = [chi_square_z(row, num_seeds * np.array(sizes) / 100) for row in counts]
    assert max(map(abs, scores)) < LIMIT


def test_a_sample_is_seen_by_each_rank_equally_often_over_epochs() -> None:
    num_epochs, world_size = 4000, 8
    plan = SamplePlan(order=Shuffled(num_samples=1000, seed="ranks"), tail="even")
    ranks = []
    for epoch in range(num_epochs):
        segment = plan.segment(world_size=world_size, batch_size=5, epoch=epoch)
        ranks += [place.rank for place in segment.find(123)]
    counts = np.bincount(ranks, minlength=world_size)
    assert abs(chi_square_z(counts, num_epochs / world_size)) < LIMIT
