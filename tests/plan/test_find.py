"""Finding every place of a sample, also of one that comes hundreds of thousands of times."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from feedline.plan import DrawnOrder, Mixture, Phase, Place, Replay, SamplePlan
from feedline.plan.permutation import Permutation, permute_numbered

# Below 4096 samples a pass is a table, above it is computed; up to 2**22 positions draws are in
# order, above they are shuffled in blocks.
SIZES = [6, 700, 5000]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_every_pass_over_a_source_is_found_across_phases(size: int, shuffle: bool) -> None:
    phases = [Phase(weights=(0, 1), position=9_000), Phase(weights=(2, 1), position=12_345)]
    mixture = Mixture(
        sizes=(40, size), weights=(1, 3), epoch_size=31_000, phases=phases, shuffle=shuffle
    )
    everything = mixture.indices(0, np.arange(31_000))
    at = mixture.at(0)
    for index in (0, 39, 40, 43, 40 + size - 1):
        assert at.find(index).tolist() == np.flatnonzero(everything == index).tolist()


@pytest.mark.parametrize(
    ("size", "epoch_size"),
    [(6, 2_000_000), pytest.param(5000, 400_000_000, marks=pytest.mark.slow)],
)
def test_a_source_that_is_gone_through_very_often_is_searched_as_a_whole(
    size: int, epoch_size: int
) -> None:
    mixture = Mixture(sizes=(size, 10**6), weights=(1, 1), epoch_size=epoch_size)
    replay = Replay(plan=SamplePlan(order=mixture), world_size=3, batch_size=7)
    found = replay.find(3)
    num_dropped = replay.segments[0].num_dropped
    assert abs(len(found) - epoch_size // 2 // size) <= 1 + num_dropped
    assert len(set(found)) == len(found)
    positions = np.array([(c.batch * 7 + c.slot) * 3 + c.rank for c in found])
    assert (mixture.indices(0, positions) == 3).all()
    assert all(c.is_real for c in found)


def test_a_sample_that_comes_often_is_found_in_the_padding_too() -> None:
    mixture = Mixture(sizes=(2, 1), weights=(2, 1), epoch_size=100)
    segment = SamplePlan(order=mixture, tail="pad").segment(world_size=4, batch_size=60)
    by_looking = [
        Place(batch.number, rank, slot, bool(batch.is_real[slot]))
        for rank in range(4)
        for batch in segment.batches(rank)
        for slot in np.flatnonzero(batch.indices == 1).tolist()
    ]
    assert segment.find(1) == sorted(by_looking)
    assert len({place.is_real for place in by_looking}) == 2


@given(
    n=st.sampled_from([1, 2, 60, 4096, 4097, 70_000, 2**32 + 5]),
    numbers=st.lists(st.integers(0, 9), max_size=60),
    key=st.integers(0, 2**128 - 1),
    data=st.data(),
)
def test_permutations_of_many_numbers_are_those_of_each(
    n: int, numbers: list[int], key: int, data: st.DataObject
) -> None:
    values = data.draw(
        st.lists(st.integers(0, n - 1), min_size=len(numbers), max_size=len(numbers))
    )
    apart = [
        int(Permutation(n, key, number).forward(np.array([value]))[0])
        for number, value in zip(numbers, values, strict=True)
    ]
    places = np.array(numbers, dtype=np.int64)
    together = permute_numbered(n, key, places, np.array(values, dtype=np.int64))
    assert together.tolist() == apart
    back = permute_numbered(n, key, places, together, inverse=True)
    assert back.tolist() == values


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 4), st.integers(0, 30))
def test_drawn_rows_are_found_wherever_they_come(
    num_drawn: int, chunk_size: int, preload: int, index: int
) -> None:
    order = DrawnOrder(num_samples=31, num_drawn=num_drawn, chunk_size=chunk_size, preload=preload)
    everything = order.indices(0, range(num_drawn))
    assert order.at(0).find(index).tolist() == np.flatnonzero(everything == index).tolist()
