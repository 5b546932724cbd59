"""Packing AnnData: what is written equals what was read, in another order, or nothing is there."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from anndata_data import (
    KINDS,
    assert_same_rows,
    make_anndata,
    make_sparse,
    read,
    to_dense,
    write,
    write_cells,
)
from feedline.chunks import RandomSampler
from feedline.errors import InvalidValueError, PackError
from feedline.feed import ChunkLoader
from feedline.packing.anndata import nodes, shards
from feedline.packing.anndata.sources import AnnDataFiles
from feedline.packing.anndata.writer import AnnDataWriter
from feedline.packing.keys import row_keys
from feedline.packing.shuffle import Shuffle
from feedline.store import CsrStore, DenseStore, open_anndata, pack_anndata
from killed_packs import run_trials
from pack_data import partial_of, read_tree

ROW = "feedline_source_row"
ELEMENTS = ("X", "layers/dense", "raw/X")


def unshuffled(data: anndata.AnnData) -> anndata.AnnData:
    """The rows in the order of the sources, without the column that tells it."""
    ordered = data[np.argsort(data.obs[ROW].to_numpy())].to_memory()
    assert ordered.obs[ROW].tolist() == list(range(data.n_obs))
    del ordered.obs[ROW]
    return ordered


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        *zip(KINDS, ELEMENTS, strict=True),
        *(
            pytest.param(kind, element, marks=pytest.mark.slow)
            for kind, element in itertools.product(KINDS, ELEMENTS)
            if KINDS.index(kind) != ELEMENTS.index(element)
        ),
    ],
)
def test_without_a_shuffle_the_rows_are_those_of_the_source(
    tmp_path: Path, kind: str, element: str
) -> None:
    data = make_anndata(150)
    source = write(data, tmp_path / "a", kind)
    pack_anndata(
        source, tmp_path / "out", element=element, shuffle=False, source_row=None, chunk_rows=8
    )
    found = read(tmp_path / "out")
    matrix, names = data.X, data.var_names
    if element == "layers/dense":
        matrix = data.layers["dense"]
    elif element == "raw/X":
        matrix, names = data.raw.X, data.raw.var_names
    assert_same_rows(found, data, matrix)
    assert found.var_names.tolist() == names.tolist()
    assert sorted(os.listdir(tmp_path)) == sorted([source.name, "out"])


@pytest.mark.parametrize(
    ("kind", "is_sparse"),
    [
        *(("h5ad", True), ("zarr3", False)),
        pytest.param("zarr2", True, marks=pytest.mark.slow),
        pytest.param("h5ad", False, marks=pytest.mark.slow),
    ],
)
def test_a_shuffle_moves_whole_rows_and_loses_none(
    tmp_path: Path, kind: str, is_sparse: bool
) -> None:
    matrix = make_sparse(200)
    data = make_anndata(200, matrix=matrix if is_sparse else matrix.toarray())
    source = write(data, tmp_path / "a", kind)
    result = pack_anndata(source, tmp_path / "out", chunk_rows=8, seed=3)
    found = read(tmp_path / "out")
    assert found.obs[ROW].tolist() == np.argsort(row_keys(3, 0, 200)).tolist()
    assert_same_rows(unshuffled(found), data)
    assert (result.num_rows, result.num_columns, result.is_sparse) == (200, 30, is_sparse)
    assert result.num_values == (matrix.nnz if is_sparse else 6000)
    assert result.obs == (*data.obs.columns, ROW)
    assert result.num_bytes == sum(map(len, read_tree(tmp_path / "out").values()))


def test_our_own_store_reads_the_same_rows(tmp_path: Path) -> None:
    data = make_anndata(120)
    for element, kind in (("X", CsrStore), ("layers/dense", DenseStore)):
        folder = tmp_path / kind.__name__
        pack_anndata(
            write(data, tmp_path / "a"), folder, element=element, chunk_rows=8, shard_rows=40
        )
        names = ["label", "note", "age", "is_good", ROW]
        store = open_anndata(folder, obs=names)
        assert isinstance(store, kind)
        seen: list[int] = []
        for batch in ChunkLoader(store, RandomSampler(8, 4, 16, rng=1), output="numpy"):
            rows = batch.obs[ROW]
            matrix = data.X if element == "X" else data.layers["dense"]
            np.testing.assert_array_equal(batch.X, to_dense(matrix[rows]))
            assert batch.obs["note"].tolist() == data.obs["note"].iloc[rows].tolist()
            seen += rows.tolist()
        assert sorted(seen) == list(range(120))


def test_the_order_of_a_seed_is_a_promise(tmp_path: Path) -> None:
    source = write_cells(12, tmp_path / "a")
    orders = {}
    for seed in (7, "seven"):
        pack_anndata(source, tmp_path / f"{seed}", seed=seed, obs=[])
        orders[seed] = read(tmp_path / f"{seed}").obs[ROW].tolist()
    assert orders[7] == [10, 2, 6, 5, 3, 7, 1, 4, 9, 0, 8, 11]
    assert orders[7] != orders["seven"]


@pytest.mark.slow
@pytest.mark.parametrize("is_sparse", [True, False])
def test_memory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sparse: bool
) -> None:
    matrix = make_sparse(3000, 100)
    data = make_anndata(3000, matrix=matrix if is_sparse else matrix.toarray())
    source = write(data, tmp_path / "a")
    options: dict[str, Any] = {"chunk_rows": 32, "shard_rows": 500}
    pack_anndata(source, tmp_path / "large", memory_budget=2**28, **options)
    num_spills = []
    deal = Shuffle._deal
    monkeypatch.setattr(
        Shuffle,
        "_deal",
        lambda self, rows, spills, places: (
            num_spills.append(len(spills)) or deal(self, rows, spills, places)
        ),
    )
    pack_anndata(source, tmp_path / "small", memory_budget=2**20, **options)
    assert max(num_spills) > 1
    # Dealt to one spill, which is too large, all rows must be dealt again.
    monkeypatch.setattr(AnnDataFiles, "num_bytes_guess", 0)
    num_spills.clear()
    pack_anndata(source, tmp_path / "again", memory_budget=2**20, **options)
    assert num_spills[0] == 1
    assert max(num_spills) > 1
    wanted = read_tree(tmp_path / "large")
    assert read_tree(tmp_path / "small") == wanted
    assert read_tree(tmp_path / "again") == wanted
    assert_same_rows(unshuffled(read(tmp_path / "small")), data)


def test_arrays_are_sharded_and_compressed_as_promised(tmp_path: Path) -> None:
    data = make_anndata(1000)
    pack_anndata(write(data, tmp_path / "a"), tmp_path / "out", chunk_rows=10, shard_rows=100)
    group = zarr.open_group(tmp_path / "out", mode="r")
    assert group.metadata.zarr_format == 3
    chunk = round(data.X.nnz / 100)
    for name, dtype in (("data", np.float32), ("indices", np.int32)):
        array = group["X"][name]
        assert (array.chunks, array.shards, array.dtype) == ((chunk,), (10 * chunk,), dtype)
        assert [codec.to_dict()["name"] for codec in array.metadata.codecs] == ["sharding_indexed"]
        assert "'cname': 'lz4', 'clevel': 3, 'shuffle': 'shuffle'" in str(
            array.metadata.codecs[0].to_dict()
        )
        # Every chunk of every shard is where its index says, also as zarr alone decodes it.
        num_shards = -(-data.X.nnz // (10 * chunk))
        assert len(list((tmp_path / "out" / "X" / name / "c").iterdir())) == num_shards >= 10
        assert array[:].shape == (data.X.nnz,)
    pack_anndata(tmp_path / "a.h5ad", tmp_path / "whole", chunk_rows=10)
    assert len(list((tmp_path / "whole" / "X" / "data" / "c").iterdir())) == 1


def test_several_sources_follow_one_another(tmp_path: Path) -> None:
    parts = [make_anndata(count, seed) for seed, count in enumerate((40, 1, 70))]
    for part in parts:
        # Ordered categories must be the same, and others need not be.
        part.obs["note"] = part.obs["note"].astype(object)
    sources = [
        write(part, tmp_path / str(n), kind)
        for n, (part, kind) in enumerate(zip(parts, KINDS, strict=True))
    ]
    result = pack_anndata(sources, tmp_path / "out", seed=1)
    assert (result.num_sources, result.num_rows) == (3, 111)
    found = unshuffled(read(tmp_path / "out"))
    wanted = sp.vstack([part.X for part in parts]).toarray()
    np.testing.assert_array_equal(found.X.toarray(), wanted)
    assert list(found.obs["label"].cat.categories) == [
        "type 0",
        "type 1",
        "type 2",
        "type 3",
        "type 4",
    ]
    assert list(found.obs["batch"].cat.categories) == [0, 10, 1, 2, 12]
    for name in parts[0].obs:
        listed = [value for part in parts for value in part.obs[name].tolist()]
        pd.testing.assert_series_equal(
            pd.Series(found.obs[name].tolist(), dtype=object), pd.Series(listed, dtype=object)
        )
    assert found.obs_names.tolist() == [name for part in parts for name in part.obs_names]


def test_obs_chooses_columns(tmp_path: Path) -> None:
    source = write_cells(30, tmp_path / "a")
    pack_anndata(source, tmp_path / "out", obs=["size", "label"], source_row="from")
    assert list(read(tmp_path / "out").obs.columns) == ["size", "label", "from"]
    with pytest.raises(PackError, match="has no column obs/colour"):
        pack_anndata(source, tmp_path / "none", obs=["colour"])
    with pytest.raises(InvalidValueError, match="twice"):
        pack_anndata(source, tmp_path / "none", obs=["size", "size"])
    with pytest.raises(InvalidValueError, match="is already a column of the sources"):
        pack_anndata(tmp_path / "out", tmp_path / "none", source_row="from")
    assert not (tmp_path / "none").exists()


def test_nullable_strings_keep_what_is_missing(tmp_path: Path) -> None:
    source = write(make_anndata(5), tmp_path / "a", "zarr3")
    values = pd.array(["a", None, "", "é", None], dtype="string")
    group = zarr.open_group(source, mode="r+", use_consolidated=False)
    index = make_anndata(5).obs_names
    with warnings.catch_warnings(), anndata.settings.override(allow_write_nullable_strings=True):
        warnings.simplefilter("ignore")
        anndata.io.write_elem(group, "obs", pd.DataFrame({"text": values}, index=index))
        zarr.consolidate_metadata(source)
    pack_anndata(source, tmp_path / "out")
    found = unshuffled(read(tmp_path / "out")).obs["text"]
    assert [None if value is pd.NA else value for value in found] == ["a", None, "", "é", None]


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_matrix_without_values_keeps_its_rows(tmp_path: Path, shuffle: bool) -> None:
    data = make_anndata(20, matrix=sp.csr_matrix((20, 30), dtype=np.float32))
    pack_anndata(write(data, tmp_path / "a"), tmp_path / "out", shuffle=shuffle)
    assert_same_rows(unshuffled(read(tmp_path / "out")), data)
    store = open_anndata(tmp_path / "out")
    assert store.fetch([slice(0, 20)]).take(np.arange(20)).nnz == 0


def test_files_that_zarr_leaves_out_are_not_missed(tmp_path: Path) -> None:
    # All values are in column 0, so that all indices are fill values.
    data = make_anndata(20, matrix=sp.csr_matrix(np.arange(20, dtype=np.float32)[:, None]))
    source = write(data, tmp_path / "a", "zarr3")
    assert not (source / "X" / "indices" / "c").exists()
    pack_anndata(source, tmp_path / "out")
    assert_same_rows(unshuffled(read(tmp_path / "out")), data)
    assert (tmp_path / "out" / "X" / "indices" / "c" / "0").exists()


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float16, np.int64),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (np.float64, np.int8, np.uint16, np.bool_)
        ),
    ],
)
def test_all_types_of_numbers_are_kept(tmp_path: Path, dtype: Any) -> None:
    values = (np.random.default_rng(0).random((50, 6)) * 100).astype(dtype)
    data = make_anndata(50, matrix=values)
    pack_anndata(write(data, tmp_path / "a"), tmp_path / "out", obs=[])
    found = read(tmp_path / "out")
    assert found.X.dtype == dtype
    np.testing.assert_array_equal(found.X, values[found.obs[ROW]])


@pytest.mark.parametrize("memory_budget", [2**20, pytest.param(2**26, marks=pytest.mark.slow)])
def test_compressed_chunks_side_by_side_are_read(tmp_path: Path, memory_budget: int) -> None:
    # With little memory a band of chunks over all columns is too large to be held.
    data = make_anndata(300, matrix=make_sparse(300, 2000).toarray())
    source = write(data, tmp_path / "a", compression="gzip")
    with h5py.File(source) as file:
        rows, columns = file["X"].chunks
        assert rows * 2000 * 4 > 2**20 // 8
        assert columns < 2000
    pack_anndata(source, tmp_path / "out", memory_budget=memory_budget, chunk_rows=8)
    assert_same_rows(unshuffled(read(tmp_path / "out")), data)


@pytest.mark.slow
def test_large_chunks_of_a_source_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_anndata(4000, matrix=make_sparse(4000, 100))
    source = write(data, tmp_path / "a", "zarr3")
    sizes: list[int] = []
    inner = nodes.read_runs
    monkeypatch.setattr(
        nodes,
        "read_runs",
        lambda parts: sizes.append(parts[0][1].num_entries) or inner(parts),
    )
    pack_anndata(source, tmp_path / "out", memory_budget=2**20)
    # Chunks are larger than blocks of 128 KiB, which would decode them again and again.
    nnz, chunk = data.X.nnz, zarr.open_group(source, mode="r")["X/data"].chunks[0]
    assert chunk > 2**17 // 8
    wanted = [min(chunk, nnz - at) for at in range(0, nnz, chunk)] * 2
    assert sorted(size for size in sizes if size) == sorted(wanted)


@pytest.mark.parametrize(
    ("error", "is_there", "shuffle"),
    [
        (KeyboardInterrupt(), True, True),
        (OSError(errno.ENOSPC, "No space left"), False, False),
        pytest.param(KeyboardInterrupt(), False, False, marks=pytest.mark.slow),
        pytest.param(OSError(errno.ENOSPC, "No space left"), True, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_interrupted_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    is_there: bool,
    shuffle: bool,
) -> None:
    source = write_cells(60, tmp_path / "a")
    if is_there:
        pack_anndata(source, tmp_path / "out", seed=1)
    before = read_tree(tmp_path)

    def fail(index: Any) -> bytes:
        assert partial_of(tmp_path / "out").exists()
        raise error

    monkeypatch.setattr(shards, "_encode_index", fail)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else PackError
    with pytest.raises(expected):
        # Categories of numbers are written at once, and would fail before the rows.
        pack_anndata(
            source, tmp_path / "out", seed=2, overwrite=True, shuffle=shuffle, obs=["note"]
        )
    assert read_tree(tmp_path) == before
    assert len(os.listdir(tmp_path)) == 1 + is_there


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_run_that_was_killed_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    source = write_cells(60, tmp_path / "a")
    code = (
        "import os, signal, sys\n"
        "from feedline.store import pack_anndata\n"
        "from feedline.packing.anndata.writer import AnnDataWriter\n"
        "AnnDataWriter.append = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "pack_anndata(sys.argv[1], sys.argv[2])\n"
    )
    folder = tmp_path / "out"
    job = subprocess.run([sys.executable, "-c", code, source, folder], timeout=60)
    assert job.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert (partial_of(folder) / "spills").exists()
    pack_anndata(source, folder)
    pack_anndata(source, tmp_path / "whole")
    assert read_tree(folder) == read_tree(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["a.h5ad", "out", "whole"]


def test_a_folder_that_is_there_is_kept_unless_we_wrote_it(tmp_path: Path) -> None:
    source = write_cells(30, tmp_path / "a")
    other = write(make_anndata(30), tmp_path / "other", "zarr3")
    before = read_tree(other)
    with pytest.raises(PackError, match="already exists"):
        pack_anndata(source, other)
    with pytest.raises(PackError, match="was not written by packing AnnData"):
        pack_anndata(source, other, overwrite=True)
    assert read_tree(other) == before
    with pytest.raises(InvalidValueError, match="must not be in folder"):
        pack_anndata(other, other, overwrite=True)
    with pytest.raises(InvalidValueError, match="nor contain it"):
        pack_anndata(other, other / "X" / "out")
    pack_anndata(source, tmp_path / "out", seed=1)
    pack_anndata(source, tmp_path / "out", seed=2, overwrite=True)
    assert read(tmp_path / "out").obs[ROW].tolist() == np.argsort(row_keys(2, 0, 30)).tolist()
    assert sorted(os.listdir(tmp_path)) == ["a.h5ad", "other.zarr", "out"]


def test_a_source_that_changes_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cells(30, tmp_path / "a")
    finish = AnnDataWriter.finish
    monkeypatch.setattr(
        AnnDataWriter, "finish", lambda self: os.utime(source, ns=(1, 1)) or finish(self)
    )
    with pytest.raises(PackError, match="has changed during packing"):
        pack_anndata(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.h5ad"]


def test_a_disk_that_is_too_small_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cells(30, tmp_path / "a")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))
    with pytest.raises(PackError, match="which has 100; free some space"):
        pack_anndata(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.h5ad"]
    pack_anndata(source, tmp_path / "out", shuffle=False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"chunk_rows": 8, "shard_rows": 4}, "shard_rows=4"),
        ({"memory_budget": 5}, "memory_budget=5"),
        ({"element": "layers/"}, "element='layers/'"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"obs": "size"}, "obs='size' must be a list"),
        ({"obs": ["cell"]}, "which is the index"),
        ({"source_row": "size"}, "source_row='size'"),
        ({"source_row": "a/b"}, "without slashes"),
    ],
)
def test_arguments_out_of_bounds_are_told(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    source = write_cells(10, tmp_path / "a")
    with pytest.raises(InvalidValueError, match=text):
        pack_anndata(source, tmp_path / "out", **options)
    assert os.listdir(tmp_path) == ["a.h5ad"]


def test_sources_without_rows_and_chunks_beyond_memory_are_told(tmp_path: Path) -> None:
    empty = write(make_anndata(10)[:0].copy(), tmp_path / "a")
    with pytest.raises(PackError, match="has 0 rows"):
        pack_anndata(empty, tmp_path / "out")
    wide = make_anndata(40, matrix=np.ones((40, 1000), np.float32))
    source = write(wide, tmp_path / "b")
    with pytest.raises(InvalidValueError, match="chunk_rows=40 rows have about 160000 bytes"):
        pack_anndata(source, tmp_path / "out", chunk_rows=40, memory_budget=2**20)


def test_neither_anndata_nor_pandas_is_needed(tmp_path: Path) -> None:
    source = write_cells(30, tmp_path / "a")
    code = (
        "import sys\n"
        "sys.modules['anndata'] = sys.modules['pandas'] = None\n"
        "from feedline.store import pack_anndata\n"
        "print(pack_anndata(sys.argv[1], sys.argv[2]).num_rows)\n"
    )
    command = [sys.executable, "-c", code, source, tmp_path / "out"]
    job = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (job.returncode, job.stdout) == (0, "30\n"), job.stderr
    code = code.replace("sys.modules['anndata']", "sys.modules['h5py']")
    command = [sys.executable, "-c", code, source, tmp_path / "none"]
    job = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert job.returncode == 1
    assert "install feedline[anndata]" in job.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("kind", ["h5ad", "zarr3"])
def test_a_run_killed_anywhere_from_publishing_on_is_done_when_called_again(
    tmp_path: Path, kind: str
) -> None:
    source = write(make_anndata(40), tmp_path / "a", kind)
    pack_anndata(source, tmp_path / "whole")
    (tmp_path / "parent").mkdir()
    *killed, last = run_trials(
        source=source,
        folder=tmp_path / "parent" / "out",
        is_anndata=True,
        options={},
        before=None,
        whole=tmp_path / "whole",
        has_exchange=True,
    )
    assert (last["killed"], last["found"], last["left"]) == (False, "whole", [])
    assert {trial["found"] for trial in killed} == {"nothing", "whole"}
    for trial in killed:
        assert (trial["then"], trial["found_then"], trial["left"]) == ("40 rows", "whole", [])
