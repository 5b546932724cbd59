"""Run the tests in `tests/interop` beside two releases of annbatch, which needs Python 3.12.

The newest one stands in `.venv-annbatch`, and 0.1.6, whose load requests have other names, in
`.venv-annbatch-0.1.6`. Each environment is made with the pins in `requirements`, and again when
these change. Where no such Python is found, this says so and stops without an error.
"""

from __future__ import annotations

import os
import subprocess
import sys

from environments import ROOT, python_of
from interpreters import find_interpreters

PINS = ROOT / "requirements"
SHARED = PINS / "annbatch-shared.txt"
NAMES = ("annbatch", "annbatch-0.1.6")
VERSIONS = ("3.12", "3.13")


def main() -> int:
    """Run the tests in each environment, and return the exit status."""
    found = find_interpreters(VERSIONS)
    if not found:
        print(f"no Python {' or '.join(VERSIONS)} found, so the tests beside annbatch did NOT run")
        return 0
    version, executable = next(iter(found.items()))
    return max(run_beside(name, version, executable) for name in NAMES)


def run_beside(name: str, version: str, executable: str) -> int:
    """Make an environment if need be, run the tests in it, and return the exit status."""
    pins = PINS / f"{name}.txt"
    also = "\n".join([version, SHARED.read_text(encoding="utf-8"), ""])
    python = python_of(ROOT / f".venv-{name}", pins, executable=executable, also=also)
    print(f"beside {pins.read_text(encoding='utf-8').splitlines()[1]}:", flush=True)
    tests = [python, "-m", "pytest", "-q", "tests/interop", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
