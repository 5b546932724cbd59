"""`feedline demo`: a real training that is stopped, resized and killed, and its audit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from feedline.errors import StoreError
from feedline.runs import LoggedEvent, read_log
from processes import is_running

COMMAND = [sys.executable, "-m", "feedline", "demo"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


def pids_in(folder: Path) -> list[int]:
    """The ranks that have begun, as they say in their logs."""
    found = []
    for path in folder.rglob("rank*.log"):
        try:
            entries = read_log(path).entries
        except StoreError:
            continue
        events = [entry for entry in entries if isinstance(entry, LoggedEvent)]
        found += [event.fields["pid"] for event in events if "pid" in event.fields]
    return found


@pytest.mark.slow
def test_the_demo_ends_with_every_sample_exactly_once(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = run("--folder", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("rank 1 got SIGTERM", "kill -9", "finished the epoch with step 99"):
        assert part in done.stdout
    assert "audit: 4,800 samples, each exactly once" in done.stdout
    report = (folder / "report.html").read_text()
    assert "4,800 samples came exactly once in an epoch." in report
    assert "rank 1 got SIGTERM" in report
    pids = pids_in(folder)
    assert len(pids) == 2 + 3 + 1
    assert not any(map(is_running, pids))
    # What was printed is in the logs, for anyone to audit again.
    command = [sys.executable, "-m", "feedline", "audit", str(folder / "logs"), "--json"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    result = json.loads(again.stdout)
    assert [run["world_size"] for run in result["runs"]] == [2, 3, 1]
    assert [source["name"] for source in result["epochs"][0]["sources"]] == ["web", "books"]
    assert result["runs"][1]["num_discarded_samples"] > 0, "killed after its checkpoint"
    assert result["is_finished"]


@pytest.mark.slow
def test_a_sample_that_a_process_leaves_out_is_found(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = run("--drop-one", "--json", "--report", report)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads(done.stdout)
    (epoch,) = result["epochs"]
    assert (epoch["num_lost"], epoch["num_repeated"]) == (1, 0)
    assert len(epoch["lost"]) == 1
    assert all(run["ok"] for run in result["runs"])
    assert result["report"] == str(report)
    assert "The audit fails: 1 lost." in report.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_an_interrupted_demo_leaves_no_process_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets what runs in its background ignore interrupts; commands inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as job:
        end = time.monotonic() + 90
        while len(pids := pids_in(tmp_path)) < 2:
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        started = [pid for parent in pids for pid in children_of(parent)]
        job.send_signal(number)
        _, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    assert errors == "Interrupted; all processes of the demo have ended.\n"
    assert not any(is_running(pid) for pid in [*pids, *started])


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_without_torch_the_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; from feedline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "feedline[torch]" in done.stderr


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = run("--folder", tmp_path)
    assert done.returncode == 2
    assert "must be new or empty" in done.stderr
    assert os.listdir(tmp_path) == ["mine"]
