"""`feedline inspect` of logs, as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli_runs import check_refused, invoke, run, run_json
from feedline.feed import Wait
from feedline.runs import ConsumptionLog


def write(path: Path, *, rank: int = 0, run: str = "first", **info: Any) -> Path:
    """Write the log of a rank that was in two epochs, and waited 6 seconds in all."""
    with ConsumptionLog(path, rank=rank, world_size=2, run=run, info=info) as log:
        log.event("resume", step=7, time=1_700_000_000)
        log.record(epoch=1, step=7, batch=0, ids=[3, 1], wait=1.0)
        log.record(epoch=1, step=8, batch=1, ids=[2, 0], is_real=[True, False], wait=4.0)
        log.event("epoch_end", epoch=1, step=8)
        log.event("checkpoint", step=9, time=1_700_000_060, file="a.pt")
        log.record(epoch=2, step=9, batch=0, ids=[1], wait=1.0)
        log.event("stop")
    return path


def test_a_log_is_described(tmp_path: Path) -> None:
    path = write(tmp_path / "rank1.log", rank=1, num_samples=4, tail="pad")
    found = run_json("inspect", path)
    assert found["kind"] == "log of one rank"
    assert (found["run"], found["rank"], found["world_size"]) == ("first", 1, 2)
    assert found["info"] == {"num_samples": 4, "tail": "pad"}
    assert (found["num_batches"], found["num_samples"], found["num_padded"]) == (3, 5, 1)
    assert (found["first_step"], found["last_step"]) == (7, 9)
    waits = {"total_seconds": 6.0, "mean_seconds": 2.0, "longest_seconds": 4.0}
    assert found["wait"] == waits
    assert (found["is_cut_short"], found["num_bytes"]) == (False, path.stat().st_size)
    first, second = found["epochs"]
    assert first == {
        **{"epoch": 1, "first_step": 7, "last_step": 8},
        **{"num_batches": 2, "num_samples": 4, "num_padded": 1},
    }
    assert (second["epoch"], second["num_batches"]) == (2, 1)
    names = [event["event"] for event in found["events"]]
    assert names == ["resume", "epoch_end", "checkpoint", "stop"]
    assert found["events"][2]["step"] == 9
    assert found["events"][2]["file"] == "a.pt"


def test_the_parts_of_waiting_are_shown_where_a_log_has_them(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0], wait=Wait(4.0, reading=2.5, copying=1.0))
        # A run of an older release may have begun it.
        log.record(epoch=0, step=1, batch=1, ids=[1], wait=8.0)
        log.record(epoch=0, step=2, batch=2, ids=[2], wait=Wait(1.0, reading=0.5))
    found = run_json("inspect", tmp_path / "a.log")["wait"]
    parts = {"reading_seconds": 3.0, "copying_seconds": 1.0, "handing_over_seconds": 1.0}
    whole = {"total_seconds": 13.0, "mean_seconds": pytest.approx(13 / 3), "longest_seconds": 8.0}
    assert found == {**whole, **parts}


def test_people_get_tables_of_epochs_and_events(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.log")
    done = run("inspect", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{path}: log of one rank\n")
    assert "mean_seconds: 2\n" in done.stdout
    assert "is_cut_short: no" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "7", "8", "2", "4", "1"] in rows
    assert ["checkpoint", "2023-11-14", "22:14:20", "9", "a.pt"] in rows


@pytest.mark.parametrize("num_bytes", [1, 12, 30])
def test_an_end_that_was_cut_short_is_told(tmp_path: Path, num_bytes: int) -> None:
    path = write(tmp_path / "rank0.log")
    path.write_bytes(path.read_bytes()[:-num_bytes])
    found = run_json("inspect", path)
    assert found["is_cut_short"] is True
    assert [event["event"] for event in found["events"]] == ["resume", "epoch_end", "checkpoint"]
    assert "is_cut_short: yes" in invoke("inspect", path).stdout


def test_a_log_without_records_is_described(tmp_path: Path) -> None:
    ConsumptionLog(tmp_path / "rank0.log", rank=0, world_size=1).close()
    found = run_json("inspect", tmp_path / "rank0.log")
    assert (found["num_batches"], found["first_step"], found["epochs"]) == (0, None, [])
    assert (found["wait"]["mean_seconds"], found["is_cut_short"]) == (0, False)


def test_a_folder_of_logs_is_described(tmp_path: Path) -> None:
    for run_name in ("second", "first"):
        for rank in range(2):
            write(tmp_path / "logs" / run_name / f"rank{rank}.log", rank=rank, run=run_name)
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    found = run_json("inspect", tmp_path / "logs")
    assert (found["kind"], found["num_logs"], found["num_runs"]) == ("folder of logs", 4, 2)
    assert (found["num_batches"], found["num_samples"], found["num_cut_short"]) == (12, 20, 0)
    assert [(log["run"], log["rank"]) for log in found["logs"]] == [
        *(("first", 0), ("first", 1)),
        *(("second", 0), ("second", 1)),
    ]
    assert found["logs"][0]["events"][0]["event"] == "resume"
    done = run("inspect", tmp_path / "logs")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[:-1] for line in done.stdout.splitlines()]
    assert ["second", "1", "2", "3", "5", "7", "9", "2", "4", "stop", "no"] in rows


def test_long_logs_are_cut_in_the_middle_and_json_has_all(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1) as log:
        for step in range(100):
            log.event("checkpoint", step=step)
    shown = invoke("inspect", tmp_path / "a.log").stdout
    assert "and 60 more between the first and the last 20; --json has all" in shown
    assert [line.split()[-1] for line in shown.splitlines() if "checkpoint" in line] == [
        *(str(step) for step in range(20)),
        *(str(step) for step in range(80, 100)),
    ]
    assert len(run_json("inspect", tmp_path / "a.log")["events"]) == 100


def test_waits_that_are_no_numbers_are_null_in_json(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0], wait=float("inf"))
    found = run_json("inspect", tmp_path / "a.log")
    assert found["wait"] == dict.fromkeys(found["wait"])


def test_logs_have_no_cursor_to_compare(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.log")
    check_refused(
        invoke("inspect", path, "--against", "run.yaml"),
        "compare logs with feedline audit --config",
    )
