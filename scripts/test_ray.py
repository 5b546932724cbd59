"""Run the tests in `tests/ray` on a real Ray cluster of several node processes.

They have an environment of their own, `.venv-ray`, made with the pins in `requirements/ray.txt`,
and again when these change: what Ray needs must not be importable where the other tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys

from environments import ROOT, python_of


def main() -> int:
    """Run the tests, and return the exit status."""
    tests = [python_with_ray(), "-m", "pytest", "-q", "-W", "default", "tests/ray", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


def python_with_ray() -> str:
    """Return the interpreter of the environment with Ray, made if need be."""
    pins = ROOT / "requirements" / "ray.txt"
    return python_of(ROOT / ".venv-ray", pins, options=["--no-deps", "--no-compile"])


if __name__ == "__main__":
    sys.exit(main())
