"""Processes of a fork server are like those of `subprocess`, and end with whoever asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked import Forked, _servers, forked_ranks, forked_run
from processes import SUPPORT, environment, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + 60
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import os; os._exit(7)", 7),
    ],
)
def test_exit_codes_are_those_of_subprocess(code: str, exit_code: int) -> None:
    assert forked_run("-c", code).returncode == exit_code


def test_a_script_finds_what_a_fresh_process_finds(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os, sys\n"
        "atexit.register(print, 'ended')\n"
        "print(__name__, sys.argv[1:], os.getcwd(), os.environ['COLOUR'], input())\n"
        "print(os.path.samefile(sys.path[0], os.path.dirname(__file__)), file=sys.stderr)\n"
    )
    env = {**os.environ, "COLOUR": "red"}
    job = Forked([script, "a", "b"], cwd=tmp_path, env=env, stdin=subprocess.PIPE)
    output, errors = job.communicate("line\n")
    assert output == f"__main__ ['a', 'b'] {tmp_path} red line\nended\n"
    assert (job.returncode, errors) == (0, "True\n")


def test_a_rank_that_fails_ends_all_of_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "print(os.getpid(), flush=True)\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise SystemExit(3)\n"
        "time.sleep(600)\n"
    )
    with forked_ranks(script, 3) as job:
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    pids = [int(line) for line in output.splitlines() if line.isdigit()]
    assert pids
    wait_until_gone(*pids)


def test_a_server_ends_with_the_process_that_started_it_and_takes_its_own_along() -> None:
    code = (
        "import os, forked, signal\n"
        "job = forked.Forked(['-c', 'import time; time.sleep(600)'])\n"
        "print(forked._servers['numpy'].process.pid, job.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment(SUPPORT), stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    wait_until_gone(*pids)


def test_what_a_server_has_started_ends_with_it_however_it_ends() -> None:
    job = Forked(["-c", "import time; time.sleep(600)"])
    server = _servers.pop("numpy")
    server.process.kill()
    server.stop()
    assert job.wait(60) == -signal.SIGKILL
    wait_until_gone(job.pid)
    job.close()
