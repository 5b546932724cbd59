"""Runs hold all entries and share no chunk, and runs are copied as by a plain loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

from feedline.store.runs import copy_runs, runs_of

TYPES = [
    *("?", "i1", "u1", "i2", "u2", "f2"),
    *("i4", "u4", "f4", "i8", "u8", "f8", "c8"),
]

Intervals = list[tuple[int, int]]
Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


def intervals(limit: int) -> st.SearchStrategy[Intervals]:
    """Intervals below a limit, in any order; they may be empty, overlap, and come twice."""
    pair = st.tuples(st.integers(0, limit), st.integers(0, limit))
    return st.lists(pair.map(lambda ends: (min(ends), max(ends))), max_size=30)


def short_intervals(limit: int) -> st.SearchStrategy[Intervals]:
    pair = st.tuples(st.integers(0, limit - 8), st.integers(0, 8))
    return st.lists(pair.map(lambda cut: (cut[0], cut[0] + cut[1])), max_size=40)


def edges_of(cuts: Intervals) -> Pair:
    starts, ends = np.array(cuts, dtype=np.int64).reshape(-1, 2).T
    return starts.copy(), ends.copy()


def entries_of(cuts: Intervals) -> set[int]:
    return {entry for start, end in cuts for entry in range(start, end)}


@given(short_intervals(400) | intervals(400), st.integers(1, 60))
def test_runs_hold_every_entry_and_no_chunk_is_in_two(cuts: Intervals, chunk_size: int) -> None:
    runs = runs_of(*edges_of(cuts), chunk_size)
    found = [(start, end) for start, end, _ in runs]
    wanted = entries_of(cuts)
    assert wanted <= entries_of(found)
    assert all(start < end for start, end in found)
    assert found == sorted(found)
    chunks = [set(range(start // chunk_size, -(-end // chunk_size))) for start, end in found]
    assert sum(map(len, chunks)) == len(set().union(*chunks))
    # Nothing is decoded that lies in no chunk of any entry, nor before the first or after the last.
    assert set().union(*chunks) == {entry // chunk_size for entry in wanted}
    for start, end in found:
        assert start in wanted
        assert end - 1 in wanted


@given(short_intervals(400), st.integers(1, 60))
def test_the_places_of_entries_are_where_runs_lie_in_the_buffer(
    cuts: Intervals, chunk_size: int
) -> None:
    runs = runs_of(*edges_of(cuts), chunk_size)
    assert runs.num_entries == sum(end - start for start, end, _ in runs)
    buffer = np.full(runs.num_entries, -1)
    for start, end, offset in runs:
        buffer[offset : offset + end - start] = np.arange(start, end)
    entries = np.array(sorted(entries_of(cuts)), dtype=np.int64)
    assert (buffer >= 0).all()
    if len(entries):
        np.testing.assert_array_equal(buffer[runs.places_of(entries)], entries)


@pytest.fixture(params=["compiled", "plain"], scope="module")
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With scipy's loop over rows, and as if scipy had none."""
    if request.param == "compiled" and not hasattr(_sparsetools, "csr_row_index"):
        pytest.skip("this scipy has no such loop")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            # None in this table makes an import fail.
            patch.setitem(sys.modules, "scipy.sparse._sparsetools", None)
        yield


def values_of(kind: str, num_entries: int, seed: int) -> NDArray[np.generic]:
    """Any bits of a type, so that a conversion on the way would show."""
    rng = np.random.default_rng(seed)
    if kind == "?":
        return rng.random(num_entries) < 0.5
    return rng.integers(0, 256, num_entries * np.dtype(kind).itemsize, dtype=np.uint8).view(kind)


def check_copy(cuts: Intervals, first: str, second: str, num_entries: int) -> None:
    sources = values_of(first, num_entries, 1), values_of(second, num_entries, 2)
    places = [entry for start, end in cuts for entry in range(start, end)]
    outs = np.zeros(len(places), first), np.zeros(len(places), second)
    copy_runs(*edges_of(cuts), sources, outs)
    for source, out in zip(sources, outs, strict=True):
        expected = [source[place : place + 1].tobytes() for place in places]
        assert out.tobytes() == b"".join(expected)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("second", TYPES)
@pytest.mark.parametrize("first", TYPES)
def test_runs_of_any_two_types_are_copied_bit_by_bit(first: str, second: str) -> None:
    rng = np.random.default_rng(0)
    for num_runs in (0, 1, 17):
        starts = rng.integers(0, 90, num_runs)
        cuts = [(start, start + size) for start, size in zip(starts, range(10), strict=False)]
        check_copy(cuts, first, second, num_entries=100)


@pytest.mark.usefixtures("_way")
@given(intervals(50), st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_runs_in_any_order_are_copied_as_by_a_plain_loop(
    cuts: Intervals, first: str, second: str
) -> None:
    check_copy(cuts, first, second, num_entries=50)


@pytest.mark.usefixtures("_way")
def test_runs_of_no_entries_at_all_are_copied() -> None:
    check_copy([(0, 0), (0, 0)], "f4", "i4", num_entries=0)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(("first", "second"), [("f4", "i4"), ("f8", "i8"), ("u2", "i4")])
def test_neither_sources_nor_what_lies_beside_the_runs_changes(first: str, second: str) -> None:
    sources = values_of(first, 50, 1), values_of(second, 50, 2)
    before = [source.tobytes() for source in sources]
    memory = values_of(first, 30, 3), values_of(second, 30, 4)
    beside = [np.delete(array, range(10, 18)).tobytes() for array in memory]
    outs = memory[0][10:18], memory[1][10:18]
    copy_runs(*edges_of([(40, 45), (0, 3)]), sources, outs)
    assert [source.tobytes() for source in sources] == before
    assert [np.delete(array, range(10, 18)).tobytes() for array in memory] == beside
    for source, out in zip(sources, outs, strict=True):
        assert out.tobytes() == np.concatenate([source[40:45], source[:3]]).tobytes()
