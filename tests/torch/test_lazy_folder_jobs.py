"""Real processes over a folder: killed, stopped and resized, and no sample is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lazy_data import write_folder
from processes import finish, kill_job, torchrun, wait_for

SIZES = [90, 10, 0, 64, 33, 120, 84]


def arguments(folder: Path, **job: Any) -> str:
    defaults = {
        "folder": str(folder),
        "data": str(folder / "data"),
        "odd_data": None,
        "load": None,
        "stop_after": None,
        "every": 4,
        "num_workers": 1,
    }
    return json.dumps({**defaults, **job})


def received(folder: Path, run: str, num_steps: int | None = None) -> Counter[int]:
    """What all ranks of a run received, up to a step."""
    ids: Counter[int] = Counter()
    for log in folder.glob(f"{run}.rank*.jsonl"):
        for line in log.read_text().splitlines():
            step, batch = json.loads(line)
            if num_steps is None or step <= num_steps:
                ids.update(batch)
    return ids


def saved_step(checkpoint: Path) -> int:
    """The step at which a checkpoint was saved, 0 if there is none."""
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


@pytest.mark.slow
def test_killed_and_resized_runs_account_for_every_sample(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", SIZES)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    with torchrun("folder_job.py", 3, arguments(tmp_path, run="first", batch_size=4)) as run:
        wait_for(lambda: saved_step(first) >= 8, run)
        kill_job(run)
    first_step = saved_step(first)
    assert first_step < 30, "the run must be killed before its epoch ends"
    so_far = received(tmp_path, "first", first_step)
    assert len(so_far) == sum(so_far.values()) == 12 * first_step

    job = arguments(tmp_path, run="second", batch_size=3, load=str(first))
    with torchrun("folder_job.py", 2, job) as run:
        wait_for(lambda: saved_step(second) >= 8, run)
        kill_job(run)
    second_step = saved_step(second)
    so_far += received(tmp_path, "second", second_step)
    assert len(so_far) == sum(so_far.values()) == 12 * first_step + 6 * second_step
    assert len(so_far) < sum(SIZES), "the run must be killed before its epoch ends"

    job = arguments(tmp_path, run="third", batch_size=7, load=str(second))
    with torchrun("folder_job.py", 1, job) as run:
        finish(run)
    assert so_far + received(tmp_path, "third") == Counter(range(sum(SIZES)))


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_goes_on_on_more_ranks(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", SIZES)
    first = tmp_path / "first.json"
    with torchrun("folder_job.py", 2, arguments(tmp_path, run="first", batch_size=4)) as run:
        wait_for(lambda: saved_step(first) >= 4, run)
        # torchrun passes it on to the ranks, as it does for a scheduler.
        os.kill(run.pid, signal.SIGTERM)
        output, _ = run.communicate(timeout=90)
    step = saved_step(first)
    logs = [log.read_text().splitlines() for log in tmp_path.glob("first.rank*.jsonl")]
    assert [len(lines) for lines in logs] == [step, step], output
    assert step < 45, "the run must be stopped before its epoch ends"
    job = arguments(tmp_path, run="second", batch_size=5, num_workers=2, load=str(first))
    with torchrun("folder_job.py", 3, job) as run:
        finish(run)
    everything = received(tmp_path, "first") + received(tmp_path, "second")
    assert everything == Counter(range(sum(SIZES)))


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        pytest.param("content", "plan.data.parts[1]", marks=pytest.mark.slow),
        pytest.param("sizes", "num_batches", marks=pytest.mark.slow),
    ],
)
def test_ranks_with_different_folders_are_told_before_the_first_batch(
    odd: str, told: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", [30, 30, 30])
    if odd == "content":
        write_folder(tmp_path / "odd", [30, 30, 30], first_id=1)
    else:
        write_folder(tmp_path / "odd", [30, 30, 90])
    job = arguments(tmp_path, run="run", batch_size=4, odd_data=str(tmp_path / "odd"))
    with torchrun("folder_job.py", 3, job) as run:
        finish(run)
    for rank in range(3):
        message = (tmp_path / f"run.rank{rank}.error").read_text()
        assert "the 3 ranks do not agree" in message
        assert "plan.data.fingerprint" in message
        assert "on rank 1 and" in message
        assert told.partition("[")[0] in message
    assert received(tmp_path, "run") == Counter()
