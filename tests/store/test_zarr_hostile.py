"""Damaged and hostile matrices in zarr are refused by name, without a crash or much memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from feedline.errors import DamagedDataError, MissingDataError
from feedline.store import open_anndata
from zarr_damage import edit, read_all, replace, set_chunks, truncate
from zarr_data import NUM_COLUMNS, write_anndata, write_csr

NUM_ROWS = 60
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices that are not damaged, in shards of two chunks or in chunks."""
    folder = tmp_path_factory.mktemp("sound")
    write_anndata(folder / "shards", NUM_ROWS, chunks=(4,), shards=(8,))
    write_anndata(folder / "chunks", NUM_ROWS, chunks=(8,))
    write_anndata(folder / "raw", NUM_ROWS, chunks=(8,), compressors=None)
    write_anndata(folder / "dense", NUM_ROWS, "dense", chunks=(2, 13), shards=(4, 13))
    return folder


@pytest.fixture
def copy_of(sound: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(sound / name, tmp_path / "m.zarr"))


def check_refused(path: Path, obs: tuple[str, ...] = ("number", "label")) -> str:
    """Fail unless reading is refused with the name of the matrix, and return the message."""
    with pytest.raises(DamagedDataError) as caught:
        read_all(path, obs)
    assert str(path) in str(caught.value)
    return str(caught.value)


def files_of(array: Path) -> list[Path]:
    """The files with the values of an array, in order."""
    files = [file for file in (array / "c").rglob("*") if file.is_file()]
    return sorted(
        files, key=lambda file: [int(part) for part in file.relative_to(array / "c").parts]
    )


@pytest.mark.parametrize("num_bytes", [0, 1, -5, -1])
@pytest.mark.parametrize(
    ("name", "array"),
    [("shards", "X/data"), ("shards", "X/indices"), ("chunks", "X/data"), ("dense", "X")],
)
def test_a_truncated_file_is_refused(
    name: str, array: str, num_bytes: int, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of(name)
    store = open_anndata(path)
    truncate(files_of(path / array)[1], num_bytes)
    with pytest.raises(DamagedDataError, match="cannot be read") as caught:
        store.fetch(np.arange(NUM_ROWS))
    assert str(path / array) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("shards", "X/data/c/0"),
        ("chunks", "X/indices/c/0"),
        ("dense", "X/c/0/0"),
        ("shards", "X/indptr/c/0"),
        ("shards", "obs/number/c/0"),
        ("shards", "obs/label/codes/c/0"),
    ],
)
def test_a_truncated_file_that_opening_reads_is_refused(
    name: str, file: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of(name)
    truncate(path / file, 10)
    check_refused(path)


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("array", ["data", "indices"])
@pytest.mark.parametrize("name", ["shards", "chunks"])
def test_a_missing_file_of_a_sparse_matrix_is_named(
    name: str, array: str, number: int, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of(name)
    file = files_of(path / "X" / array)[number]
    file.unlink()
    with pytest.raises(MissingDataError) as caught:
        read_all(path)
    assert str(file) in str(caught.value)


def test_a_chunk_of_first_columns_that_zarr_left_out_is_no_damage(tmp_path: Path) -> None:
    # Zeros need no file, and every row has one value, in column 0.
    matrix = sp.csr_matrix(np.arange(1.0, 21.0)[:, None])
    write_csr(zarr.open_group(tmp_path / "m.zarr", mode="w"), matrix, chunks=(8,))
    store = open_anndata(tmp_path / "m.zarr")
    assert (store.fetch(np.arange(20)).take(np.arange(20)) != matrix).nnz == 0


@pytest.mark.parametrize("column", [NUM_COLUMNS, -1, 2**31 - 1, -(2**31)])
def test_columns_out_of_range_are_refused(column: int, copy_of: Callable[[str], Path]) -> None:
    path = copy_of("raw")
    indices = zarr.open_array(path / "X" / "indices", mode="r+")
    for place in (0, 100, indices.shape[0] - 1):
        kept = indices[place]
        indices[place] = column
        assert "columns must be in [0, 13)" in check_refused(path)
        indices[place] = kept
    read_all(path)


def set_indptr(change: Callable[[Any], Any]) -> Damage:
    def damage(path: Path) -> None:
        found = zarr.open_array(path / "X" / "indptr", mode="r")
        replace(path / "X", "indptr", change(np.asarray(found[:])))

    return damage


def set_shape(shape: Any) -> Damage:
    return lambda path: edit(path / "X", lambda header: header["attributes"].update(shape=shape))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "indptr descends": (set_indptr(lambda p: np.r_[p[:5], p[5] + 50, p[6:]]), "indptr must ascend"),
    "indptr ends early": (set_indptr(lambda p: np.r_[p[:-1], p[-1] - 1]), "indptr must ascend"),
    "indptr ends late": (set_indptr(lambda p: np.r_[p[:-1], p[-1] + 1]), "indptr must ascend"),
    "indptr begins late": (set_indptr(lambda p: np.r_[1, p[1:]]), "indptr must ascend"),
    "indptr is empty": (set_indptr(lambda p: p[:0]), "indptr has shape"),
    "indptr is a table": (set_indptr(lambda p: p[None]), "indptr|incomplete"),
    "indptr is text": (set_indptr(lambda p: np.array(["a"] * len(p))), "incomplete"),
    "a row is too long": (set_indptr(lambda p: np.r_[0 * p[:-1], p[-1]]), "a row has .* values"),
    "too many rows": (set_shape([NUM_ROWS + 1, NUM_COLUMNS]), "should have 61"),
    "too few columns": (set_shape([NUM_ROWS, 2]), "columns"),
    "no shape": (lambda p: edit(p / "X", lambda h: h["attributes"].pop("shape")), "incomplete"),
    "shape is text": (set_shape("wide"), "incomplete"),
    "shape has three sizes": (set_shape([NUM_ROWS, NUM_COLUMNS, 1]), "incomplete"),
    "negative shape": (set_shape([-1, NUM_COLUMNS]), "should have -1"),
    "more data": (lambda p: replace(p / "X", "data", np.ones(500, "f4")), "of one length"),
    "fewer indices": (lambda p: replace(p / "X", "indices", np.ones(5, "i4")), "of one length"),
    "no data": (lambda p: shutil.rmtree(p / "X" / "data"), "incomplete"),
    "header is cut": (lambda p: truncate(p / "X" / "data" / "zarr.json", 50), "is not JSON"),
    "header is a list": (lambda p: (p / "X/data/zarr.json").write_text("[]"), "not a list"),
    "header of the root is cut": (lambda p: truncate(p / "zarr.json", 30), "is not JSON"),
    "no X": (lambda p: shutil.rmtree(p / "X"), "has no 'X'"),
    "no obs": (lambda p: shutil.rmtree(p / "obs"), "has no column obs/number"),
    "short obs": (lambda p: replace(p / "obs", "number", np.arange(59)), "has 59 values"),
    "codes": (lambda p: replace(p / "obs/label", "codes", np.full(60, 3)), "without a category"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:The data type")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_matrix_that_contradicts_itself_is_refused(
    damage: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    apply, message = DAMAGES[damage]
    apply(path)
    with pytest.raises(DamagedDataError, match=message):
        read_all(path)


def test_float_columns_are_refused(copy_of: Callable[[str], Path]) -> None:
    path = copy_of("shards")
    count = zarr.open_array(path / "X" / "data", mode="r").shape[0]
    replace(path / "X", "indices", np.zeros(count, "f4"))
    assert "must be integers" in check_refused(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: shutil.rmtree(p / "obs/label/categories"),
        lambda p: replace(p / "obs/label", "codes", np.zeros(60)),
        lambda p: zarr.open_group(p / "obs", mode="r+").create_group("number", overwrite=True),
        lambda p: replace(p, "obs", np.zeros(60)),
        lambda p: edit(p / "X" / "data", lambda h: set_chunks(h, [0], [0])),
    ],
    ids=["no categories", "float codes", "column is a group", "obs is an array", "chunks of 0"],
)
def test_columns_and_chunks_that_make_no_sense_are_refused(
    damage: Damage, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    damage(path)
    check_refused(path)


def test_a_group_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_group("pictures")
    with pytest.raises(DamagedDataError, match=r"has no 'X', only \['pictures'\]"):
        open_anndata(tmp_path / "g.zarr")
    with pytest.raises(DamagedDataError, match="encoded as None"):
        open_anndata(tmp_path / "g.zarr", element="pictures")
    group.create_array("list", data=np.arange(5))
    with pytest.raises(DamagedDataError, match="must have rows and columns"):
        open_anndata(tmp_path / "g.zarr", element="list")
