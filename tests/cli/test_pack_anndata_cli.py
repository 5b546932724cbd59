"""`feedline pack` from AnnData files, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from anndata_data import make_anndata, read, write, write_cells
from cli_runs import check_refused, invoke, run
from feedline.packing.anndata.writer import AnnDataWriter
from feedline.store import pack_anndata
from pack_data import read_tree


def test_several_files_are_packed_as_by_the_function(tmp_path: Path) -> None:
    sources = [
        write_cells(40, tmp_path / "a"),
        write(make_anndata(50, 1), tmp_path / "b", "zarr3"),
    ]
    done = run("pack", *sources, "out.zarr", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "out.zarr: 90 rows and 30 columns" in done.stdout
    assert "X: sparse float32" in done.stdout
    assert "obs: label, stage" in done.stdout
    pack_anndata(sources, tmp_path / "same.zarr")
    assert read_tree(tmp_path / "out.zarr") == read_tree(tmp_path / "same.zarr")


def test_every_option_reaches_the_function(tmp_path: Path) -> None:
    source = write_cells(100, tmp_path / "a")
    options = [
        *("--element", "layers/dense", "--obs", "size", "--obs", "label", "--chunk-rows", 8),
        *("--shard-rows", 32, "--seed", "seven", "--memory", "16MiB", "--json", "--no-source-row"),
    ]
    done = run("pack", source, "out", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["num_rows"], result["is_sparse"]) == (100, False)
    assert result["obs"] == ["size", "label"]
    assert result["folder"] == str(tmp_path / "out")
    expected = {"obs": ["size", "label"], "chunk_rows": 8, "shard_rows": 32, "seed": "seven"}
    pack_anndata(source, tmp_path / "same", element="layers/dense", source_row=None, **expected)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "same")
    again = [*options[:-2], "--overwrite", "--quiet", "--no-shuffle"]
    done = run("pack", source, "out", *again, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read(tmp_path / "out").obs["feedline_source_row"].tolist() == list(range(100))


def test_a_zarr_folder_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    for kind in ("zarr2", "zarr3"):
        write(make_anndata(10), tmp_path / "a", kind).rename(tmp_path / kind)
        done = run("pack", kind, f"out-{kind}", "--quiet", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert read(tmp_path / f"out-{kind}").n_obs == 10


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.h5ad", "out", "--split", "0.1"], "--split is for files of rows, not for AnnData"),
        (["a.h5ad", "out", "--format", "pt"], "--format is for"),
        (["a.h5ad", "out", "--column", "x"], "--column is for"),
        (["a.h5ad", "out", "--chunk-samples", "5"], "--chunk-samples is for"),
        (["a.h5ad", "out", "--threads", "2"], "--threads is for"),
        (["a.h5ad", "out", "--no-resume"], "--no-resume is for"),
        (["a.csv", "out", "--obs", "x"], "--obs is for AnnData"),
        (["a.csv", "out", "--chunk-rows", "5"], "--chunk-rows is for AnnData"),
        (["a.csv", "out", "--element", "X"], "--element is for AnnData"),
        (["a.csv", "a.h5ad", "out"], "pack each kind separately"),
        (["none.h5ad", "out"], "none.h5ad"),
        (["none.zarr", "out"], "none.zarr"),
        (["a.h5ad", "out", "--chunk-rows", "0"], "--chunk-rows=0"),
        (["a.h5ad", "out", "--memory", "5"], "--memory=5"),
        (["a.h5ad", "out", "--obs", "colour"], "choose the columns with --obs"),
        (["a.h5ad", "out", "--element", "layers/x"], "with --element"),
        (["a.h5ad", "there"], "replace it with --overwrite"),
        (["bad.h5ad", "out"], "X/indptr: goes from 0 to"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    source = write_cells(10, tmp_path / "a")
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "there").mkdir()
    (tmp_path / "bad.h5ad").write_bytes(source.read_bytes())
    with h5py.File(tmp_path / "bad.h5ad", "r+") as file:
        file["X/indptr"][-1] = 1
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    check_refused(invoke("pack", *arguments), text)
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_command_says_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cells(10, tmp_path / "a")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AnnDataWriter, "append", interrupted)
    monkeypatch.setattr(AnnDataWriter, "finish", lambda *_: pytest.fail("went on"))
    done = invoke("pack", source, tmp_path / "out")
    assert done.returncode == 130
    assert done.stderr == "Interrupted; nothing was written.\n"
    assert os.listdir(tmp_path) == ["a.h5ad"]


def test_progress_is_shown_on_request_only(tmp_path: Path) -> None:
    source = write_cells(20, tmp_path / "a")
    code = (
        "import sys; from feedline.store import pack_anndata; "
        "pack_anndata(sys.argv[1], sys.argv[2], progress=True)"
    )
    command = [sys.executable, "-c", code, source, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "dealing" in done.stderr
    assert "shuffling" in done.stderr
    assert "20 rows" in done.stderr


def test_h5py_is_named_with_its_extra_where_it_is_missing(tmp_path: Path) -> None:
    write_cells(10, tmp_path / "a")
    code = "import sys; sys.modules['h5py'] = None; from feedline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "pack", "a.h5ad", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 2
    assert "install feedline[anndata]" in done.stderr
    assert "Traceback" not in done.stderr
    assert np.array_equal(os.listdir(tmp_path), ["a.h5ad"])
