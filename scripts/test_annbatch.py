"""Run the tests in `tests/interop` beside the real annbatch, which needs Python 3.12.

The environment `.venv-annbatch` is made with the pins in `requirements/annbatch.txt`, and again
when these change. Where no such Python is found, this says so and stops without an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from interpreters import find_interpreters

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-annbatch"
PINS = ROOT / "requirements" / "annbatch.txt"
STAMP = ENVIRONMENT / ".installed"
VERSIONS = ("3.12", "3.13")


def main() -> int:
    """Make the environment if need be, run the tests, and return the exit status."""
    found = find_interpreters(VERSIONS)
    if not found:
        print(f"no Python {' or '.join(VERSIONS)} found, so the tests beside annbatch did NOT run")
        return 0
    version, executable = next(iter(found.items()))
    python = str(ENVIRONMENT / "bin" / "python")
    if not STAMP.exists() or STAMP.read_text() != _wanted(version):
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
            [*install, "--requirement", str(PINS)],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
        STAMP.write_text(_wanted(version))
    tests = [python, "-m", "pytest", "-q", "tests/interop", *sys.argv[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode


def _wanted(version: str) -> str:
    return f"{version}\n{PINS.read_text(encoding='utf-8')}"


if __name__ == "__main__":
    sys.exit(main())
