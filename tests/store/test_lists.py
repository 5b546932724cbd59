"""Lists, bytes and text: gathered from anywhere, in any order, as they were written."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store import Column, Lists
from feedline.store.lists import FlatLists, ListSource
from feedline.store.slices import copy_slices

# Around the widths of the pieces that strings are copied in.
LENGTHS = st.sampled_from([0, 1, 2, 15, 16, 17, 127, 128, 129, 1000, 1024, 8191, 8192, 20_000])


@given(st.lists(LENGTHS, min_size=1, max_size=20), st.data())
def test_strings_of_any_lengths_are_copied_in_any_order(
    lengths: list[int], data: st.DataObject
) -> None:
    rng = np.random.default_rng(len(lengths))
    strings = [rng.bytes(length) for length in lengths]
    lists = Lists.of(strings)
    rows = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=30))
    taken = lists.take(np.array(rows, dtype=np.int64))
    assert taken.tolist() == [strings[row] for row in rows]


@given(st.lists(st.lists(st.text(max_size=5), max_size=6), min_size=1, max_size=4), st.data())
def test_lists_of_several_chunks_are_gathered_as_those_of_one(
    chunks: list[list[str]], data: st.DataObject
) -> None:
    empty = Lists.none_of(Column("", "uint8", kind="text"))
    sources = [ListSource.of(Lists.of(chunk) if chunk else empty) for chunk in chunks]
    places = [(number, row) for number, chunk in enumerate(chunks) for row in range(len(chunk))]
    chosen = data.draw(st.lists(st.sampled_from(places), max_size=10)) if places else []
    numbers, rows = (np.array([p[part] for p in chosen], dtype=np.int64) for part in (0, 1))
    found = FlatLists(sources).gather(numbers, rows)
    assert found.tolist() == [chunks[number][row] for number, row in chosen]


@given(
    st.integers(0, 5).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=6)
    )
)
def test_strings_of_one_length_keep_every_byte_zeros_included(strings: list[bytes]) -> None:
    lists = Lists.of([b"before", *strings])[1:]
    assert lists.tolist() == strings
    assert list(lists) == strings
    every_second = Lists(np.repeat(lists.values, 2)[::2], lists.offsets, "bytes")
    assert every_second.tolist() == strings


def test_lists_are_gathered_into_given_memory() -> None:
    taken: list[np.ndarray] = []

    def take(num_bytes: int) -> np.ndarray:
        taken.append(np.zeros(num_bytes, np.uint8))
        return taken[-1]

    flat = FlatLists([ListSource.of(Lists.of([[1, 2], [3]], dtype=np.int32))])
    found = flat.gather(np.array([0, 0]), np.array([1, 0]), take)
    assert found.tolist() == [[3], [1, 2]]
    assert taken[0].view(np.int32).tolist() == [3, 1, 2]
    assert np.shares_memory(found.values, taken[0])
    assert flat.gather(np.array([0]), np.array([1])).tolist() == [[3]]
    assert len(taken) == 1


@pytest.mark.parametrize("lengths", [[100, 50], [75, 75]])
def test_nothing_is_read_or_written_beside_the_strings(lengths: list[int]) -> None:
    memory = np.arange(5000, dtype=np.int64).view(np.uint8)
    out = np.full(300, 0xAB, np.uint8)
    address = memory.__array_interface__["data"][0]
    copy_slices(np.array([address + 8, address + 800]), np.array(lengths), out[100:250])
    assert (out[:100] == 0xAB).all()
    assert (out[250:] == 0xAB).all()
    first, second = lengths
    strings = memory[8 : 8 + first].tobytes(), memory[800 : 800 + second].tobytes()
    assert out[100:250].tobytes() == b"".join(strings)


def test_a_slice_of_lists_begins_at_zero() -> None:
    lists = Lists.of([[1], [2, 3], [], [4]], dtype=np.int32)
    part = lists[1:3]
    assert part.offsets.tolist() == [0, 2, 2]
    assert part.values.tolist() == [2, 3]
    assert lists[::-1].tolist() == [[4], [], [2, 3], [1]]
    assert len(lists[3:1]) == 0


def test_lists_of_arrays_keep_their_shape() -> None:
    lists = Lists.of([np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)])
    assert lists[0].shape == (2, 3)
    assert lists.take(np.array([1, 0])).values.shape == (3, 3)
    values, is_there = lists.padded(fill=7)
    assert values.shape == (2, 2, 3)
    assert values[1, 1].tolist() == [7, 7, 7]
    assert is_there.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([0], [9]), ([9], [0]), ([-1], [1]), ([0], [-1]), ([2**62], [2**62]), ([8], [1])],
)
def test_a_value_outside_of_its_chunk_is_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(DamagedDataError, match="outside of its chunk"):
        ListSource(np.zeros(8, np.uint8), np.array(starts), np.array(lengths))


def test_tables_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="two flat lists of one length"):
        ListSource(np.zeros(8, np.uint8), np.array([0, 1]), np.array([1]))
    with pytest.raises(DamagedDataError, match="multiple of 4"):
        ListSource(np.zeros(8, np.uint8), np.array([0]), np.array([6]), type_name="int32")


def test_text_that_is_not_utf8_is_refused_when_it_is_read() -> None:
    lists = Lists(np.array([0xFF], np.uint8), np.array([0, 1]), "text")
    with pytest.raises(DamagedDataError, match="not UTF-8"):
        _ = lists[0]


def test_bytes_and_text_have_no_other_type() -> None:
    with pytest.raises(InvalidValueError, match="must be uint8"):
        Column("x", "int32", kind="text")
    with pytest.raises(InvalidValueError, match="kind="):
        Column("x", "int32", kind="ragged")
