"""Run the tests in `tests/iterables` beside torchdata and Hugging Face's datasets.

They have an environment of their own, `.venv-iterables`, made with the pins beside the tests, and
again when these change: what these libraries need must not be importable where the other tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys

from environments import ROOT, python_of


def main() -> int:
    """Make the environment if need be, run the tests in it, and return the exit status."""
    python = python_of(ROOT / ".venv-iterables", ROOT / "tests" / "iterables" / "requirements.txt")
    tests = [python, "-m", "pytest", "-q", "tests/iterables", *sys.argv[1:]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
