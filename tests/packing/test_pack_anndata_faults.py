"""AnnData files that are damaged, unsafe or unlike each other: told, with nothing left."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pytest

from anndata_data import make_anndata, make_sparse, write, write_cells
from feedline.errors import DamagedDataError, InvalidValueError, PackError, UnsafeDataError
from feedline.packing.anndata import checking
from feedline.store import pack_anndata
from processes import environment, is_running


def csc(data: anndata.AnnData) -> None:
    data.X = data.X.tocsc()


def rename(data: anndata.AnnData) -> None:
    data.var_names = ["gene 0", "other", *data.var_names[2:]]


def widen(data: anndata.AnnData) -> None:
    data.X = data.X.astype(np.float64)


def unsparse(data: anndata.AnnData) -> None:
    data.X = data.X.toarray()


def reorder(data: anndata.AnnData) -> None:
    data.obs["stage"] = data.obs["stage"].cat.reorder_categories(["old", "young"])


def retype(data: anndata.AnnData) -> None:
    data.obs["count"] = data.obs["count"].astype(np.int64)


def forget(data: anndata.AnnData) -> None:
    del data.obs["age"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (csc, r"csc_matrix and must be csr_matrix .*`adata.X = adata.X.tocsr\(\)`"),
        pytest.param(
            rename, "variable 1 is 'other' but in .*a.h5ad it is 'gene 1'", marks=pytest.mark.slow
        ),
        (widen, "has dtype=float64 but .*a.h5ad: X has float32"),
        pytest.param(unsparse, "one is sparse and one is dense", marks=pytest.mark.slow),
        pytest.param(
            reorder, "obs/stage: is ordered categorical of strings", marks=pytest.mark.slow
        ),
        (retype, "obs/count: is array of int64 but .*is array of int32.*obs="),
        pytest.param(forget, "has no column obs/age", marks=pytest.mark.slow),
    ],
)
def test_sources_that_differ_are_refused(tmp_path: Path, change: Any, text: str) -> None:
    first, second = make_anndata(20), make_anndata(20, 1)
    change(second)
    sources = [write(first, tmp_path / "a"), write(second, tmp_path / "b")]
    with pytest.raises(PackError, match=text) as caught:
        pack_anndata(sources, tmp_path / "out")
    assert str(tmp_path / "b.h5ad") in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["a.h5ad", "b.h5ad"]


def test_sources_of_other_widths_are_refused(tmp_path: Path) -> None:
    wide = make_anndata(20, matrix=make_sparse(20, 31))
    sources = [write_cells(20, tmp_path / "a"), write(wide, tmp_path / "b", "zarr3")]
    with pytest.raises(PackError, match=r"b.zarr: X: has num_columns=31 but .* has 30"):
        pack_anndata(sources, tmp_path / "out")


def put(file: Any, name: str, values: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    file[name] = values
    file[name].attrs.update(attributes)


def turn_back(file: Any) -> None:
    file["X/indptr"][7] = file["X/indptr"][6] - 1


def end_early(file: Any) -> None:
    file["X/indptr"][-1] -= 1


def begin_late(file: Any) -> None:
    file["X/indptr"][0] = 1


def point_out(file: Any) -> None:
    file["X/indices"][3] = 30


def point_below(file: Any) -> None:
    file["X/indices"][3] = -1


def make_float(file: Any) -> None:
    put(file, "X/indices", file["X/indices"][:].astype(float))


def cut_data(file: Any) -> None:
    put(file, "X/data", file["X/data"][:-1])


def overfill(file: Any) -> None:
    edges = file["X/indptr"][:]
    edges[1:-1] = 0
    edges[2:] = edges[-1]
    file["X/indptr"][:] = edges


def claim_rows(file: Any) -> None:
    file["X"].attrs["shape"] = [10**12, 30]


def claim_columns(file: Any) -> None:
    file["X"].attrs["shape"] = [40, 10**12]


def make_up_codes(file: Any) -> None:
    file["obs/label/codes"][0] = 99


def shorten_column(file: Any) -> None:
    put(file, "obs/size", file["obs/size"][:-1])


def double_category(file: Any) -> None:
    file["obs/label/categories"][1] = file["obs/label/categories"][0]


def break_text(file: Any) -> None:
    del file["obs/note"]
    data = file["obs"].create_dataset("note", data=[b"\xff"] * 40, dtype=h5py.string_dtype())
    data.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def make_compound(file: Any) -> None:
    put(file, "obs/size", np.zeros(40, [("a", "f4"), ("b", "i4")]))


def make_references(file: Any) -> None:
    put(file, "obs/size", np.array([file["X"].ref] * 40, h5py.ref_dtype))


def grow_chunks(file: Any) -> None:
    del file["X/data"]
    nnz = file["X/indices"].shape[0]
    file["X"].create_dataset("data", (nnz,), "f4", chunks=(2**29,), maxshape=(None,))


def link_out(file: Any) -> None:
    del file["X"]
    file["X"] = h5py.ExternalLink("other.h5ad", "/X")


def keep_outside(file: Any) -> None:
    nnz = file["X/data"].shape[0]
    del file["X/data"]
    file["X"].create_dataset("data", (nnz,), "f4", external=[("/etc/passwd", 0, 4 * nnz)])


def climb(file: Any) -> None:
    file["obs"].attrs["column-order"] = ["../../x"]


def age(file: Any) -> None:
    file["obs"].attrs["encoding-version"] = "0.1.0"


def drop_obs(file: Any) -> None:
    del file["obs"]


def drop_indptr(file: Any) -> None:
    del file["X/indptr"]


DAMAGES: list[tuple[Any, Any, str]] = [
    (turn_back, DamagedDataError, "X/indptr: does not ascend"),
    (point_out, DamagedDataError, r"columns from 0 to 30, which must be in \[0, 30\)"),
    (cut_data, DamagedDataError, "have shapes"),
    (claim_columns, PackError, "has 1,000,000,000,000 columns"),
    (make_up_codes, DamagedDataError, r"codes from -1 to 99, which must be in \[-1, 3\)"),
    (break_text, DamagedDataError, "obs/note: cannot be read"),
    (grow_chunks, DamagedDataError, "has chunks of 2147483648 bytes"),
    (link_out, UnsafeDataError, "'X' is a link"),
    (keep_outside, UnsafeDataError, "is stored in other files"),
    (drop_indptr, DamagedDataError, "has no 'indptr'"),
    # From here on in the slow tests: each starts a process that reads the file.
    (end_early, DamagedDataError, "X/indptr: goes from 0 to"),
    (begin_late, DamagedDataError, "X/indptr: goes from 1 to"),
    (point_below, DamagedDataError, "columns from -1 to"),
    (make_float, DamagedDataError, "float64, not integers"),
    (overfill, DamagedDataError, "values but there are 30 columns"),
    (claim_rows, DamagedDataError, "have shapes"),
    (shorten_column, DamagedDataError, r"obs/size: has shape \(39,\)"),
    (double_category, DamagedDataError, "has a category twice"),
    (make_compound, PackError, "must be of booleans, integers or floats"),
    (make_references, PackError, "must be of booleans, integers or floats"),
    (climb, InvalidValueError, "must be a name without slashes"),
    (age, PackError, "must be a dataframe of version 0.2.0"),
    (drop_obs, DamagedDataError, "has no 'obs'"),
]


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if number >= 10 else [])
        for number, case in enumerate(DAMAGES)
    ],
)
def test_damage_is_told_and_leaves_nothing(
    tmp_path: Path, damage: Any, error: Any, text: str
) -> None:
    source = write_cells(40, tmp_path / "a")
    with h5py.File(source, "r+") as file:
        damage(file)
    with pytest.raises(error, match=text) as caught:
        pack_anndata(source, tmp_path / "out")
    assert str(source) in str(caught.value)
    assert os.listdir(tmp_path) == ["a.h5ad"]


def test_files_cut_short_are_told(tmp_path: Path) -> None:
    source = write_cells(40, tmp_path / "a")
    source.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(DamagedDataError, match="is not an HDF5 file"):
        pack_anndata(source, tmp_path / "out")
    folder = write(make_anndata(40), tmp_path / "b", "zarr3")
    (folder / "X" / "data" / "c" / "0").write_bytes(b"short")
    with pytest.raises(DamagedDataError, match="cannot be read"):
        pack_anndata(folder, tmp_path / "out")
    for name in ("data", "indices"):
        folder = write(make_anndata(40), tmp_path / "b", "zarr3")
        (folder / "X" / name / "c" / "0").unlink()
        with pytest.raises(FileNotFoundError, match="is missing"):
            pack_anndata(folder, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.h5ad", "b.zarr"]


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = write(make_anndata(40), tmp_path / "b", "zarr2")
    (folder / ".zmetadata").unlink()
    path = folder / "obs" / "note" / ".zarray"
    metadata = json.loads(path.read_text())
    metadata["filters"].append({"id": "pickle", "protocol": 4})
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsafeDataError, match="encoded with 'pickle'"):
        pack_anndata(folder, tmp_path / "out")


def make_bomb(folder: Path, num_mebibytes: int) -> Path:
    """Return a file with a chunk that claims to be small, and is not."""
    source = write_cells(40, folder / "bomb")
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(bytes(2**20)) for _ in range(num_mebibytes)) + packer.flush()
    with h5py.File(source, "r+") as file:
        attributes, shape = dict(file["X/data"].attrs), file["X/data"].shape
        del file["X/data"]
        made = file["X"].create_dataset("data", shape, "f4", chunks=shape, compression="gzip")
        made.attrs.update(attributes)
        made.id.write_direct_chunk((0,), data)
    return source


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory")
def test_a_chunk_that_is_larger_than_it_claims_takes_no_memory_here(tmp_path: Path) -> None:
    source = make_bomb(tmp_path, 600)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedDataError, match=r"X/data: cannot be read|takes more than"):
        pack_anndata(source, tmp_path / "out", memory_budget=2**20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 200 * 1024
    assert os.listdir(tmp_path) == ["bomb.h5ad"]


def stretch_a_string(path: Path) -> None:
    """Let a string end in the empty part of its heap; HDF5 2.0 then searches it for ever."""
    data = bytearray(path.read_bytes())
    place = data.rindex(b"GCOL") + 16
    for _ in range(9):
        place += 16 + -(-struct.unpack_from("<Q", data, place + 8)[0] // 8) * 8
    data[place + 9] = 12
    path.write_bytes(data)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_file_that_hangs_the_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cells(40, tmp_path / "a")
    stretch_a_string(source)
    monkeypatch.setattr(checking, "SILENT_SECONDS", 1.0)
    before = set(list_children(os.getpid()))
    with pytest.raises(DamagedDataError, match=r"a\.h5ad: (reading it did not get on|.*cannot)"):
        pack_anndata(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.h5ad"]
    assert set(list_children(os.getpid())) <= before


def list_children(pid: int) -> list[int]:
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in found for child in children if is_running(int(child))]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("killed", ["reader", "packer"])
def test_a_process_that_is_killed_while_a_file_is_checked_ends_both(
    tmp_path: Path, killed: str
) -> None:
    source = write_cells(40, tmp_path / "a")
    stretch_a_string(source)
    command = f"from feedline.store import pack_anndata; pack_anndata({str(source)!r}, 'out')"
    packer = subprocess.Popen(
        [sys.executable, "-c", command],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (readers := list_children(packer.pid)):
        assert packer.poll() is None, packer.communicate()
        time.sleep(0.005)
    os.kill(readers[0] if killed == "reader" else packer.pid, signal.SIGKILL)
    _, errors = packer.communicate(timeout=60)
    assert (r"ended by signal 9 (SIGKILL)" in errors) == (killed == "reader")
    end = time.monotonic() + 30
    while is_running(readers[0]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(readers[0])
    assert os.listdir(tmp_path) == ["a.h5ad"]
