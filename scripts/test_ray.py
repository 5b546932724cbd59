"""Run the tests in `tests/ray` on a real Ray cluster of several node processes.

They have an environment of their own, `.venv-ray`, made with the pins in `requirements/ray.txt`,
and again when these change: what Ray needs must not be importable where the other tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "ray.txt"
ENVIRONMENT = ROOT / ".venv-ray"


def main() -> int:
    """Run the tests, and return the exit status."""
    tests = [python_of(), "-m", "pytest", "-q", "-W", "default", "tests/ray", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


def python_of() -> str:
    """Return the interpreter of the environment, made if need be."""
    stamp, python = ENVIRONMENT / ".installed", str(ENVIRONMENT / "bin" / "python")
    wanted = PINS.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
            [*install, "--no-deps", "--no-compile", "--requirement", str(PINS)],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
        stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.exit(main())
