"""Run the tests in `tests/iterables` beside torchdata and Hugging Face's datasets.

They have an environment of their own, `.venv-iterables`, made with the pins beside the tests, and
again when these change: what these libraries need must not be importable where the other tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "iterables"
ENVIRONMENT = ROOT / ".venv-iterables"


def main() -> int:
    """Make the environment if need be, run the tests in it, and return the exit status."""
    pins = TESTS / "requirements.txt"
    stamp, python = ENVIRONMENT / ".installed", str(ENVIRONMENT / "bin" / "python")
    wanted = pins.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
            [*install, "--requirement", str(pins)],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
        stamp.write_text(wanted, encoding="utf-8")
    tests = [python, "-m", "pytest", "-q", "tests/iterables", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
