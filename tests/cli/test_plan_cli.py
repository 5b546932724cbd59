"""`feedline plan`, as a user runs it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_runs import CONFIGS, check_refused, invoke, run, run_json, write_config
from feedline.runs.dry_run import dry_run
from feedline.runs.plan_report import report_plan
from feedline.runs.run_config import RunConfig
from feedline.store import pack


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_plan_is_that_of_the_library(tmp_path: Path, kind: str) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS[kind])
    found = run_json("plan", path, "--resize", "4,3,5", "--epoch", 1)
    config = RunConfig.from_dict(CONFIGS[kind])
    segment = config.plan.segment(world_size=config.ranks, batch_size=config.batch_size, epoch=1)
    assert found["num_batches"] == segment.num_batches
    assert (found["num_dropped"], found["num_padded"]) == (segment.num_dropped, segment.num_padded)
    expected = {
        "config": str(path),
        **dataclasses.asdict(report_plan(config, 1)),
        "dry_run": dataclasses.asdict(dry_run(config, [4, 3, 5], 1)),
    }
    assert found == json.loads(json.dumps(expected))
    done = run("plan", path, "--resize", "4,3,5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "equal on all ranks" in done.stdout
    assert "0 repeated, 0 missing" in done.stdout


def test_sizes_can_be_others_than_in_the_config(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    found = run_json("plan", path, "--ranks", 10, "--batch-size", 2)
    assert (found["ranks"], found["batch_size"], found["num_batches"]) == (10, 2, 50)


def test_a_trillion_samples_on_16384_ranks(tmp_path: Path) -> None:
    given = {"ranks": 16384, "batch_size": 32, "tail": "even", "data": {"samples": 10**12}}
    path = write_config(tmp_path / "run.yaml", given)
    found = run_json("plan", path, "--resize", "16384,16000,7")
    assert found["num_batches"] == -(-(10**12) // (16384 * 32))
    assert found["dry_run"]["coverage"]["num_consumed"] == 10**12
    assert found["dry_run"]["naive"]["num_repeated"] > 0


def test_a_hang_of_naive_sharding_is_told(tmp_path: Path) -> None:
    given = {"ranks": 8, "batch_size": 4, "tail": "even", "data": {"samples": 65}}
    path = write_config(tmp_path / "run.yaml", given)
    assert "it HANGS: 2 batches on some ranks and 3 on others" in run("plan", path).stdout


def test_a_folder_is_planned_from_what_is_recorded_of_it(tmp_path: Path) -> None:
    pack({"x": np.arange(500, dtype=np.int32)}, tmp_path / "data", chunk_samples=50)
    for file in tmp_path.glob("data/*.safetensors"):
        file.unlink()
    given = {"ranks": 2, "batch_size": 5, "data": {"folder": "data", "preload": 2}}
    found = run_json("plan", write_config(tmp_path / "run.yaml", given))
    assert (found["num_chunks"], found["preload"], found["num_batches"]) == (10, 2, 50)
    assert found["cost"]["epoch_bytes"] == 2000
    assert found["reads"]["total"] >= 10


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.yaml"], "none.yaml: does not exist"),
        (["wrong.yaml"], "data.sampels is not a key; did you mean data.samples?"),
        (["broken.yaml"], "broken.yaml: is not YAML"),
        (["lost.yaml"], "metadata.json: does not exist"),
        (["."], ".: must be a file"),
        (["run.yaml", "--ranks", "0"], "ranks=0 must be at least 1"),
        (["run.yaml", "--batch-size", "0"], "--batch-size=0"),
        (["run.yaml", "--batch-size", "9999"], "num_batches=0 must be at least 1"),
        (["run.yaml", "--epoch", "-1"], "epoch=-1"),
        (["run.yaml", "--resize", "4,x"], "--resize='4,x' must be two or more numbers of ranks"),
        (["run.yaml", "--resize", "4,0"], "--resize='4,0' must be two or more numbers of ranks"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    write_config(tmp_path / "wrong.yaml", {"batch_size": 1, "data": {"sampels": 1}})
    write_config(tmp_path / "lost.yaml", {"batch_size": 1, "data": {"folder": "nowhere"}})
    (tmp_path / "broken.yaml").write_text("a: [\n")
    check_refused(invoke("plan", *arguments), text)


def test_a_missing_yaml_is_named_with_its_extra(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    code = "import sys; sys.modules['yaml'] = None; from feedline.cli import main; main()"
    command = [sys.executable, "-c", code, "plan", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    check_refused(done, "install feedline[cli]")
