"""`feedline where`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli_runs import CONFIGS, check_refused, invoke, run, run_json, write_config
from feedline.plan import Replay
from feedline.runs.run_config import RunConfig
from feedline.store import FolderStore, pack


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_is_that_of_the_plan(tmp_path: Path, kind: str) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS[kind])
    found = run_json("where", path, "--step", 6, "--rank", 1, "--ranks", 3, "--epoch", 1)
    config = RunConfig.from_dict(CONFIGS[kind])
    segment = config.plan.segment(world_size=3, batch_size=config.batch_size, epoch=1)
    first = 6 * config.grad_acc_steps
    block = segment.block(1, first, first + config.grad_acc_steps)
    assert [sample["index"] for sample in found["samples"]] == block.indices.tolist()
    assert (found["epoch"], found["step"], found["rank"], found["ranks"]) == (1, 6, 1, 3)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sample_is_where_the_plan_has_it(tmp_path: Path, kind: str) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS[kind])
    found = run_json("where", path, "--index", 123, "--epoch", 1)
    config = RunConfig.from_dict(CONFIGS[kind])
    replay = Replay(
        plan=config.plan, world_size=config.ranks, batch_size=config.batch_size, epoch=1
    )
    expected = [(c.batch, c.rank, c.slot, c.is_real) for c in replay.find(123)]
    times = [(t["batch"], t["rank"], t["slot"], t["is_real"]) for t in found["times"]]
    assert times == expected


def test_a_sample_of_a_source_is_found(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS["mixture"])
    by_source = run_json("where", path, "--index", 5, "--source", "books")
    assert by_source == run_json("where", path, "--index", 905)
    assert (by_source["source"], by_source["source_index"]) == ("books", 5)
    done = run("where", path, "--index", 5, "--source", "books")
    assert (done.returncode, done.stderr) == (0, "")
    assert "books, sample 5" in done.stdout


def test_files_and_rows_are_told(tmp_path: Path) -> None:
    pack({"x": np.arange(300) + 7}, tmp_path / "data", chunk_samples=40)
    given = {"ranks": 2, "batch_size": 5, "data": {"folder": "data", "preload": 2}}
    path = write_config(tmp_path / "run.yaml", given)
    found = run_json("where", path, "--step", 3, "--rank", 1)
    store = FolderStore(tmp_path / "data")
    for sample in found["samples"]:
        assert store.read(sample["chunk"], [sample["row"]])["x"][0] == sample["index"] + 7
        assert Path(sample["file"]).is_file()
        assert f"{sample['chunk']:06d}" in sample["file"]
    done = run("where", path, "--index", 41)
    assert "chunk-000001.safetensors, chunk 1, row 1" in done.stdout


def test_a_checkpoint_brings_its_resizes_along(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    plan = RunConfig.from_dict(CONFIGS["samples"]).plan
    cursor = plan.segment(world_size=5, batch_size=8).cursor(10)
    cursor.save(tmp_path / "a.json")
    rest = plan.resume(cursor, world_size=4, batch_size=8)
    index = int(rest.batch(2, 3).indices[1])
    found = run_json("where", path, "--index", index, "--checkpoint", tmp_path / "a.json")
    (time,) = found["times"]
    assert (time["batch"], time["rank"], time["ranks"], time["slot"]) == (13, 2, 4, 1)


def test_a_dropped_sample_is_told(tmp_path: Path) -> None:
    given = {"ranks": 2, "batch_size": 4, "shuffle": False, "data": {"samples": 9}}
    path = write_config(tmp_path / "run.yaml", given)
    assert "not consumed" in run("where", path, "--index", 8).stdout
    assert run_json("where", path, "--index", 8)["times"] == []


def test_long_steps_are_cut_and_json_has_all(tmp_path: Path) -> None:
    given = {"batch_size": 100, "data": {"samples": 1000}}
    path = write_config(tmp_path / "run.yaml", given)
    assert "and 36 more; --json has all" in run("where", path, "--step", 0).stdout
    assert len(run_json("where", path, "--step", 0)["samples"]) == 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.yaml", "--step", "0"], "none.yaml: does not exist"),
        (["run.yaml"], "exactly one of --step and --index"),
        (["run.yaml", "--step", "0", "--index", "0"], "exactly one of --step and --index"),
        (["run.yaml", "--step", "0", "--source", "data"], "--source='data' needs --index"),
        (["run.yaml", "--index", "0", "--rank", "1"], "--rank=1 needs --step"),
        (["run.yaml", "--step", "31"], "step=31 must be in [0, 30]"),
        (["run.yaml", "--step", "31", "--epoch", "0"], "step=31 must be in [0, 30]"),
        (["run.yaml", "--step", "-1"], "step=-1"),
        (["run.yaml", "--step", "0", "--rank", "4"], "rank=4 must be in [0, 3]"),
        (["run.yaml", "--step", "0", "--ranks", "0"], "ranks=0"),
        (["run.yaml", "--index", "1003"], "index=1003"),
        (["run.yaml", "--index", "0", "--source", "film"], "source='film' must be one of data"),
        (["run.yaml", "--index", "0", "--checkpoint", "none"], "none: does not exist"),
        (["run.yaml", "--index", "0", "--checkpoint", "run.yaml"], "contains no cursor"),
        (["run.yaml", "--index", "0", "--checkpoint", "other.json"], "belongs to another plan"),
        (["run.yaml", "--index", "0", "--checkpoint", "other.json", "--epoch", "1"], "--epoch"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    other = RunConfig.from_dict(CONFIGS["chunks"]).plan
    other.segment(world_size=2, batch_size=2).cursor(3).save(tmp_path / "other.json")
    check_refused(invoke("where", *arguments), text)
