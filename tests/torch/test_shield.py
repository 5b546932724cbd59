"""Workers pass over signals that are meant for the run, and end when their own process says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedline.torch import DataLoader
from feedline.torch.shield import Shielded
from forked import Forked
from processes import SUPPORT, environment, is_running, python
from shield_job import NUM_SAMPLES

ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@contextmanager
def started(**job: Any) -> Iterator[tuple[Forked, int]]:
    """A job that waits after its first step, and its worker."""
    defaults = {"loader": "feedline", "start_method": "fork", "preemption_signal": "TERM"}
    job = {**defaults, "hangs": False, "threads": False, "early": False, **job}
    process = Forked(
        [SUPPORT / "shield_job.py", json.dumps(job)],
        server="torch",
        env=environment(SUPPORT),
        stdin=subprocess.PIPE,
    )
    workers: list[int] = []
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        workers = [int(pid) for pid in line.split()]
        assert len(workers) == 1
        yield process, workers[0]
    finally:
        for pid in [process.pid, *workers]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


def go_on(process: Forked) -> list[str]:
    """Let the job go on, and return what it printed until its end."""
    output, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0, errors
    return output.splitlines()


@pytest.mark.parametrize(
    ("loader", "start_method"),
    [
        ("feedline", "fork"),
        pytest.param("feedline", "spawn", marks=pytest.mark.slow),
        pytest.param("plain", "fork", marks=pytest.mark.slow),
    ],
)
def test_workers_go_on_through_every_signal_of_a_job_s_end(loader: str, start_method: str) -> None:
    with started(loader=loader, start_method=start_method) as (process, worker):
        for number in (*ALL, *ALL):
            os.kill(worker, number)
        lines = go_on(process)
        assert lines == [f"{list(range(NUM_SAMPLES))} None", "0"]
        assert not is_running(worker)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "number"),
    [
        pytest.param(
            {"threads": True},
            signal.SIGTERM,
        ),
        pytest.param(
            {"early": True},
            signal.SIGTERM,
        ),
        pytest.param(
            {"preemption_signal": "XCPU"},
            signal.SIGXCPU,
        ),
        pytest.param({"loader": "plain", "threads": True}, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param({"loader": "plain", "early": True}, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_spawned_workers_go_on_through_the_signal_of_their_run(
    job: dict[str, Any], number: signal.Signals
) -> None:
    with started(start_method="spawn", **job) as (process, worker):
        os.kill(worker, number)
        assert go_on(process) == [f"{list(range(NUM_SAMPLES))} None", "0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        {"start_method": "fork"},
        pytest.param({"start_method": "forkserver"}, marks=pytest.mark.slow),
        pytest.param({"start_method": "spawn", "threads": True}, marks=pytest.mark.slow),
        pytest.param(
            {"loader": "plain", "start_method": "spawn", "threads": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_worker_that_hangs_ends_with_its_loader(job: dict[str, Any]) -> None:
    with started(hangs=True, **job) as (process, worker):
        os.kill(worker, signal.SIGTERM)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "[0, 1, 2, 3] None\n"
        assert process.stdout.readline() == "0\n", "no worker is left when the clock is closed"
        assert not is_running(worker)


def test_no_worker_outlives_a_run_that_is_killed() -> None:
    with started() as (process, worker):
        process.kill()
        process.wait(timeout=30)
        # torch's workers look for their parent every few seconds.
        end = time.monotonic() + 30
        while is_running(worker) and time.monotonic() < end:
            time.sleep(0.1)
        assert not is_running(worker)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start_method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_no_worker_outlives_a_run_that_is_killed_while_it_starts(
    tmp_path: Path, start_method: str
) -> None:
    report = tmp_path / "worker"
    with python("orphan_job.py", start_method, str(report)) as job:
        assert job.wait(timeout=90) == -signal.SIGKILL
        worker = int(report.read_text())
        end = time.monotonic() + 30
        while is_running(worker) and time.monotonic() < end:
            time.sleep(0.1)
        outlives = is_running(worker)
        if outlives:
            os.kill(worker, signal.SIGKILL)
        assert not outlives


def test_a_worker_lives_on_when_only_the_thread_ends_that_started_it() -> None:
    loader = DataLoader(list(range(40)), batch_size=4, num_workers=1, prefetch_factor=1)
    found: list[Any] = []

    def begin() -> None:
        batches = iter(loader)
        found.extend((batches, next(batches)))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    batches, first = found
    # Longer than the shield waits between two looks for its parent.
    time.sleep(2.5)
    numbers = [*first.tolist(), *(int(number) for batch in batches for number in batch)]
    assert numbers == list(range(40))


def test_a_shield_is_put_around_a_function_once() -> None:
    shield = Shielded.around(print)
    assert shield.inner is print
    assert Shielded.around(shield) == shield
    assert Shielded.around(shield, (24,)) == Shielded(print, (24,))
    assert Shielded.around(None) == Shielded()
