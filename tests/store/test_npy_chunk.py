"""`.npy` chunks: what numpy saved comes back, and what lies is refused."""

from __future__ import annotations

import contextlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_data import PLAIN_TYPES, counting, little_memory, npy_bytes, with_flips, written
from examples import few_examples
from feedline.errors import (
    DamagedDataError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store.npy_chunk import open_npy


def header(descr: object = "<i4", shape: object = (3,), fortran_order: object = False) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran_order!r}, 'shape': {shape!r}, }}\n"


@pytest.mark.parametrize("name", [*PLAIN_TYPES, "complex64", "complex128"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_saved_array_comes_back(tmp_path: Path, name: str, order: Any) -> None:
    array = np.asarray(counting(name, 5, 3, 2), order=order)
    np.save(tmp_path / "a.npy", array)
    chunk = open_npy(tmp_path / "a.npy")
    assert list(chunk.arrays) == ["data"]
    assert np.array_equal(chunk.arrays["data"], array)
    assert chunk.columns["data"].type_name == name
    assert (chunk.num_samples, chunk.num_bytes_held, chunk.num_files) == (5, 0, 1)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(7), version=version)
    assert open_npy(tmp_path / "a.npy").arrays["data"].tolist() == list(range(7))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_arrays_without_values_come_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape))
    assert open_npy(tmp_path / "a.npy").arrays["data"].shape == shape


def test_a_folder_has_a_column_for_each_file_also_in_subfolders(tmp_path: Path) -> None:
    (tmp_path / "sequences" / "deep").mkdir(parents=True)
    for name in ("label", "sequences/item", "sequences/deep/time.stamp"):
        np.save(tmp_path / f"{name}.npy", np.full(4, len(name)))
    (tmp_path / "notes.txt").write_text("no column")
    (tmp_path / "._label.npy").write_text("a hidden file, as some systems leave behind")
    (tmp_path / ".cache").mkdir()
    np.save(tmp_path / ".cache" / "x.npy", np.zeros(1))
    chunk = open_npy(tmp_path)
    assert list(chunk.arrays) == ["label", "sequences/deep/time.stamp", "sequences/item"]
    assert chunk.arrays["sequences/item"].tolist() == [14] * 4
    assert (chunk.num_files, chunk.num_samples, chunk.num_bytes_held) == (3, 4, 0)


def test_a_folder_without_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedDataError, match=r"has 0 \.npy files"):
        open_npy(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.npy"):
        open_npy(tmp_path / "gone.npy")


@pytest.mark.parametrize("as_folder", [False, True])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, as_folder: bool) -> None:
    (tmp_path / "outside").mkdir()
    np.save(tmp_path / "outside" / "x.npy", np.zeros(3))
    chunk = tmp_path / "chunk"
    chunk.mkdir()
    np.save(chunk / "a.npy", np.zeros(3))
    name, target = ("sub", "outside") if as_folder else ("x.npy", "outside/x.npy")
    (chunk / name).symlink_to(tmp_path / target)
    with pytest.raises(UnsafeDataError, match=name):
        open_npy(chunk)


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "b.npy").symlink_to("a.npy")
    assert open_npy(tmp_path).arrays["b"].tolist() == [0, 1, 2]


def test_a_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "b.npy").symlink_to("a.npy")
    with pytest.raises(MissingDataError, match=r"b\.npy"):
        open_npy(tmp_path)


@pytest.mark.parametrize("in_folder", [False, True])
def test_pipes_are_refused_without_waiting(tmp_path: Path, in_folder: bool) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(UnsafeDataError, match="regular file"):
        open_npy(tmp_path if in_folder else tmp_path / "a.npy")


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)


def test_pickled_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    target = tmp_path / "proof"
    np.save(tmp_path / "a.npy", np.array([Payload(target)], dtype=object), allow_pickle=True)
    with pytest.raises(UnsafeDataError, match="contains Python objects"):
        open_npy(tmp_path / "a.npy")
    assert not target.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert target.exists(), "the payload would have shown itself"


def test_a_bare_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npy", pickle.dumps(Payload(tmp_path / "proof")))
    with pytest.raises(DamagedDataError):
        open_npy(path)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        pytest.param(np.arange(3, dtype=">i4"), "newbyteorder", id="big-endian"),
        pytest.param(np.zeros(3, "i4,f8"), "structured", id="structured"),
        pytest.param(np.array(["a", "b"]), "numbers", id="text"),
        pytest.param(np.zeros(3, "V3"), "numbers", id="void"),
        pytest.param(np.zeros(3, "M8[Y]"), "numbers", id="dates"),
        pytest.param(np.array(3), "has 0 axes", id="no-axis"),
    ],
)
def test_what_is_no_column_of_numbers_is_refused_with_a_remedy(
    tmp_path: Path, array: np.ndarray, message: str
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DamagedDataError, match=rf"a\.npy: .*{message}"):
        open_npy(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(npy_bytes(header(shape=(2**50,)), bytes(12)), id="petabytes"),
        pytest.param(npy_bytes(header(shape=(2**61, 2**61)), bytes(12)), id="overflow"),
        pytest.param(npy_bytes(header(shape=(2**32, 2**30), fortran_order=True)), id="fortran"),
        pytest.param(npy_bytes(header(shape=(0, 2**61, 2**61))), id="nothing-times-much"),
        pytest.param(npy_bytes(header(shape=(-3,)), bytes(12)), id="negative"),
        pytest.param(npy_bytes(header(shape=(-3, -1)), bytes(12)), id="twice-negative"),
        pytest.param(npy_bytes(header(shape=(True,)), bytes(4)), id="bool"),
        pytest.param(npy_bytes(header(shape=(3.0,)), bytes(12)), id="float"),
        pytest.param(npy_bytes(header(shape=[3]), bytes(12)), id="list"),
        pytest.param(npy_bytes(header(shape=3), bytes(12)), id="number"),
        pytest.param(npy_bytes(header(shape=(1,) * 40), bytes(4)), id="many-axes"),
        pytest.param(npy_bytes(header(shape=(3,)), bytes(11)), id="one-byte-less"),
        pytest.param(npy_bytes(header(shape=(3,)), bytes(13)), id="one-byte-more"),
        pytest.param(npy_bytes(header(fortran_order=1), bytes(12)), id="order"),
        pytest.param(npy_bytes(header(descr="<i5"), bytes(15)), id="unknown-type"),
        pytest.param(npy_bytes(header(descr="<f16"), bytes(48)), id="long-double"),
        pytest.param(npy_bytes(header(descr=b"<i4"), bytes(12)), id="bytes-type"),
        pytest.param(npy_bytes(header(descr=["<i4"]), bytes(12)), id="list-type"),
        pytest.param(npy_bytes(header(descr=("<i4", (2**40,))), bytes(12)), id="sub-array"),
        pytest.param(npy_bytes(header()[:-5] + "'more': 1}", bytes(12)), id="key"),
        pytest.param(npy_bytes("{'descr': '<i4'}", bytes(12)), id="few-keys"),
        pytest.param(npy_bytes("[1, 2]"), id="no-object"),
        pytest.param(npy_bytes(""), id="no-header"),
        pytest.param(npy_bytes("{'a\\d': 1}"), id="escape"),
        pytest.param(npy_bytes("{[]: 1}"), id="no-key"),
        pytest.param(npy_bytes("__import__('os').getcwd()"), id="code"),
        pytest.param(npy_bytes("(" * 5000), id="nesting"),
        pytest.param(npy_bytes("-" * 9000 + "1"), id="signs"),
        pytest.param(npy_bytes("[" * 90 + "]" * 90), id="lists"),
        pytest.param(npy_bytes("9" * 9000), id="digits"),
        pytest.param(npy_bytes(header() + " " * 20_000, bytes(12)), id="long-header"),
        pytest.param(npy_bytes(header(), bytes(12), length=65535), id="claimed-length"),
        pytest.param(npy_bytes(header(), bytes(12), 2, 2**32 - 1), id="claimed-4-gigabytes"),
        pytest.param(npy_bytes(header(), bytes(12), version=4), id="version"),
        pytest.param(b"\x93NUMPY", id="magic-only"),
        pytest.param(b"", id="empty"),
        pytest.param(b"PK\x03\x04" + bytes(100), id="zip"),
    ],
)
def test_headers_that_lie_are_refused_at_no_cost(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.npy", content)
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.npy: "):
        open_npy(path)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    content = (tmp_path / "a.npy").read_bytes()
    for length in range(len(content)):
        with pytest.raises(DamagedDataError):
            open_npy(written(tmp_path / "a.npy", content[:length]))


@few_examples(2)
@given(flips=st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_in_a_header_give_an_array_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.npy"
    np.save(path, np.arange(12, dtype="<i4").reshape(4, 3))
    written(path, with_flips(path.read_bytes(), flips))
    with contextlib.suppress(StoreError):
        open_npy(path).arrays["data"].sum()


def test_threads_that_open_chunks_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "usual.npy", np.arange(6).reshape(2, 3))
    usual = (tmp_path / "usual.npy").read_bytes()
    # The same in other words, which numpy reads too.
    other = usual.replace(b"'descr': ", b"'descr':  ", 1).replace(b" \n", b"\n", 1)
    (tmp_path / "other.npy").write_bytes(other)
    with ThreadPoolExecutor(8) as threads:
        paths = [tmp_path / name for name in ("usual.npy", "other.npy")] * 500
        for chunk in threads.map(open_npy, paths):
            assert chunk.arrays["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
