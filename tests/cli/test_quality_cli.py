"""`feedline quality`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

from cli_runs import CONFIGS, check_refused, run, run_json, write_config
from feedline.runs.run_config import RunConfig
from feedline.runs.shuffle_quality import measure_quality


def test_a_good_shuffle_passes(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", CONFIGS["mixture"])
    found = run_json("quality", path, "--epoch", 1, "--strict")
    expected = measure_quality(RunConfig.from_dict(CONFIGS["mixture"]), 1)
    assert found["is_good"] is True
    assert [m["value"] for m in found["measures"]] == [m.value for m in expected.measures]
    done = run("quality", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "as good as chance" in done.stdout
    assert "position correlation" in done.stdout


def test_no_shuffle_fails_where_it_is_asked_to(tmp_path: Path) -> None:
    given = {**CONFIGS["samples"], "shuffle": False}
    path = write_config(tmp_path / "run.yaml", given)
    done = run("quality", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not a perfect shuffle" in done.stdout
    found = run_json("quality", path, "--strict", code=1)
    assert found["is_good"] is False


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    write_config(tmp_path / "wrong.yaml", {**CONFIGS["samples"], "tails": 1})
    check_refused(run("quality", "none.yaml", cwd=tmp_path), "none.yaml: does not exist")
    check_refused(run("quality", "wrong.yaml", cwd=tmp_path), "did you mean tail?")
    check_refused(run("quality", "run.yaml", "--epoch", "-1", cwd=tmp_path), "epoch=-1")
