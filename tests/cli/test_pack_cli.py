"""`feedline pack` and `feedline verify`, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import feedline
from feedline.cli.commands import feedline as commands
from feedline.store.packing import pack
from pack_data import make_arrays, make_source, partial_of, read_folder, read_tree


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "feedline", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
    )


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
    assert "1 of 1 chunks have no checksum" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pack", "good.csv", "out", "--chunk-samples", "0"], 2, "chunk_samples=0"),
        (["pack", "good.csv", "out", "--chunk-samples", "1", "--chunk-bytes", "1"], 2, "one of"),
        (["pack", "good.csv", "out", "--chunk-bytes", "64 apples"], 2, "64 apples"),
        (["pack", "good.csv", "out", "--split", "a=b"], 2, "'a=b'"),
        (["pack", "good.csv", "out", "--split", "1.5"], 2, "split=1.5"),
        (["pack", "good.csv", "out", "--format", "zip"], 2, "zip"),
        (["pack", "good.csv", "out", "--column", "../x=x"], 2, "../x"),
        (["pack", "good.csv", "out", "--column", "x", "--column", "x"], 2, "twice"),
        (["pack", "good.csv"], 2, "Missing argument"),
        (["pack", "none.csv", "out"], 2, "none.csv"),
        (["pack", "bad.csv", "out"], 1, "'s' is of type string"),
        (["pack", "bad.csv", "out"], 1, "leave it out by --column"),
        (["pack", "good.csv", "there"], 1, "--overwrite"),
        (["verify", "none"], 1, "metadata.json"),
        (["verify", "good.csv"], 1, "metadata.json"),
        (["unpack"], 2, "unpack"),
    ],
)
def test_failures_are_one_message_and_an_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    (tmp_path / "good.csv").write_text("x\n1\n2\n")
    (tmp_path / "bad.csv").write_text("x,s\n1,a\n")
    pack({"x": np.arange(3)}, tmp_path / "there")
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)
    assert text in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("columns", "code"), [("s", 1), ("../x=x", 2)])
def test_failures_have_no_trace(tmp_path: Path, columns: str, code: int) -> None:
    (tmp_path / "bad.csv").write_text("x,s\n1,a\n")
    done = run("pack", "bad.csv", "out", "--column", columns, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("command", [[], ["pack"], ["verify"]])
def test_help_has_examples(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Examples:\n    feedline " in done.stdout


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
    assert (output, errors) == ("", "Interrupted; the same command goes on from here.\n")
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


def test_the_command_line_imports_no_framework(tmp_path: Path) -> None:
    code = "import sys, feedline.cli.commands; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"torch", "pyarrow", "jax", "rich", "pandas"} & set(done.stdout.split())
    assert os.listdir(tmp_path) == []
