"""Jobs under torchrun, started and ended without leaving anything behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import FeedlineError

_TIMEOUT = 90.0


@dataclass(frozen=True)
class Job:
    """A module that runs on several processes."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raise if the job ends first, or takes too long."""
        end = time.monotonic() + _TIMEOUT
        while not condition():
            if self.process.poll() is not None:
                raise self._failed(f"ended with exit code {self.process.returncode} too early")
            if time.monotonic() > end:
                raise self._failed(f"took more than {_TIMEOUT:.0f} seconds")
            time.sleep(0.05)

    def finish(self, while_waiting: Callable[[], object]) -> None:
        """Wait for the job to end with exit code 0."""
        end = time.monotonic() + _TIMEOUT
        while self.process.poll() is None and time.monotonic() < end:
            while_waiting()
            time.sleep(0.05)
        if self.process.poll() != 0:
            raise self._failed(f"ended with exit code {self.process.poll()} instead of 0")

    def kill(self) -> int:
        """`kill -9` the job with all its processes, and return their number."""
        pids = [self.process.pid, *_descendants(self.process.pid)]
        groups = set()
        for pid in pids:
            with suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Ranks lead their own groups, so even a worker that is just starting is found.
        for group in groups - {os.getpgid(0)}:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()
        # A killed process needs a moment to be gone.
        end = time.monotonic() + _TIMEOUT
        while time.monotonic() < end and set(pids) & {pid for pid, _ in _parents()}:
            time.sleep(0.02)
        return len(pids)

    def _failed(self, what: str) -> FeedlineError:
        lines = self.output.read_text(errors="replace").splitlines()[-20:]
        return FeedlineError("\n".join([f"{self.name} {what}; it printed last:", *lines]))


@contextmanager
def launched(
    name: str, module: str, argument: dict[str, Any], *, num_processes: int, output: Path
) -> Iterator[Job]:
    """Start a module under torchrun; processes left at the end are killed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={num_processes}", "-m", module, json.dumps(argument)]
    with output.open("wb") as file:
        # Apart from our terminal: an interrupt is for us, and we end the job.
        process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    job = Job(name, process, output)
    try:
        yield job
    finally:
        if process.poll() is None:
            job.kill()


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process."""
    listed = _parents()
    found: set[int] = set()
    while more := {child for child, parent in listed if parent in {pid, *found}} - found:
        found |= more
    return sorted(found)


def _parents() -> list[tuple[int, int]]:
    """Return all running processes, each with its parent."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
        )
        rows = (line.split() for line in listed.stdout.splitlines())
        return [(int(pid), int(parent)) for pid, parent, state in rows if state[0] != "Z"]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may have ended meanwhile.
        with suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                found.append((int(path.parent.name), int(fields[1])))
    return found
