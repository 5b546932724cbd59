"""Real jobs, under torchrun or alone, started and ended without leaving anything behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forked import Forked

    Job = subprocess.Popen[str] | Forked

SUPPORT = Path(__file__).parent
#: The code of the tree that the tests are in, whatever is installed.
SOURCE = SUPPORT.parent.parent / "src"


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that imports the code under test, and from `folders`."""
    path = os.pathsep.join(map(str, (*folders, SOURCE)))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@contextmanager
def torchrun(
    script: str | Path, num_processes: int, *arguments: str, folder: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start `script` on several processes; whatever is left of them is killed at the end."""
    command = ["-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={num_processes}", str(SUPPORT / script), *arguments]
    with _started(command, folder) as job:
        yield job


@contextmanager
def python(
    script: str | Path, *arguments: str, folder: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start `script` as one process; it is killed at the end if it is left."""
    with _started([str(SUPPORT / script), *arguments], folder) as job:
        yield job


@contextmanager
def _started(arguments: list[str], folder: Path | None) -> Iterator[subprocess.Popen[str]]:
    job = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment(SUPPORT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        kill_job(job)
        if job.stdout is not None:
            job.stdout.close()


def kill_job(job: Job) -> None:
    """`kill -9` a job with everything that it started, ranks and workers."""
    pids = [job.pid, *_descendants(job.pid)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.wait(timeout=30)
    # A process that was killed is seen until the system has taken it down.
    end = time.monotonic() + 30
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"processes {left} outlived SIGKILL"
        time.sleep(0.01)


def finish(job: Job, timeout: float = 120) -> str:
    """Wait for a job to end well, and return what it printed."""
    output, _ = job.communicate(timeout=timeout)
    assert job.returncode == 0, output
    return output


def wait_for(condition: Callable[[], bool], job: Job, timeout: float = 90) -> None:
    """Wait until something has happened, or fail with what the job printed."""
    end = time.monotonic() + timeout
    while not condition():
        if job.poll() is not None or time.monotonic() > end:
            kill_job(job)
            output = job.stdout.read() if job.stdout else ""
            raise AssertionError(f"the job ended or took too long:\n{output}")
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended but was not waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_children(timeout: float = 20) -> dict[int, str]:
    """Wait until this process has no children; return those that it still has.

    What multiprocessing keeps for itself ends with the process.
    """
    end = time.monotonic() + timeout
    while True:
        left = {pid: _command_of(pid) for pid in _descendants(os.getpid()) if is_running(pid)}
        left = {pid: line for pid, line in left.items() if "from multiprocessing." not in line}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found
