"""Runs a story as real processes, and says how it went. Nothing of it is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from forked import Forked
from known_trainers import Trainer
from processes import SUPPORT, environment, kill_job
from trainer_checks import faults_of, read_logs
from trainer_job import REFUSED
from trainer_stories import Story

HARNESS = Path(__file__).parent
#: What one run may take, which is much more than it does on an idle machine.
SECONDS_PER_RUN = 300.0
#: How long the others may take to end when one rank has failed.
SECONDS_OF_GRACE = 5.0
# Below those that the system gives to connections, which would take one between choice and use.
_PORTS = (20_000, 32_000)
# What the fork server has not: the folders that a script of its own interpreter finds modules in.
_AS_SCRIPT = """
import os, runpy, sys
sys.argv.pop(0)
sys.path[:0] = [os.path.dirname(sys.argv[0]), HARNESS]
runpy.run_path(sys.argv[0], run_name="__main__")
""".replace("HARNESS", repr(str(HARNESS)))
# The first one starts the fork server.
_one_at_a_time = threading.Lock()
# Python 3.11 ends a thread of torch's that drops a tensor while the interpreter shuts down, and C++
# then aborts the process, whose work is done. DistributedDataParallel keeps such threads.
ABORTED_AT_EXIT = "terminate called without an active exception"
_IN_USE = ("EADDRINUSE", "address already in use", "Address already in use")


@dataclass(frozen=True)
class Outcome:
    """How a story went: `exact`, `refused` by the trainer's job, or `failed`; and why."""

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def tell(story: Story, trainer: Trainer, seconds: float = SECONDS_PER_RUN) -> Outcome:
    """Run a story and return its outcome."""
    with tempfile.TemporaryDirectory(prefix="feedline-story-") as temporary:
        folder, log = Path(temporary) / "checkpoints", Path(temporary) / "log"
        for path in (folder, log):
            path.mkdir()
        for number in range(len(story.runs)):
            settings = Path(temporary) / f"settings-{number}.json"
            settings.write_text(json.dumps(story.settings(number, str(folder), str(log))))
            ended = run(story, number, trainer, settings, seconds)
            if ended.kind != "exact":
                return ended
        faults = faults_of(story, read_logs(story, log))
    return Outcome("failed", "; ".join(faults)) if faults else Outcome("exact")


def run(story: Story, number: int, trainer: Trainer, settings: Path, seconds: float) -> Outcome:
    """Run the processes of one run to their end; another port is tried if one was taken."""
    log = settings.parent / "log"
    for _ in range(3):
        ended = _run_once(story.runs[number].num_processes, trainer, settings, seconds, number)
        is_begun = any(log.glob(f"run{number}-rank*.jsonl"))
        if is_begun or not any(text in ended.reason for text in _IN_USE):
            break
    return ended


def _run_once(
    num_processes: int, trainer: Trainer, settings: Path, seconds: float, number: int
) -> Outcome:
    is_own = trainer.has_own_launcher
    variables = environment(SUPPORT, HARNESS) | trainer.variables
    variables |= {"TMPDIR": str(settings.parent), "FEEDLINE_TRAINER": trainer.name}
    ranks: list[dict[str, str]] = [{}] if is_own else list(_rank_variables(num_processes))
    with ExitStack() as stack:
        jobs, outputs = [], []
        for rank, more in enumerate(ranks):
            outputs.append(settings.parent / f"run{number}-rank{rank}.out")
            job = _started(
                [str(trainer.job), str(settings)], trainer, variables | more, outputs[-1]
            )
            jobs.append(stack.enter_context(job))
        codes = _wait(jobs, seconds)
        left = [] if any(codes) else _left_of(jobs)
    printed = [path.read_text(encoding="utf-8", errors="replace").strip() for path in outputs]
    for rank, text in enumerate(printed):
        if codes[rank] == -signal.SIGABRT and text.endswith(ABORTED_AT_EXIT):
            codes[rank] = 0
    if REFUSED in codes:
        return Outcome("refused", printed[codes.index(REFUSED)].rpartition("\n")[2])
    if any(codes):
        told = "\n".join(
            f"rank {n} ended with {codes[n]}:\n{printed[n][-3000:]}" for n in range(len(codes))
        )
        return Outcome("failed", f"run {number}: {told}")
    if left:
        return Outcome("failed", f"run {number}: processes are left: {left}")
    return Outcome("exact")


def _left_of(jobs: list[Forked | subprocess.Popen[str]]) -> list[int]:
    """Return what the ranks have left running; workers may take a moment to end."""
    end = time.monotonic() + SECONDS_OF_GRACE
    while left := [pid for job in jobs for pid in session_of(job.pid)]:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return left


def _rank_variables(num_processes: int) -> Iterator[dict[str, str]]:
    """Yield what torchrun tells each of its processes."""
    port = _free_port()
    for rank in range(num_processes):
        yield {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
            **{"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        }


def _free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def _started(
    arguments: list[str], trainer: Trainer, variables: dict[str, str], output: Path
) -> Iterator[Forked | subprocess.Popen[str]]:
    """Start one process; it is killed at the end, with all that it has started."""
    with output.open("w", encoding="utf-8") as file:
        job: Forked | subprocess.Popen[str]
        if trainer.preload:
            with _one_at_a_time:
                job = Forked(
                    ["-c", _AS_SCRIPT, *arguments],
                    # That of torch, where there is torch.
                    server="numpy" if find_spec("torch") is None else "torch",
                    preload=trainer.preload,
                    cwd=output.parent,
                    env=variables,
                    stdout=file.fileno(),
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        else:
            job = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=output.parent,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
    try:
        yield job
    finally:
        kill_job(job)
        for pid in session_of(job.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if isinstance(job, Forked):
            job.close()


def session_of(leader: int) -> list[int]:
    """Return the running processes of a session; workers stay in it when their rank has ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def _wait(jobs: list[Forked | subprocess.Popen[str]], seconds: float) -> list[int]:
    """Return the exit codes; where one rank has failed or time is over, the others are killed."""
    end = time.monotonic() + seconds
    while True:
        codes = [job.poll() for job in jobs]
        if all(code is not None for code in codes):
            return [code or 0 for code in codes]
        if any(codes):
            end = min(end, time.monotonic() + SECONDS_OF_GRACE)
        if time.monotonic() > end:
            for job in jobs:
                kill_job(job)
            return [-9 if code is None else code for code in codes]
        time.sleep(0.02)
