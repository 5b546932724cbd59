"""Token files: every window is where the definition says, and nothing is read beyond the end."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_data import written
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    UnsafeDataError,
)
from feedline.store.columns import Column
from feedline.store.tokens import TokenStore


def bin_file(path: Path, num_tokens: int, dtype: str = "<u2") -> Path:
    (np.arange(num_tokens) * 7 % 60_000).astype(dtype).tofile(path)
    return path


@given(
    num_tokens=st.integers(1, 200),
    window=st.integers(1, 40),
    stride=st.none() | st.integers(1, 300),
    chunk_windows=st.integers(1, 20),
    ending=st.sampled_from([".bin", ".npy"]),
)
def test_sample_i_is_the_window_at_i_strides(
    tmp_path_factory: pytest.TempPathFactory,
    num_tokens: int,
    window: int,
    stride: int | None,
    chunk_windows: int,
    ending: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"tokens{ending}"
    tokens = (np.arange(num_tokens) * 7).astype("<u2")
    tokens.tofile(path) if ending == ".bin" else np.save(path, tokens)
    window = min(window, num_tokens)
    store = TokenStore(path, window, stride=stride, chunk_windows=chunk_windows)
    step = stride or window
    expected = [tokens[i : i + window] for i in range(0, num_tokens - window + 1, step)]
    assert store.num_samples == len(expected)
    sizes = store.chunk_sizes
    assert sizes.sum() == store.num_samples
    assert (sizes[:-1] == chunk_windows).all()
    assert 1 <= sizes[-1] <= chunk_windows
    found = [store.read(c, np.arange(size))["tokens"] for c, size in enumerate(sizes)]
    assert np.array_equal(np.concatenate(found), expected)


def test_the_one_column_is_tokens(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8)
    assert store.columns == {"tokens": Column("tokens", "uint16", (8,))}


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_tokens_of_every_integer_type_are_read(tmp_path: Path, dtype: str) -> None:
    tokens = np.arange(100).astype(dtype)
    tokens.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", tokens)
    for store in (
        TokenStore(tmp_path / "t.bin", 10, dtype=dtype),
        TokenStore(tmp_path / "t.npy", 10),
        TokenStore(tmp_path / "t.npy", 10, dtype=dtype),
    ):
        found = store.read(0, [9, 0])["tokens"]
        assert found.dtype == dtype
        assert found.tolist() == [list(range(90, 100)), list(range(10))]


def test_rows_are_written_to_out(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8)
    out = {"tokens": np.zeros((3, 8), np.uint16)}
    assert store.read(0, np.array([5, 5, 1]), out)["tokens"] is out["tokens"]
    assert np.array_equal(out["tokens"], store.read(0, [5, 5, 1])["tokens"])


@pytest.mark.parametrize("rows", [[-1], [4], [0, 2**40], [0.5], [[0]], [True], "a"])
def test_rows_outside_of_the_chunk_are_refused(tmp_path: Path, rows: Any) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8, chunk_windows=4)
    with pytest.raises(InvalidValueError, match="rows"):
        store.read(0, rows)


@pytest.mark.parametrize("chunk", [-1, 3, 0.5])
def test_chunks_outside_of_the_store_are_refused(tmp_path: Path, chunk: Any) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8, chunk_windows=5)
    with pytest.raises(InvalidValueError, match=r"chunk=.* must be .*\[0, 2\]"):
        store.read(chunk, [0])


@pytest.mark.parametrize(
    "out",
    [
        {},
        {"tokens": np.zeros((2, 8), np.uint16)},
        {"tokens": np.zeros((1, 8), np.int64)},
        {"tokens": np.zeros((1, 16), np.uint16)[:, ::2]},
    ],
)
def test_an_out_that_does_not_fit_is_refused(tmp_path: Path, out: Any) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8)
    with pytest.raises(InvalidValueError, match="out"):
        store.read(0, [0], out)


def test_a_row_is_described_by_its_tokens(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 5000), 1024, chunk_windows=1)
    assert store.describe_row(1, 0) == f"file {tmp_path / 't.bin'}, tokens 1024 to 2048"


def test_the_fingerprint_tells_tokens_and_windows_apart(tmp_path: Path) -> None:
    path = bin_file(tmp_path / "t.bin", 400)
    other = bin_file(tmp_path / "other.bin", 402)
    same = written(tmp_path / "same.bin", path.read_bytes())
    first = TokenStore(path, 8).fingerprint
    assert TokenStore(same, 8, stride=8, chunk_windows=3).fingerprint == first
    different = {
        TokenStore(other, 8).fingerprint,
        TokenStore(path, 9).fingerprint,
        TokenStore(path, 8, stride=9).fingerprint,
        TokenStore(path, 8, dtype="int16").fingerprint,
    }
    assert len(different | {first}) == 5


def test_a_closed_store_opens_again(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8)
    store.prefetch(0)
    before = store.read(0, [3])["tokens"]
    store.close()
    assert np.array_equal(store.read(0, [3])["tokens"], before)


def test_a_file_that_changed_while_closed_is_refused(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100), 8)
    store.close()
    bin_file(tmp_path / "t.bin", 90)
    with pytest.raises(DamagedDataError, match="has 90 uint16 tokens but had 100"):
        store.read(0, [0])


def test_a_store_is_sent_to_workers_without_its_tokens(tmp_path: Path) -> None:
    store = TokenStore(bin_file(tmp_path / "t.bin", 100_000), 8)
    sent = pickle.dumps(store)
    assert len(sent) < 2000
    found = pickle.loads(sent)
    assert np.array_equal(found.read(1, [3])["tokens"], store.read(1, [3])["tokens"])
    assert found.fingerprint == store.fingerprint


def test_a_window_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = bin_file(tmp_path / "t.bin", 10)
    assert TokenStore(path, 10).num_samples == 1
    with pytest.raises(
        InvalidValueError, match=r"window=11 must be in \[1, 10\]; the number of tokens"
    ):
        TokenStore(path, 11)


def test_an_empty_file_has_no_window(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="window=1 must be"):
        TokenStore(written(tmp_path / "t.bin", b""), 1)


def test_a_file_that_ends_inside_a_token_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.bin", bytes(21))
    with pytest.raises(DamagedDataError, match=r"has 21 bytes, which must be a multiple of the 2"):
        TokenStore(path, 2)
    assert TokenStore(path, 2, dtype="uint8").num_samples == 10


@pytest.mark.parametrize(
    "given",
    [
        {"window": 0},
        {"window": 1.5},
        {"stride": 0},
        {"stride": -1},
        {"chunk_windows": 0},
        {"dtype": "float32"},
        {"dtype": "object"},
        {"dtype": ">u2"},
    ],
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    path = bin_file(tmp_path / "t.bin", 10)
    with pytest.raises(InvalidValueError, match=next(iter(given))):
        TokenStore(path, **({"window": 2} | given))


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"must end with \.bin or \.npy"):
        TokenStore(bin_file(tmp_path / "t.dat", 10), 2)


@pytest.mark.parametrize("array", [np.zeros((4, 4), int), np.zeros(8), np.zeros(8, bool)])
def test_npy_files_must_be_flat_integers(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(DamagedDataError, match="must have 1 axis of integers"):
        TokenStore(tmp_path / "t.npy", 2)


def test_a_dtype_that_contradicts_the_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros(8, np.int64))
    with pytest.raises(InvalidValueError, match="dtype='uint16' must be 'int64'"):
        TokenStore(tmp_path / "t.npy", 2, dtype="uint16")


def test_missing_files_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        TokenStore(tmp_path / "gone.bin", 2)
    os.mkfifo(tmp_path / "pipe.bin")
    with pytest.raises(UnsafeDataError):
        TokenStore(tmp_path / "pipe.bin", 2)
