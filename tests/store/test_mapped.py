"""Mapped files: read-only, and no array reaches outside of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_data import little_memory, written
from feedline.errors import (
    DamagedDataError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store.mapped import map_file, view

INT32 = np.dtype("<i4")
NUMBERS = np.arange(100, dtype=INT32)


def view_of_numbers(**claims: Any) -> np.ndarray:
    wanted = {"path": Path("f.bin"), "what": "a", "dtype": INT32, "shape": (100,), "offset": 0}
    return view(NUMBERS.view(np.uint8), **(wanted | claims))


def test_a_mapped_file_has_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "f", b"some bytes")
    assert map_file(path).tobytes() == b"some bytes"


def test_an_empty_file_gives_an_empty_array(tmp_path: Path) -> None:
    assert map_file(written(tmp_path / "f", b"")).shape == (0,)


def test_nothing_can_be_written_through_a_map(tmp_path: Path) -> None:
    path = written(tmp_path / "f", bytes(8))
    mapped = map_file(path)
    array = view(mapped, path=path, what="a", dtype=INT32, shape=(2,), offset=0)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_a_view_outlives_the_name_of_its_file_and_of_the_map(tmp_path: Path) -> None:
    path = written(tmp_path / "f", NUMBERS.tobytes())
    array = view(map_file(path), path=path, what="a", dtype=INT32, shape=(100,), offset=0)
    path.unlink()
    assert np.array_equal(array, NUMBERS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.bin: does not exist"):
        map_file(tmp_path / "gone.bin")


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeDataError, match="regular file"):
        map_file(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_what_is_not_a_regular_file_is_refused(path: str) -> None:
    with pytest.raises(UnsafeDataError, match="regular file"):
        map_file(Path(path))


def test_an_impossible_name_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="cannot be mapped"):
        map_file(Path("a\0b"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_store_error(tmp_path: Path) -> None:
    path = written(tmp_path / "f", b"x")
    path.chmod(0)
    with pytest.raises(StoreError, match="cannot be mapped"):
        map_file(path)


def test_a_view_may_be_transposed_and_unaligned() -> None:
    assert np.array_equal(
        view_of_numbers(shape=(10, 10), strides=(4, 40)), NUMBERS.reshape(10, 10).T
    )
    assert view_of_numbers(shape=(99,), offset=1)[0] == 1 << 24


def test_a_view_that_is_too_long_says_how_long_the_file_is() -> None:
    with pytest.raises(
        DamagedDataError, match=r"f\.bin: 'a' needs bytes \[64, 8000064\) but the file has 400; it"
    ):
        view_of_numbers(shape=(1000, 2000), offset=64)


@pytest.mark.parametrize(
    "claims",
    [
        {"shape": (101,)},
        {"shape": (100,), "offset": 1},
        {"shape": (0,), "offset": 401},
        {"shape": (2**60,)},
        {"shape": (2**62, 2**62)},
        {"shape": (2**62,) * 32},
        {"shape": (0, 2**62, 2**62)},
        {"shape": (2**70,)},
        {"shape": (10**5000,)},
        {"shape": (-1,)},
        {"shape": (-(10**5000),)},
        {"shape": (-10, -10)},
        {"shape": (True,)},
        {"shape": (2.0,)},
        {"shape": ("2",)},
        {"shape": (1,) * 33},
        {"offset": -4},
        {"offset": 2**63},
        {"offset": 4.0},
        {"strides": (-4,), "offset": 396},
        {"strides": (8,)},
        {"strides": (2**62,)},
        {"strides": (4, 4)},
        {"strides": ()},
        {"shape": (2**40, 2**40), "strides": (0, 0)},
        {"shape": (1, 101), "strides": (0, 0)},
    ],
)
def test_claims_that_reach_out_of_the_file_are_refused_at_no_cost(claims: dict[str, Any]) -> None:
    with little_memory(), pytest.raises(DamagedDataError, match=r"f\.bin: ") as caught:
        view_of_numbers(**claims)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("shape", [(0,), (0, 7), (7, 0), (0, 10**6)])
def test_views_without_values_are_fine_anywhere_in_the_file(shape: tuple[int, ...]) -> None:
    assert view_of_numbers(shape=shape, offset=400).shape == shape


def test_a_view_of_objects_is_refused() -> None:
    with pytest.raises(UnsafeDataError, match="numbers only"):
        view_of_numbers(dtype=np.dtype(object), shape=(1,))


@given(
    shape=st.lists(st.integers(0, 12), max_size=3),
    offset=st.integers(0, 420),
    data=st.data(),
)
def test_a_view_is_given_exactly_when_every_value_lies_in_the_file(
    shape: list[int], offset: int, data: st.DataObject
) -> None:
    axes = len(shape)
    strides = data.draw(st.lists(st.integers(0, 60), min_size=axes, max_size=axes))
    places = offset + sum(
        np.asarray(index) * stride for index, stride in zip(np.indices(shape), strides, strict=True)
    )
    last = int(np.max(places)) + 4 if np.size(places) else offset
    sample = 4 * int(np.prod(shape[1:])) if 0 not in shape else 0
    if last > 400 or sample > 400:
        with pytest.raises(DamagedDataError):
            view_of_numbers(shape=shape, offset=offset, strides=strides)
        return
    found = view_of_numbers(shape=shape, offset=offset, strides=strides)
    raw = NUMBERS.tobytes()
    expected = [int.from_bytes(raw[p : p + 4], "little") for p in np.ravel(places)]
    assert found.reshape(-1).tolist() == expected[: found.size]
