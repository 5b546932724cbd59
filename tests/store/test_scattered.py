"""Rows of one size that lie anywhere in memory."""

from __future__ import annotations

import numpy as np
import pytest

from feedline.errors import DamagedDataError
from feedline.store import slices
from feedline.store.chunk import OpenChunk
from feedline.store.scattered import FlatScattered, ScatteredRows
from feedline.store.slices import copy_rows


@pytest.fixture
def memory() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)


def rows_in(memory: np.ndarray, seed: int, size: int = 7) -> tuple[ScatteredRows, np.ndarray]:
    starts = np.random.default_rng(seed).integers(0, 9_000, size)
    expected = np.stack([memory[start : start + 24].view("<i4").reshape(2, 3) for start in starts])
    return ScatteredRows(memory, starts, type_name="int32", shape=(2, 3)), expected


def test_rows_are_what_lies_at_their_starts(memory: np.ndarray) -> None:
    rows, expected = rows_in(memory, 1)
    chosen = np.array([6, 0, 0, 3])
    out = np.empty((4, 2, 3), np.int32)
    rows.gather(chosen, out)
    np.testing.assert_array_equal(out, expected[chosen])


def test_rows_of_several_chunks_are_copied_together(memory: np.ndarray) -> None:
    other = memory[::-1].copy()
    (first, one), (second, two) = rows_in(memory, 1), rows_in(other, 2, 9)
    out = np.empty((5, 2, 3), np.int32)
    numbers, rows = np.array([0, 1, 1, 0, 1]), np.array([6, 8, 0, 0, 3])
    FlatScattered([first, second]).take(numbers, rows, out)
    expected = [(one, two)[number][row] for number, row in zip(numbers, rows, strict=True)]
    np.testing.assert_array_equal(out, expected)


def test_values_without_bytes_can_be_copied(memory: np.ndarray) -> None:
    rows = ScatteredRows(memory, np.array([3, 10_000]), type_name="int32", shape=(0, 3))
    out = np.empty((2, 0, 3), np.int32)
    rows.gather(np.array([0, 1]), out)
    assert len(rows) == 2


@pytest.mark.parametrize("start", [-1, 9_977, 2**62])
def test_a_row_outside_of_its_memory_is_refused(memory: np.ndarray, start: int) -> None:
    with pytest.raises(DamagedDataError, match="outside of its chunk"):
        ScatteredRows(memory, np.array([start]), type_name="int32", shape=(2, 3))


def test_a_chunk_knows_the_column_of_scattered_rows(memory: np.ndarray, tmp_path) -> None:  # type: ignore[no-untyped-def]
    chunk = OpenChunk(tmp_path, {"x": rows_in(memory, 1)[0]})
    assert str(chunk.columns["x"]) == "int32[2, 3]"
    assert chunk.num_samples == 7


@pytest.mark.parametrize("row_bytes", [1, 24, 255, 256, 257, 499, 1000, 2000, 4096])
@pytest.mark.parametrize("num_rows", [1, 3, 700])
def test_rows_of_any_width_are_copied_and_nothing_beside_them(
    row_bytes: int, num_rows: int, memory: np.ndarray
) -> None:
    starts = np.random.default_rng(num_rows).integers(0, memory.size - row_bytes + 1, num_rows)
    around = np.full((num_rows + 2, row_bytes), 0xAB, np.uint8)
    copy_rows(memory.__array_interface__["data"][0] + starts, row_bytes, around[1:-1])
    expected = np.stack([memory[start : start + row_bytes] for start in starts])
    np.testing.assert_array_equal(around[1:-1], expected)
    assert (around[[0, -1]] == 0xAB).all()


def test_each_copy_has_so_many_items_that_other_threads_run() -> None:
    # numpy keeps the lock of the interpreter for 500 or fewer.
    assert all(slices._BYTES_AT_ONCE // width > 500 for width in slices._WIDTHS.tolist())
    for row_bytes in range(1, 5000):
        assert slices._BYTES_AT_ONCE // (slices._width_of(row_bytes) or slices._MOST_WIDE) > 500
