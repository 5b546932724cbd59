"""Run the tests in `tests/interop` beside two releases of annbatch, which needs Python 3.12.

The newest one stands in `.venv-annbatch`, and 0.1.6, whose load requests have other names, in
`.venv-annbatch-0.1.6`. Each environment is made with the pins in `requirements`, and again when
these change. Where no such Python is found, this says so and stops without an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from interpreters import find_interpreters

ROOT = Path(__file__).resolve().parent.parent
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
    environment, pins = ROOT / f".venv-{name}", PINS / f"{name}.txt"
    stamp, python = environment / ".installed", str(environment / "bin" / "python")
    wanted = "\n".join([version, *(path.read_text(encoding="utf-8") for path in (pins, SHARED))])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [executable, "-m", "venv", "--clear", str(environment)],
            [*install, "--requirement", str(pins)],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
        stamp.write_text(wanted, encoding="utf-8")
    print(f"beside {pins.read_text(encoding='utf-8').splitlines()[1]}:", flush=True)
    tests = [python, "-m", "pytest", "-q", "tests/interop", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
