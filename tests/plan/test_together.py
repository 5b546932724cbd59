"""Permutations whose values are computed together: columns of networks, and stacked tables."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feedline.plan import Mixture, SamplePlan
from feedline.plan.feistel import FeistelNetwork
from feedline.plan.feistel_columns import FeistelColumns
from feedline.plan.permutation import Permutation
from feedline.plan.stacked_tables import StackedTables

# Small words multiply and add by other rules in older versions of numpy.
pytestmark = pytest.mark.matrix
KEY = 77

columns = st.tuples(
    st.one_of(st.integers(4097, 2**32), st.integers(131_060, 131_080)),
    st.integers(0, 90),
    st.integers(0, 40),
)


@given(st.lists(columns, min_size=1, max_size=9), st.integers(1, 100))
def test_columns_say_what_their_permutations_say(
    asked: list[tuple[int, int, int]], step: int
) -> None:
    sizes, starts, counts = np.array(asked).T
    assume(counts.any())
    found = FeistelColumns(sizes, KEY, range(5, 5 + len(asked))).strides(starts, step, counts)
    for number, (n, start, count) in enumerate(asked):
        positions = np.arange(count) * step + start
        expected = FeistelNetwork(n, KEY, 5 + number).forward(positions)
        assert found[:count, number].tolist() == expected.tolist()


@pytest.mark.parametrize("n", [4200, 131_072, 10**6 - 9])
def test_columns_scale_hashes_exactly(n: int) -> None:
    # Without the lowest bits of hashes, some of so many values would go elsewhere.
    num_columns, num_rows = 300, 400
    step = n // num_rows
    starts, counts = np.arange(num_columns) % step, np.full(num_columns, num_rows)
    found = FeistelColumns(np.full(num_columns, n), KEY, range(num_columns)).strides(
        starts, step, counts
    )
    for number, start in enumerate(starts.tolist()):
        expected = FeistelNetwork(n, KEY, number).forward(np.arange(num_rows) * step + start)
        assert np.array_equal(found[:num_rows, number], expected)


@given(st.integers(4097, 2**30), st.integers(1, 16), st.integers(1, 40_000))
@settings(max_examples=40)
def test_stacked_tables_say_what_their_permutations_say(n: int, number: int, count: int) -> None:
    stacked = StackedTables.of([Permutation(n, KEY, own) for own in range(number)])
    assert stacked is not None
    which, values = np.arange(count) * 7 % 11 % number, np.arange(count) * 999_983 % n
    found = stacked.forward(which, values.astype(np.uint32))
    for own in range(number):
        expected = Permutation(n, KEY, own).forward(values[which == own])
        assert np.array_equal(found[which == own], expected)


@pytest.mark.parametrize("sizes", [[5000, 5001], [4096, 4096], [2**31, 2**31]])
def test_tables_that_differ_or_are_large_are_not_stacked(sizes: list[int]) -> None:
    assert StackedTables.of([Permutation(n, KEY) for n in sizes]) is None


@pytest.mark.parametrize("sizes", [[10**6] * 5, [10**7, 0, 10**7], [10**6, 2 * 10**6], [5000] * 4])
@pytest.mark.parametrize("world_size", [8, 300])
def test_ranks_get_what_stands_at_their_positions(sizes: list[int], world_size: int) -> None:
    # Long enough that tables are stacked, and that sources begin further passes.
    weights = [float(min(size, 1) * (number + 1)) for number, size in enumerate(sizes)]
    order = Mixture(sizes=sizes, weights=weights, epoch_size=60_000_000)
    segment = SamplePlan(order=order).segment(world_size=world_size, batch_size=32)
    rank, num_batches = world_size // 3, min(segment.num_batches, 8 * 700)
    for start in range(0, num_batches, 700):
        stop = min(start + 700, num_batches)
        entries = np.arange(start * 32, stop * 32)
        expected = order.indices(0, entries * world_size + rank)
        assert np.array_equal(segment.block(rank, start, stop).indices, expected)
