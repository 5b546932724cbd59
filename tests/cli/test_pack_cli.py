"""`feedline pack` and `feedline verify`, as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline
from cli_runs import check_refused, invoke, run
from feedline.packing import FORMATS, pack
from pack_data import make_arrays, make_source, partial_of, read_folder, read_tree


def test_pack_and_verify_work_together(tmp_path: Path) -> None:
    source = make_source("csv", make_arrays(2000), tmp_path / "source")
    folder = tmp_path / "out"
    options = ["--shuffle", "--seed", 7, "--split", "0.1", "--chunk-samples", 300]
    done = run("pack", source, folder, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2,000 samples in 7 chunks" in done.stdout
    assert "train: 1,800 samples" in done.stdout
    pack(source, tmp_path / "same", shuffle=True, seed=7, split=0.1, chunk_samples=300)
    assert read_tree(folder) == read_tree(tmp_path / "same")
    done = run("verify", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all is well" in done.stdout


def test_every_option_reaches_pack(tmp_path: Path) -> None:
    source = make_source("parquet", make_arrays(500), tmp_path / "source")
    options = [
        *("--format", "pt", "--column", "sequences/item=item", "--column", "targets/y=score"),
        *("--chunk-bytes", "8KiB", "--split", "train=0.8,test=0.1,validation=0.1"),
        *("--threads", 2, "--memory", "16MiB", "--json"),
    ]
    done = run("pack", source, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["splits"] == {"train": 400, "test": 50, "validation": 50}
    assert result["num_samples"] == 500
    # 40 bytes a sample, with the ids that the format adds.
    assert result["num_chunks"] == 4
    assert {column["name"] for column in result["columns"]} > {"sequences/item", "targets/y"}
    found = read_folder(tmp_path / "out" / "test")
    assert found["targets/y"].dtype == np.float64
    again = run("pack", source, tmp_path / "out", *options, "--overwrite", "--no-resume", "--quiet")
    assert again.returncode == 0, again.stderr


def test_several_sources_and_quiet(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"x": 1}\n' * 10)
    done = run("pack", tmp_path / "0.jsonl", tmp_path / "1.jsonl", tmp_path / "out", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(read_folder(tmp_path / "out")["x"]) == 20


def test_faults_are_listed_and_exit_with_1(tmp_path: Path) -> None:
    pack({"x": np.arange(100)}, tmp_path / "out", chunk_samples=10)
    (tmp_path / "out" / "chunk-000003.safetensors").write_bytes(b"altered")
    (tmp_path / "out" / "chunk-000007.safetensors").unlink()
    done = run("verify", tmp_path / "out")
    assert done.returncode == 1
    assert "chunk-000003" in done.stderr
    assert "chunk-000007" in done.stderr
    assert "2 faults" in done.stdout
    done = run("verify", tmp_path / "out", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["ok"] is False
    assert [Path(fault["path"]).name for fault in result["faults"]] == [
        "chunk-000003.safetensors",
        "chunk-000007.safetensors",
    ]


def test_missing_checksums_are_told(tmp_path: Path) -> None:
    pack({"x": np.arange(10)}, tmp_path / "out")
    path = tmp_path / "out" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["batch_files"][0]["checksum"]
    path.write_text(json.dumps(metadata))
    done = run("verify", tmp_path / "out")
    assert done.returncode == 0
    assert "1 of 1 chunk without a checksum" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["good.csv", "out", "--chunk-samples", "0"], "--chunk-samples=0"),
        (["good.csv", "out", "--chunk-samples", "1", "--chunk-bytes", "1"], "one of"),
        (["good.csv", "out", "--chunk-bytes", "64 apples"], "64 apples"),
        (["good.csv", "out", "--split", "a=b"], "'a=b'"),
        (["good.csv", "out", "--split", "1.5"], "--split=1.5"),
        (["good.csv", "out", "--column", "../x=x"], "../x"),
        (["good.csv", "out", "--column", "x", "--column", "x"], "twice"),
        (["bad.jsonl", "out"], "'s' is of type string"),
        (["bad.jsonl", "out"], "exclude it with --column"),
        (["good.csv", "there"], "--overwrite"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    (tmp_path / "good.csv").write_text("x\n1\n2\n")
    (tmp_path / "bad.jsonl").write_text('{"x": 1, "s": ["a"]}\n')
    pack({"x": np.arange(3)}, tmp_path / "there")
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    check_refused(invoke("pack", *arguments), text)
    assert sorted(tmp_path.iterdir()) == before


def test_formats_are_those_of_the_library() -> None:
    done = invoke("pack", "a.csv", "out", "--format", "zip")
    check_refused(done, ", ".join(map(repr, FORMATS)))


def test_version_is_that_of_the_package() -> None:
    assert run("--version").stdout.split()[-1] == feedline.__version__


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupted_command_says_so_and_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "a.npy"
    np.save(source, np.arange(10_000))
    folder = tmp_path / "out"
    command = ["pack", source, folder, "--chunk-samples", 10, "--format", "npy"]
    job = subprocess.Popen(
        [sys.executable, "-m", "feedline", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets what runs in its background ignore interrupts; commands inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (partial_of(folder) / "data" / "chunk-000100").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    job.send_signal(signal.SIGINT)
    output, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    assert (output, errors) == ("", "Interrupted; the same command resumes from here.\n")
    assert not folder.exists()
    done = run("pack", source, folder, "--chunk-samples", 10, "--format", "npy", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_resumed_chunks"] >= 50
    assert read_folder(folder)["data"].tolist() == list(range(10_000))


@pytest.mark.parametrize("library", ["click", "pyarrow"])
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, library: str) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    code = f"import sys; sys.modules[{library!r}] = None; from feedline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "pack", "a.csv", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert f"feedline[{'cli' if library == 'click' else 'arrow'}]" in done.stderr
    assert "Traceback" not in done.stderr
