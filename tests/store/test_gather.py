"""Rows copied out of arrays, and back into them, are those that numpy's indexing gives."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given
from numpy.typing import NDArray

from examples import few_examples
from feedline.store.gather import FlatRows, RowSource, scatter

TYPE_NAMES = ("bool", "int8", "uint16", "int32", "uint64", "float16", "float64", "complex128")
LAYOUTS = ("plain", "strided", "reversed", "fortran", "unaligned", "sliced", "repeated", "frozen")


def numbered(type_name: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """An array of any bits that are values of the type."""
    generator = np.random.default_rng(seed)
    if type_name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    return generator.integers(0, 100, shape).astype(type_name)


def laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """The same values at other places in memory."""
    if layout == "strided":
        spread = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
        spread[::2] = array
        return spread[::2]
    if layout == "reversed":
        return array[::-1].copy()[::-1]
    if layout == "fortran":
        return np.asfortranarray(array)
    if layout == "unaligned":
        held = np.zeros(array.nbytes + 1, np.uint8)
        moved: NDArray[Any] = np.ndarray(array.shape, array.dtype, held.data, offset=1)
        moved[...] = array
        return moved
    if layout == "sliced":
        # The columns of a wider table, as tensors that share a storage have them.
        wide = np.zeros((len(array), *(size + 2 for size in array.shape[1:])), array.dtype)
        inside = (slice(None), *(slice(1, 1 + size) for size in array.shape[1:]))
        wide[inside] = array
        return wide[inside]
    if layout == "repeated":
        return np.broadcast_to(array[:1], array.shape)
    if layout == "frozen":
        array.flags.writeable = False
    return array


@st.composite
def sources(draw: st.DrawFn) -> NDArray[Any]:
    type_name = draw(st.sampled_from(TYPE_NAMES))
    inner = draw(st.lists(st.integers(0, 4), max_size=3))
    shape = (draw(st.integers(1, 9)), *inner)
    array = numbered(type_name, shape, draw(st.integers(0, 99)))
    return laid_out(array, draw(st.sampled_from(LAYOUTS)))


def some_rows(draw: Any, source: NDArray[Any]) -> NDArray[np.int64]:
    """Any rows, in any order, also repeated, also none."""
    listed = draw(st.lists(st.integers(0, len(source) - 1), max_size=20))
    return np.array(listed, dtype=np.int64)


def blank(shape: tuple[int, ...], dtype: Any, is_unaligned: bool = False) -> NDArray[Any]:
    """A C-contiguous array of bits that no source has."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    held = np.full(size + 1, 0xAB, np.uint8)
    made: NDArray[Any] = np.ndarray(shape, dtype, held.data, offset=int(is_unaligned))
    return made


@few_examples(3)
@given(sources(), st.data())
def test_gathered_rows_are_those_of_numpy(source: NDArray[Any], data: st.DataObject) -> None:
    rows = some_rows(data.draw, source)
    before = source.copy()
    out = blank((len(rows), *source.shape[1:]), source.dtype, data.draw(st.booleans()))
    RowSource(source).gather(rows, out)
    assert np.array_equal(out, source[rows])
    assert np.array_equal(source, before)


@given(sources(), st.data())
def test_one_source_serves_many_times(source: NDArray[Any], data: st.DataObject) -> None:
    prepared = RowSource(source)
    for _ in range(3):
        rows = some_rows(data.draw, source)
        out = blank((len(rows), *source.shape[1:]), source.dtype)
        prepared.gather(rows, out)
        assert np.array_equal(out, source[rows])


@given(sources(), st.data())
def test_gathering_fills_a_part_of_a_larger_array_and_nothing_else(
    source: NDArray[Any], data: st.DataObject
) -> None:
    rows = some_rows(data.draw, source)
    whole = blank((len(rows) + 4, *source.shape[1:]), source.dtype)
    before = whole.tobytes()
    RowSource(source).gather(rows, whole[2:-2])
    assert np.array_equal(whole[2:-2], source[rows])
    edge = 2 * (whole[:1].nbytes)
    after = whole.tobytes()
    assert (after[:edge], after[len(after) - edge :]) == (
        before[:edge],
        before[len(after) - edge :],
    )


def test_many_rows_of_a_source_with_gaps_come_in_parts() -> None:
    wide = np.arange(3000 * 200).reshape(3000, 200)
    source = wide[:, 50:150]
    rows = np.random.default_rng(0).integers(0, 3000, 5000)
    out = np.empty((5000, 100), np.int64)
    RowSource(source).gather(rows, out)
    assert np.array_equal(out, source[rows])


def test_rows_longer_than_a_part_come_one_by_one() -> None:
    wide = np.arange(4 * 50_000).reshape(4, 50_000)
    source = wide[:, :40_000]
    out = np.empty((3, 40_000), np.int64)
    RowSource(source).gather(np.array([3, 0, 3]), out)
    assert np.array_equal(out, source[[3, 0, 3]])


def test_a_source_without_rows_gives_none() -> None:
    out = np.empty((0, 3), np.int64)
    RowSource(np.empty((0, 3), np.int64)).gather(np.empty(0, np.int64), out)
    assert out.shape == (0, 3)


def test_a_source_outlives_the_names_of_its_array() -> None:
    sources = [RowSource(np.full((50, 7), number)) for number in range(200)]
    for number, source in enumerate(sources):
        out = np.empty((50, 7), np.int64)
        source.gather(np.arange(50), out)
        assert np.all(out == number)


@few_examples(2)
@given(
    st.sampled_from(TYPE_NAMES),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 99),
    st.booleans(),
)
def test_scattered_rows_are_those_of_numpy(
    type_name: str, inner: list[int], num_rows: int, num_more: int, seed: int, is_unaligned: bool
) -> None:
    source = numbered(type_name, (num_rows, *inner), seed)
    places = np.random.default_rng(seed).permutation(num_rows + num_more)[:num_rows]
    out = blank((num_rows + num_more, *inner), type_name, is_unaligned)
    out[...] = 0
    expected = np.array(out)
    expected[places] = source
    scatter(source, out, places)
    assert np.array_equal(out, expected)


@given(sources(), st.data())
def test_scattering_undoes_gathering(source: NDArray[Any], data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(source)))), dtype=np.int64)
    taken = np.empty(source.shape, source.dtype)
    back = np.empty(source.shape, source.dtype)
    RowSource(source).gather(order, taken)
    scatter(taken, back, order)
    assert np.array_equal(back, source)


@given(data=st.data())
def test_rows_of_several_arrays_are_copied_as_if_they_were_one(data: st.DataObject) -> None:
    type_name = data.draw(st.sampled_from(TYPE_NAMES))
    inner = data.draw(st.sampled_from([(), (3,), (128,), (16, 70)]))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    numbers = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    rows = [data.draw(st.integers(0, lengths[number] - 1)) for number in numbers]
    arrays = [numbered(type_name, (n, *inner), n) for n in lengths]
    # Whether they can be copied at once depends on where they lie, so all is drawn before that.
    flat = FlatRows.of([RowSource(array) for array in arrays])
    if flat is None:
        return
    out = np.zeros((len(rows), *inner), type_name)
    flat.take(np.array(numbers, np.int64), np.array(rows, np.int64), out)
    expected = [arrays[number][row] for number, row in zip(numbers, rows, strict=True)]
    assert np.array_equal(out, np.array(expected, type_name).reshape(out.shape))


def test_arrays_at_the_same_place_of_a_page_are_copied_at_once() -> None:
    # As mapped files are: whatever the rows' size, pieces of it fit all of them.
    for row_bytes in (512, 1536, 4096, 150528):
        memory = np.zeros(3 * 2**20, np.uint8)
        start = -memory.ctypes.data % 4096
        count = 2**19 // row_bytes
        parts = [
            memory[first : first + count * row_bytes].reshape(count, row_bytes)
            for first in (start + 128, start + 2**20 + 128)
        ]
        for number, part in enumerate(parts):
            part[...] = np.arange(count, dtype=np.uint8)[:, None] + 100 * number
        flat = FlatRows.of([RowSource(part) for part in parts])
        assert flat is not None
        out = np.empty((2, row_bytes), np.uint8)
        flat.take(np.array([1, 0]), np.array([count - 1, 0]), out)
        assert np.array_equal(out, np.stack([parts[1][-1], parts[0][0]]))


def test_arrays_that_share_no_fair_piece_are_not_copied_at_once() -> None:
    memory = np.zeros(2**16, np.uint8)
    parts = [memory[first : first + 4096].reshape(2, 2048) for first in (0, 8193)]
    assert FlatRows.of([RowSource(part) for part in parts]) is None
    strided = memory[: 2 * 4096].reshape(2, 4096)[:, :2048]
    assert FlatRows.of([RowSource(strided)]) is None
    assert FlatRows.of([RowSource(np.zeros((4, 0)))]) is None
