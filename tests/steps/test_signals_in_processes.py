"""What signals do to whole processes: to those that listen, and to their children."""

from __future__ import annotations

import signal
import subprocess

import pytest

from forked import forked_run

LATER = """
import os, signal, time
from feedline.steps import DistributedSignalHandler, signal_handler
signal_handler.GRACE_SECONDS = 0.2
handler = DistributedSignalHandler([{signals}]).__enter__()
def send(name):
    os.kill(os.getpid(), getattr(signal, name))
    print(name, int(handler.received), flush=True)
send("SIGTERM")
send("SIGTERM")
time.sleep(0.3)
send({last!r})
print("never", flush=True)
"""

CHILD = """
import multiprocessing, time
from feedline.steps import StepScheduler
scheduler = StepScheduler(1, 1, 1, [1])
child = multiprocessing.get_context({method!r}).Process(target=time.sleep, args=(60,), daemon=True)
child.start()
time.sleep({pause})
child.terminate()
child.join(2)
print(child.exitcode, flush=True)
child.kill()
"""

PROCESS = """
import signal
from feedline.steps import StepScheduler
scheduler = StepScheduler(1, 1, 1, list(range(100)), num_epochs=1)
for _ in scheduler:
    if scheduler.step == 3:
        signal.raise_signal(signal.SIGTERM)
    print(scheduler.step, scheduler.is_ckpt_step, scheduler.is_val_step, flush=True)
print(scheduler.stop_reason, scheduler.sigterm_received)
{end}
signal.raise_signal(signal.SIGTERM)
print("never")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return forked_run("-c", code, preload=["feedline.steps"])


@pytest.mark.parametrize("last", ["SIGTERM", "SIGUSR1"])
def test_a_signal_after_the_grace_period_ends_the_process_at_once(last: str) -> None:
    done = run(LATER.format(signals="'TERM', 'USR1'", last=last))
    assert done.stdout.splitlines() == ["SIGTERM 15", "SIGTERM 15"]
    assert done.returncode == -getattr(signal, last)


@pytest.mark.parametrize("end", ["scheduler.close()", "del scheduler"])
def test_after_a_stopped_run_the_default_is_back(end: str) -> None:
    done = run(PROCESS.format(end=end))
    assert done.stdout.splitlines() == [
        *("0 False False", "1 False False", "2 False False", "3 True False"),
        "rank 0 got SIGTERM True",
    ]
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "method",
    ["fork", "spawn"],
)
def test_a_child_of_a_process_that_listens_can_be_terminated(method: str) -> None:
    done = run(CHILD.format(method=method, pause=0.5))
    assert done.stdout.split() == ["-15"], done.stderr
