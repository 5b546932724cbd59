"""Permutations of one run have nothing to do with each other, whatever their sizes (see `chance`).

Windows, blocks, passes and parts come from one key each, with numbers. Small ones once hashed
`number * size + row` under that key: two of different sizes then had words in common, and shuffled
those rows alike, up to a rank correlation of exactly 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from chance import LIMIT, all_pairs_z, coincidences_z, shared_rows_z
from feedline.plan import (
    BucketPlan,
    Concatenated,
    FileSharesPlan,
    Mixture,
    Order,
    Permutation,
    Phase,
    Plan,
    RoundsPlan,
    SamplePlan,
    Shuffled,
    Subset,
    UnequalChunks,
    Weighted,
    WindowOrder,
    WindowPlan,
    derive_key,
)
from feedline.plan.drawn import DrawnOrder
from feedline.plan.interleave import Interleave
from feedline.plan.permutation import permute_numbered

KEY = derive_key(11, "independence")
EVERY_SIZE = range(2, 4201)
SOME_SIZES = (*range(2, 40), *range(40, 4201, 97), 4095, 4096, 4097)
LARGE_SIZES = np.unique(np.geomspace(4200, 10**6, 200).astype(int)).tolist()


def permuted(n: int, number: int) -> NDArray[np.int64]:
    return Permutation(n, KEY, number).forward(np.arange(n))


def check(scores: list[float]) -> None:
    """No score is out of the ordinary, and all together are not, even if each leans one way."""
    assert np.abs(scores).max() < LIMIT
    assert abs(np.sum(scores)) / len(scores) ** 0.5 < LIMIT


def scores_next_to(n: int, number: int) -> list[float]:
    """Compare with the next size, at the same number and at those that would share most words."""
    one, scores = permuted(n, number), []
    nearest = number * n // (n + 1)
    for other_number in sorted({number, nearest, nearest + 1}):
        other = permuted(n + 1, other_number)
        for ahead in sorted({0, number * n - other_number * (n + 1)}):
            score, num_shared = shared_rows_z(one, other, ahead)
            scores += [score] if num_shared > 1 else []
    return scores


def check_sizes(sizes: list[int] | tuple[int, ...] | range, numbers: tuple[int, ...]) -> None:
    check([score for n in sizes for k in numbers for score in scores_next_to(n, k)])


def test_a_permutation_tells_nothing_about_those_of_the_next_sizes() -> None:
    check_sizes(SOME_SIZES, numbers=(0, 3))


@pytest.mark.slow
def test_a_permutation_of_any_size_up_to_4200_tells_nothing_about_those_of_the_next_sizes() -> None:
    check_sizes(EVERY_SIZE, numbers=(0, 1, 1000))


def test_networks_of_almost_one_size_tell_nothing_about_each_other() -> None:
    # Both write a position as a pair out of 100 times 100.
    check_sizes([9950, 99_500], numbers=(0, 5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_permutation_of_200_sizes_up_to_a_million_tells_nothing_about_the_next(part: int) -> None:
    assert len(LARGE_SIZES) == 200
    scores = []
    for n in LARGE_SIZES[part::4]:
        one = permuted(n, 7)
        scores += [shared_rows_z(one, permuted(n + 1, number))[0] for number in (7, 8)]
    check(scores)


def test_numbers_of_one_size_tell_nothing_about_each_other() -> None:
    for n in (2, 5, 100, 1000, 4096, 4097):
        check(all_pairs_z([permuted(n, number) for number in range(40)]).tolist())


def test_permutations_of_other_sizes_and_numbers_agree_as_often_as_chance_gives() -> None:
    sizes = range(1000, 1200)
    pairs = [(permuted(n, 0), permuted(n + 1, 0)[:n]) for n in sizes]
    count = sum(int((one == other).sum()) for one, other in pairs)
    assert abs(coincidences_z(count, len(sizes))) < LIMIT


def test_sizes_that_are_permuted_together_are_as_each_alone() -> None:
    rng = np.random.default_rng(1)
    sizes, numbers = rng.choice([3, 900, 901, 4096, 4097, 9000], 500), rng.integers(0, 9, 500)
    values = rng.integers(0, sizes)
    pairs = zip(sizes.tolist(), numbers.tolist(), values.tolist(), strict=True)
    alone = [Permutation(n, KEY, k).forward(np.array([v]))[0] for n, k, v in pairs]
    assert permute_numbered(sizes, KEY, numbers, values).tolist() == alone
    back = permute_numbered(sizes, KEY, numbers, np.array(alone), inverse=True)
    assert back.tolist() == values.tolist()


# Orders.

FILES = np.random.default_rng(5).integers(900, 1101, 60)


def rows_of_windows(order: WindowOrder) -> list[NDArray[np.int64]]:
    """Return the rows of each window of one chunk, in the order in which they come."""
    epoch = order.at(0)
    starts = epoch.window_starts(np.arange(epoch.num_windows + 1)).tolist()
    parts = [epoch.indices(np.arange(*edges)) for edges in pairwise(starts)]
    return [part - part.min() for part in parts]


def scores_of_words_once_shared(orders: list[NDArray[np.int64]]) -> list[float]:
    """Compare rows that had the same word when `number * size + row` was hashed."""
    found = [
        shared_rows_z(one, other, number * len(one) - other_number * len(other))
        for (number, one), (other_number, other) in combinations(enumerate(orders), 2)
        if abs(number * len(one) - other_number * len(other)) < 1000
    ]
    assert len(found) > 20
    return [score for score, num_shared in found if num_shared > 20]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_windows_of_files_of_unequal_sizes_are_shuffled_independently(seed: int) -> None:
    windows = rows_of_windows(WindowOrder(chunks=UnequalChunks(FILES), seed=seed))
    check(scores_of_words_once_shared(windows))
    check(all_pairs_z(windows).tolist())


def test_the_files_of_a_rank_are_shuffled_independently() -> None:
    plan = FileSharesPlan(sizes=FILES, strategy="undersampling", seed=3)
    segment = plan.segment(world_size=1, batch_size=1)
    indices = segment.block(0, 0, segment.num_batches).indices
    edges = np.flatnonzero(np.diff(plan.chunks.rows_of(indices)[0])) + 1
    files = [part - part.min() for part in np.split(indices, edges)]
    assert len(files) == len(FILES)
    check(scores_of_words_once_shared(files))


def test_blocks_of_a_layout_are_shuffled_independently() -> None:
    # Blocks of 1023 and 1024 entries; those near number 1023 once shared all words.
    layout = Interleave([2046 * 2047 // 2], key=KEY, block_length=1024, in_order=False)
    sizes = [layout._block(number).edges[-1] for number in range(1000, 1046)]
    assert set(sizes) == {1023, 1024}
    starts = np.cumsum([layout._block(1000).start, *sizes])
    blocks = [layout.locate(np.arange(low, high))[1] - low for low, high in pairwise(starts)]
    check(all_pairs_z(blocks).tolist())


def test_passes_over_the_sources_of_a_mixture_are_shuffled_independently() -> None:
    sizes = (400, 401, 402, 403, 500, 4096)
    mixture = Mixture(sizes=sizes, weights=(4, 4, 4, 4, 5, 13), epoch_size=40_000, seed=2)
    sources, rows = mixture.sources_of(mixture.indices(0, range(40_000)))
    passes = []
    for source, size in enumerate(sizes):
        drawn = rows[sources == source]
        passes += [drawn[first : first + size] for first in range(0, len(drawn) - size + 1, size)]
    assert len(passes) > 50
    assert all(sorted(one) == list(range(len(one))) for one in passes)
    check(all_pairs_z(passes).tolist())


def test_buckets_and_epochs_of_one_plan_are_shuffled_independently() -> None:
    edges = np.cumsum([0, *range(400, 430)]).tolist()
    groups = {i: range(low, high) for i, (low, high) in enumerate(pairwise(edges))}
    plan = BucketPlan.from_groups(groups, seed=1)
    orders = []
    for bucket, (low, high) in enumerate(pairwise(edges)):
        for epoch in (0, 1):
            order = plan.epoch_order(epoch, bucket)
            orders.append(order.indices(np.arange(high - low)) - low)
    check(all_pairs_z(orders).tolist())


def test_the_last_part_of_drawn_rows_is_shuffled_independently_of_the_others() -> None:
    # Parts of 1000 rows, and a last one of 900 that once shared all its words with part 9.
    order = DrawnOrder(num_samples=10**6, num_drawn=10_900, chunk_size=1000, seed=4)
    rows = order.indices(0, range(10_900))
    parts = [part - part.min() for part in np.split(rows, range(1000, 10_900, 1000))]
    assert RoundsPlan(order=order).segment(world_size=1, batch_size=100).num_batches == 109
    assert abs(shared_rows_z(parts[10], parts[9])[0]) < LIMIT
    check(all_pairs_z(parts).tolist())


def one_after_another(kind: str) -> list[NDArray[np.int64]]:
    """Return the parts of a chain of orders that were all given one seed."""
    sizes, seed = (500, 501, 520, 500, 9000), 6
    make: dict[str, Callable[[int], Order]] = {
        "shuffled": lambda n: Shuffled(num_samples=n, seed=seed),
        "of subsets": lambda n: Subset(range(n), order=Shuffled(num_samples=n, seed=seed)),
        "of chains": lambda n: Concatenated([Shuffled(num_samples=n, seed=seed)]),
        "weighted": lambda n: Weighted(np.ones(n), replacement=False, seed=seed),
        "windows": lambda n: WindowOrder(chunks=UnequalChunks([n]), seed=seed),
        "mixture": lambda n: Mixture(sizes=(n,), weights=(1,), seed=seed),
    }
    order = Concatenated([make[kind](n) for n in sizes])
    edges = np.cumsum([0, *sizes]).tolist()
    indices = order.indices(0, np.arange(edges[-1]))
    places = [order.at(0).find(int(index))[0] for index in indices[:5]]
    assert places == list(range(5))
    return [indices[low:high] - low for low, high in pairwise(edges)]


@pytest.mark.parametrize(
    "kind", ["shuffled", "of subsets", "of chains", "weighted", "windows", "mixture"]
)
def test_orders_one_after_another_are_independent_though_they_have_one_seed(kind: str) -> None:
    parts = one_after_another(kind)
    assert all(sorted(part) == list(range(len(part))) for part in parts)
    check(all_pairs_z(parts).tolist())


def test_a_chain_in_a_chain_has_no_two_parts_alike() -> None:
    def two() -> Concatenated:
        return Concatenated([Shuffled(num_samples=400), Shuffled(num_samples=400)])

    chain = Concatenated([two(), Shuffled(num_samples=400), two()])
    parts = chain.indices(0, range(2000)).reshape(5, 400) - 400 * np.arange(5)[:, None]
    check(all_pairs_z(list(parts)).tolist())


def test_the_first_of_orders_with_one_seed_and_all_with_other_seeds_stay_as_they_are() -> None:
    shuffled = [Shuffled(num_samples=50, seed=seed) for seed in (1, 2, 1)]
    found = Concatenated(shuffled).indices(0, range(150))
    for number in (0, 1):
        alone = shuffled[number].indices(0, range(50))
        assert (found[50 * number : 50 * number + 50] - 50 * number).tolist() == alone.tolist()
    assert (found[100:] - 100).tolist() != shuffled[0].indices(0, range(50)).tolist()


ALL_KINDS: dict[str, Plan] = {
    "shuffled": SamplePlan(order=Shuffled(num_samples=90)),
    "windows": WindowPlan(chunks=UnequalChunks([30, 41, 5, 14]), preload=2),
    "windows, the last kept": RoundsPlan(
        order=WindowOrder(chunks=UnequalChunks([30, 41, 19]), keep_last=True)
    ),
    "files": FileSharesPlan(sizes=[30, 41, 19], strategy="oversampling"),
    "mixture": SamplePlan(
        order=Mixture(
            sizes=(40, 41, 5), weights=(1, 2, 1), phases=[Phase(weights=(2, 1, 1), position=20)]
        )
    ),
    "buckets": BucketPlan.from_groups({0: range(40), 1: range(40, 81)}),
    "interleaved buckets": BucketPlan.from_groups(
        {0: range(40), 1: range(40, 81)}, mode="interleaved"
    ),
    "drawn": RoundsPlan(order=DrawnOrder(num_samples=90, num_drawn=75, chunk_size=10)),
    "weighted": SamplePlan(order=Weighted(np.ones(90))),
    "chain": SamplePlan(order=Concatenated([Shuffled(num_samples=40), Shuffled(num_samples=41)])),
}


@pytest.mark.parametrize("name", ALL_KINDS)
def test_no_two_permutations_of_a_run_have_the_same_key_and_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sizes_of = ALL_KINDS[name], defaultdict[tuple[int, int | None], set[int]](set)
    set_up = Permutation.__init__

    def noted(self: Permutation, n: int, key: int, number: int | None = None) -> None:
        sizes_of[key, number].add(n)
        set_up(self, n, key, number)

    monkeypatch.setattr(Permutation, "__init__", noted)
    for epoch in range(3):
        segment = plan.segment(world_size=2, batch_size=3, epoch=epoch)
        world_size = 2 if name == "files" else 3
        resumed = plan.resume(segment.cursor(3), world_size=world_size, batch_size=3)
        for part in (segment, resumed):
            assert all(len(list(part.batches(rank, 0))) for rank in range(part.world_size))
            # Where blocks permute together, finding an index permutes alone.
            assert any(part.find(index) for index in range(0, plan.num_indices, 7))
    assert sizes_of
    assert {len(sizes) for sizes in sizes_of.values()} == {1}
    with_number = {key for key, number in sizes_of if number is not None}
    assert with_number.isdisjoint(key for key, number in sizes_of if number is None)
