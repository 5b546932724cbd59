"""`.safetensors` chunks: the same as the real library's, and what lies is refused."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_data import PLAIN_TYPES, counting, little_memory, safetensors_bytes, with_flips, written
from examples import few_examples
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store.safetensors_chunk import open_safetensors, write_safetensors

library = pytest.importorskip("safetensors.numpy")

COLUMNS = {name: counting(name, 6, 5) for name in PLAIN_TYPES} | {"ids": counting("int64", 6)}


def entry(code: str = "I32", shape: Any = (3,), offsets: Any = (0, 12)) -> dict[str, Any]:
    return {"dtype": code, "shape": shape, "data_offsets": offsets}


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    library.save_file(COLUMNS, tmp_path / "a.safetensors", metadata={"made": "by the library"})
    chunk = open_safetensors(tmp_path / "a.safetensors")
    assert_same(chunk.arrays, COLUMNS)
    assert (chunk.num_samples, chunk.num_bytes_held, chunk.num_files) == (6, 0, 1)
    assert {name: column.type_name for name, column in chunk.columns.items()} == {
        name: array.dtype.name for name, array in COLUMNS.items()
    }


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", COLUMNS, {})
    assert_same(library.load_file(tmp_path / "a.safetensors"), COLUMNS)
    assert_same(open_safetensors(tmp_path / "a.safetensors").arrays, COLUMNS)


def test_bfloat16_goes_to_torch_and_comes_from_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    tensor = torch.linspace(-3, 3, 12).reshape(4, 3).to(torch.bfloat16)
    save_file({"x": tensor}, tmp_path / "a.safetensors")
    chunk = open_safetensors(tmp_path / "a.safetensors")
    assert chunk.columns["x"].type_name == "bfloat16"
    assert np.array_equal(chunk.arrays["x"], tensor.view(torch.uint16).numpy())
    write_safetensors(tmp_path / "b.safetensors", chunk.arrays, chunk.type_names)
    assert torch.equal(load_file(tmp_path / "b.safetensors")["x"], tensor)


def test_written_values_are_aligned(tmp_path: Path) -> None:
    odd = {"b": np.zeros(3, "?"), "w": np.zeros(5, "<f8"), "h": np.zeros(7, "<f2")}
    write_safetensors(tmp_path / "a.safetensors", odd, {})
    content = (tmp_path / "a.safetensors").read_bytes()
    assert (8 + int.from_bytes(content[:8], "little")) % 64 == 0
    arrays = open_safetensors(tmp_path / "a.safetensors").arrays
    assert all(array.flags.aligned for array in arrays.values())


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(counting("int32", 8, 6).T, id="transposed"),
        pytest.param(counting("int32", 9, 4)[::2], id="every-other"),
        pytest.param(counting("int32", 9, 4)[:, ::-1], id="reversed"),
        pytest.param(np.broadcast_to(np.int32(7), (5, 2)), id="repeated"),
        pytest.param(counting("int32", 5).astype(">i4"), id="big-endian"),
        pytest.param(np.zeros((0, 3), "<i4"), id="no-samples"),
        pytest.param(np.zeros((3, 0), "<i4"), id="no-values"),
        pytest.param(np.arange(5_000_000, dtype="<i4")[::2], id="several-blocks"),
    ],
)
def test_arrays_of_any_strides_are_written_in_order(tmp_path: Path, array: np.ndarray) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": array}, {})
    assert np.array_equal(library.load_file(tmp_path / "a.safetensors")["x"], array)
    assert np.array_equal(open_safetensors(tmp_path / "a.safetensors").arrays["x"], array)


@pytest.mark.parametrize(
    ("arrays", "type_names"),
    [
        pytest.param({"x": np.zeros(3, "c8")}, {}, id="complex"),
        pytest.param({"x": np.zeros(3, "U1")}, {}, id="text"),
        pytest.param({"x": np.zeros(3, object)}, {}, id="objects"),
        pytest.param({"x": np.array(3)}, {}, id="no-axis"),
        pytest.param({"__metadata__": np.zeros(3)}, {}, id="reserved-name"),
        pytest.param({"x": np.zeros(3, "f8")}, {"x": "bfloat16"}, id="wrong-carrier"),
    ],
)
def test_what_the_format_cannot_hold_is_not_written(
    tmp_path: Path, arrays: dict[str, np.ndarray], type_names: dict[str, str]
) -> None:
    with pytest.raises(InvalidValueError, match=r"a\.safetensors: '(x|__metadata__)'"):
        write_safetensors(tmp_path / "a.safetensors", arrays, type_names)
    assert not (tmp_path / "a.safetensors").exists()


@settings(max_examples=30)
@given(
    columns=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()),
        st.tuples(st.sampled_from(PLAIN_TYPES), st.lists(st.integers(0, 4), max_size=2)),
        min_size=1,
        max_size=5,
    )
)
def test_any_columns_make_the_round_trip_through_both_readers(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, tuple[str, list[int]]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    arrays = {name: counting(kind, 3, *shape) for name, (kind, shape) in columns.items()}
    write_safetensors(path, arrays, {})
    assert_same(open_safetensors(path).arrays, arrays)
    assert_same(library.load_file(path), arrays)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(safetensors_bytes({"a": entry(shape=[2**50])}, bytes(12)), id="petabytes"),
        pytest.param(
            safetensors_bytes({"a": entry(shape=[2**50], offsets=[0, 2**52])}, bytes(12)),
            id="agreeing-petabytes",
        ),
        pytest.param(safetensors_bytes({"a": entry(shape=[2**61, 2**61])}, bytes(12)), id="wraps"),
        pytest.param(safetensors_bytes({"a": entry(shape=[0, 2**61, 2**61])}), id="zero-times"),
        pytest.param(safetensors_bytes({"a": entry(shape=[-3])}, bytes(12)), id="negative-shape"),
        pytest.param(safetensors_bytes({"a": entry(shape=[-3, -1])}, bytes(12)), id="negatives"),
        pytest.param(safetensors_bytes({"a": entry(shape=[True])}, bytes(12)), id="bool-shape"),
        pytest.param(safetensors_bytes({"a": entry(shape=[3.0])}, bytes(12)), id="float-shape"),
        pytest.param(safetensors_bytes({"a": entry(shape="3")}, bytes(12)), id="text-shape"),
        pytest.param(safetensors_bytes({"a": entry(shape=3)}, bytes(12)), id="number-shape"),
        pytest.param(safetensors_bytes({"a": entry(shape=[1] * 99)}, bytes(12)), id="axes"),
        pytest.param(safetensors_bytes({"a": entry("I64", [])}, bytes(8)), id="no-axis"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[-4, 8])}, bytes(12)), id="before"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[4, 16])}, bytes(12)), id="beyond"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[12, 0])}, bytes(12)), id="reversed"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[0, 8])}, bytes(12)), id="short-span"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[0])}, bytes(12)), id="one-offset"),
        pytest.param(safetensors_bytes({"a": entry(offsets=[4, 16])}, bytes(16)), id="gap-first"),
        pytest.param(safetensors_bytes({"a": entry()}, bytes(16)), id="gap-last"),
        pytest.param(safetensors_bytes({"a": entry(), "b": entry()}, bytes(12)), id="same-span"),
        pytest.param(
            safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 16])}, bytes(16)), id="overlap"
        ),
        pytest.param(safetensors_bytes({"a": entry("F8_E4M3")}, bytes(12)), id="unknown-type"),
        pytest.param(safetensors_bytes({"a": entry([])}, bytes(12)), id="list-type"),
        pytest.param(safetensors_bytes({"a": {"dtype": "I32"}}, bytes(12)), id="few-keys"),
        pytest.param(safetensors_bytes({"a": 3}), id="number-entry"),
        pytest.param(safetensors_bytes({"a": None}), id="no-entry"),
        pytest.param(safetensors_bytes([1]), id="no-object"),
        pytest.param(safetensors_bytes(b"{"), id="no-json"),
        pytest.param(safetensors_bytes(b"\xff{}"), id="no-utf-8"),
        pytest.param(safetensors_bytes(b"[" * 100_000), id="nesting"),
        pytest.param(safetensors_bytes(b'{"a":' + b"9" * 9000 + b"}"), id="digits"),
        pytest.param(
            safetensors_bytes(
                b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(12)
            ),
            id="twice",
        ),
        pytest.param(safetensors_bytes({}, length=2**60), id="long-header"),
        pytest.param(safetensors_bytes({}, length=2**64 - 1), id="longest-header"),
        pytest.param(safetensors_bytes({}, length=3), id="header-one-beyond"),
        pytest.param(b"\x02", id="cut-length"),
        pytest.param(b"", id="empty"),
    ],
)
def test_headers_that_lie_are_refused_at_no_cost(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.safetensors", content)
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.safetensors: "):
        open_safetensors(path)


def test_a_header_over_the_bound_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)
    with little_memory(), pytest.raises(DamagedDataError, match="at most 100000000"):
        open_safetensors(path)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": np.arange(5), "b": np.zeros(5, "?")}, {})
    content = (tmp_path / "a.safetensors").read_bytes()
    for length in range(len(content)):
        with pytest.raises(DamagedDataError):
            open_safetensors(written(tmp_path / "a.safetensors", content[:length]))


@few_examples(2)
@given(flips=st.lists(st.tuples(st.integers(0, 190), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_in_a_header_give_arrays_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    write_safetensors(path, {"a": counting("int64", 4, 3), "b": counting("bool", 4)}, {})
    written(path, with_flips(path.read_bytes(), flips))
    with contextlib.suppress(StoreError):
        arrays = open_safetensors(path).arrays
        assert sum(array.nbytes for array in arrays.values()) <= path.stat().st_size


def test_missing_files_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        open_safetensors(tmp_path / "gone.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(UnsafeDataError):
        open_safetensors(tmp_path / "pipe.safetensors")
