"""Real JAX processes stop after the same step when one of them is told to."""

from __future__ import annotations

import importlib.util
import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from forked import Forked, forked_python, forked_run
from processes import environment, finish, free_port, is_free, is_running

# Not imported here: once jax is, forking is a warning, and other tests fork.
if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)


def started_rank(script: str, job: dict[str, Any]) -> AbstractContextManager[Forked]:
    return forked_python(script, json.dumps(job), server="jax")


def test_a_signal_to_one_jax_process_stops_both_after_the_same_step(tmp_path: Path) -> None:
    port = free_port()
    job = {"folder": str(tmp_path), "port": port, "world_size": 2, "send": [1, 13]}
    with ExitStack() as stack:
        started = [
            stack.enter_context(started_rank("jax_clock_job.py", {**job, "rank": rank}))
            for rank in range(2)
        ]
        for run in started:
            finish(run)
    logs = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert logs[0] == logs[1]
    *steps, (reason, is_told, state) = logs[0]
    assert steps == [[step // 10, step, [[step % 10]], step in (9, 13)] for step in range(14)]
    assert (reason, is_told) == ("rank 1 got SIGTERM", True)
    assert (state["step"], state["epoch"], state["num_batches"]) == (14, 1, 4)
    assert is_free(port)
    assert not any(is_running(run.pid) for run in started)


def test_two_jax_processes_share_the_samples_of_a_feed(tmp_path: Path) -> None:
    """Not told its rank, each of them once took itself for the only one."""
    job = {"folder": str(tmp_path), "port": free_port(), "world_size": 2}
    with ExitStack() as stack:
        started = [
            stack.enter_context(started_rank("jax_feed_job.py", {**job, "rank": rank}))
            for rank in range(2)
        ]
        for run in started:
            finish(run)
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert sorted(told[0]["ids"] + told[1]["ids"]) == list(range(40))
    assert len(told[0]["ids"]) == len(told[1]["ids"])
    assert told[0]["state"] == told[1]["state"]
    assert all("seed is 1 on rank 1 and 0 on rank 0" in of_rank["desync"] for of_rank in told)


def run_alone(code: str, **told: str) -> str:
    """Run some code in a process of its own, and return what it printed."""
    env = {**environment(), "JAX_PLATFORMS": "cpu", **told}
    done = forked_run("-c", code, server="jax", env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_jax_process_is_a_run_of_one() -> None:
    told = run_alone(
        "from feedline.jax import StepScheduler\n"
        "with StepScheduler(2, 1, 1, [1, 2, 3], num_epochs=1) as scheduler:\n"
        "    print([batches for batches in scheduler if scheduler.is_ckpt_step])\n"
        "    print(scheduler.peers.rank, scheduler.peers.world_size)\n"
    )
    assert told.splitlines() == ["[[3]]", "0 1"]


def test_a_jax_process_that_has_not_joined_is_refused() -> None:
    told = run_alone(
        "from feedline.errors import InvalidValueError\n"
        "from feedline.jax import StepScheduler\n"
        "try:\n"
        "    StepScheduler(1, 1, 1, [1])\n"
        "except InvalidValueError as error:\n"
        "    print(error)\n",
        SLURM_NTASKS="4",
    )
    assert "SLURM_NTASKS=4" in told
