"""`feedline report` writes one HTML file of a plan, of a resized plan, or of logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runs import CONFIGS, run, run_json, write_config
from report_data import write_logs


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_plan_is_drawn(kind: str, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", CONFIGS[kind])
    done = run("report", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report.html: ")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "run.yaml, epoch 0" in page


def test_a_resized_plan_is_drawn(tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    found = run_json("report", config, "--resize", "4,3,1", "-o", "a/b.html", cwd=tmp_path)
    assert found["origin"] == "simulation"
    assert found["output"] == "a/b.html"
    assert found["verdict"]["is_good"]
    assert {"map", "runs", "coverage", "quality", "tail"} <= {p["name"] for p in found["panels"]}
    assert (tmp_path / "a" / "b.html").is_file()


def test_logs_are_drawn_beside_their_config(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs")
    config = write_config(
        tmp_path / "run.yaml", {"seed": 3, "batch_size": 4, "data": {"samples": 960}}
    )
    plain = run_json("report", logs, cwd=tmp_path)
    planned = run_json("report", logs, "--config", config, "--title", "Run 7", cwd=tmp_path)
    assert plain["verdict"]["text"] == "960 samples came exactly once in an epoch."
    assert planned["verdict"]["text"] == "960 samples came as often as planned in an epoch."
    assert (plain["title"], planned["title"]) == ("logs, as it happened", "Run 7")
    one = next(logs.rglob("rank0.log"))
    found = run_json("report", one, "--samples", 960, cwd=tmp_path)
    assert found["subtitle"] == "From 1 log of 1 run."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml: does not exist"),
        (["empty"], "empty: contains no log"),
        (["run.yaml", "--ranks", "0"], "--ranks=0 must be"),
        (["run.yaml", "--resize", "4,0"], "--resize='4,0' must be"),
        (["run.yaml", "--epoch", "-1"], "--epoch=-1 must be"),
        (["run.yaml", "--samples", "5"], "--samples cannot be used with a run config"),
        (["logs", "--resize", "4,2"], "--resize cannot be used with logs"),
        (["logs", "run.yaml"], "run.yaml: must be a log or a folder of logs"),
        (["logs", "--config", "missing.yaml"], "missing.yaml: does not exist"),
        (["logs", "--config", "run.yaml"], "has 1003 samples but must have 640 + 320, as "),
        (["logs", "--config", "run.yaml", "--samples", "5"], "--samples=5 cannot be used with"),
        (["run.yaml", "-o", "run.yaml"], "run.yaml must be new, or a report"),
        (["run.yaml", "-o", "logs"], "is a folder"),
        (["run.yaml", "--resize", "125,2000"], "resize=[125, 2000] gives 0 steps but must give"),
        # Before the logs are read, which may take long.
        (["empty", "-o", "run.yaml"], "run.yaml must be new, or a report"),
        (["wrong.yaml"], "batchsize is not a key; did you mean batch_size?"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    write_config(tmp_path / "wrong.yaml", {"batchsize": 4, "data": {"samples": 9}})
    write_logs(tmp_path / "logs")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = run("report", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_name_that_is_no_text_can_be_a_title(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.yaml")
    write_config(tmp_path / name, CONFIGS["samples"])
    done = run("report", name, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "<title>?.yaml, epoch 0</title>" in (tmp_path / "report.html").read_text()


def test_logs_are_drawn_without_rich_and_its_progress(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs")
    code = "import sys; sys.modules['rich'] = None; from feedline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "logs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
