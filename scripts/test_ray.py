"""Run the tests in `tests/ray` on a real Ray cluster of several node processes.

They have an environment of their own, `.venv-ray`, made with the pins in `requirements/ray.txt`,
and again when these change: what Ray needs must not be importable where the other tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import ROOT, python_of

# Ray Data cancels tasks when a dataset is not read to its end. If one of them ends at that moment,
# Ray 2.60 aborts the whole process with this line.
FAULT_OF_RAY = "Tried to complete task that was not pending"
MOST_RUNS = 3


def main() -> int:
    """Run the tests, again where Ray has aborted them by that fault; return the exit status."""
    tests = [python_with_ray(), "-m", "pytest", "-q", "-W", "default", "tests/ray", *sys.argv[1:]]
    for run in range(1, MOST_RUNS + 1):
        # The names of sockets are in it, and must be short. Tests that end by themselves remove it.
        folder = tempfile.mkdtemp(prefix="feedline-ray-", dir="/tmp")
        told = {"PYTHONPATH": str(ROOT / "src"), "FEEDLINE_RAY_FOLDER": folder}
        try:
            status = subprocess.run(tests, cwd=ROOT, env={**os.environ, **told}).returncode
            if not status or run == MOST_RUNS or not was_aborted(Path(folder)):
                break
            print(f"Ray aborted run {run} of the tests: {FAULT_OF_RAY!r}; again", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return status


def was_aborted(folder: Path) -> bool:
    """Whether a log that the tests had no time to remove tells of the fault."""
    logs = folder.glob("ray/session_*/logs/python-core-driver-*.log")
    return any(FAULT_OF_RAY in log.read_text(errors="replace") for log in logs)


def python_with_ray() -> str:
    """Return the interpreter of the environment with Ray, made if need be."""
    pins = ROOT / "requirements" / "ray.txt"
    return python_of(ROOT / ".venv-ray", pins, options=["--no-deps", "--no-compile"])


if __name__ == "__main__":
    sys.exit(main())
