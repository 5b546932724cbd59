"""`feedline bench-data`, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_runs import check_refused, invoke, run
from feedline.packing import pack

QUICK = ("--seconds", "0.01", "--batch-size", "8")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two columns, of 512 and of 8 bytes a sample."""
    folder = tmp_path_factory.mktemp("bench") / "packed"
    columns = {"x": np.zeros((200, 64)), "y": np.arange(200)}
    pack(columns, folder, chunk_samples=20, progress=False)
    return folder


def test_a_table_the_bottleneck_and_advice_are_printed(packed: Path) -> None:
    done = run("bench-data", packed, *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("200 samples of 520 bytes in 10 chunks, files of ")
    stages = [line.split()[0] for line in lines if line.endswith("bottleneck") or "  " in line]
    assert {"storage", "gather", "batches"} <= set(stages)
    assert sum(line.rstrip().endswith("bottleneck") for line in lines) == 1
    assert sum(line.startswith("The bottleneck is ") for line in lines) == 1
    assert lines[-1].startswith("- ")
    assert "full shuffle" in done.stdout
    assert "windows" in done.stdout


@pytest.mark.slow
def test_the_same_as_json_and_as_a_picture(packed: Path, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    done = invoke(
        *("bench-data", packed, *QUICK, "--columns", "y", "--num-threads", 2, "--window", "40"),
        *("--memory", "1MiB", "--html", page, "--json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["row_bytes"], found["batch_size"], found["num_threads"]) == (8, 8, 2)
    assert (found["window"], found["device"]) == ("40 samples", None)
    assert found["bottleneck"] in {figure["stage"] for figure in found["figures"]}
    assert found["advice"]
    warm = next(figure for figure in found["figures"] if figure["name"] == "warm")
    # Of each sample, 8 of 520 bytes are read.
    stored = found["file_bytes"] / 200 * 8 / 520
    assert warm["rows_per_second"] == pytest.approx(warm["bytes_per_second"] / stored)
    text = page.read_text(encoding="utf-8")
    assert "packed, from its files to the training loop" in text
    assert found["html"] == str(page)
    # It may be replaced by the next one.
    assert invoke("bench-data", packed, *QUICK, "--html", page).returncode == 0


def test_splits_and_tokens_are_opened(tmp_path: Path) -> None:
    pack({"x": np.arange(100)}, tmp_path / "split", split=0.2, progress=False)
    found = json.loads(
        invoke("bench-data", tmp_path / "split", "--split", "train", *QUICK, "--json").stdout
    )
    assert found["num_samples"] == 80
    np.arange(1000, dtype="<u2").tofile(tmp_path / "tokens.bin")
    found = json.loads(
        invoke("bench-data", tmp_path / "tokens.bin", "--tokens", 10, *QUICK, "--json").stdout
    )
    assert (found["num_samples"], found["row_bytes"]) == (100, 20)


def test_bad_input_is_one_line(packed: Path, tmp_path: Path) -> None:
    def check(told: str, *arguments: object) -> None:
        check_refused(invoke("bench-data", *arguments), told)

    check("nowhere: does not exist", tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("nothing")
    check("notes.txt: is not data that can be opened", tmp_path / "notes.txt")
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    check("empty.npy: has 0 samples and must have at least 1", tmp_path / "empty.npy")
    pack({"x": np.arange(100)}, tmp_path / "split", split=0.2, progress=False)
    check("choose one of them with --split 'train'", tmp_path / "split")
    (tmp_path / "tokens.bin").write_bytes(bytes(100))
    check("tokens.bin: holds tokens, so --tokens is required", tmp_path / "tokens.bin")
    check("--tokens=0 must be at least 1", tmp_path / "tokens.bin", "--tokens", 0)
    check("columns=['z'] must be among those of", packed, "--columns", "z")
    check("--batch-size=0 must be at least 1", packed, "--batch-size", 0)
    check("--seconds=", packed, "--seconds", "-1")
    check("--num-threads='many' must be an integer", packed, "--num-threads", "many")
    check("--window='eight' must be", packed, "--window", "eight")
    check("--memory=16 must be at least", packed, "--memory", 16, "--seconds", 60)
    check("must be new, or a report", packed, "--html", tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "nothing"


@pytest.mark.parametrize("device", [None, "cpu"])
def test_torch_is_needed_for_a_device_only(packed: Path, device: str | None) -> None:
    code = "import sys; sys.modules['torch'] = None; from feedline.cli import main; main()"
    given = () if device is None else ("--device", device)
    done = subprocess.run(
        [sys.executable, "-c", code, "bench-data", str(packed), *QUICK, *given],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if device is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert "The bottleneck is" in done.stdout
    else:
        check_refused(done, "needs torch, which is not installed; install feedline[torch]")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
def test_progress_is_shown_on_a_terminal(packed: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "feedline", "bench-data", str(packed), *QUICK]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower) as running:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(leader)
    assert running.returncode == 0
    for stage in (b"storage", b"gather", b"batches"):
        assert stage in shown
