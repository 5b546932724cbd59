"""Run the tests marked `matrix` on every supported Python, with the oldest and the newest numpy.

Each run gets a fresh environment under
`.venv-matrix/`, with the package installed as a user would install it. The environment is removed
when its run passes and kept, next to its log, when it fails.

Exits with 1 if a run failed or no interpreter was found. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from interpreters import find_interpreters

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".venv-matrix"

NEWEST_NUMPY = "2.4.*"
# The oldest numpy we support that has wheels for that Python.
OLDEST_NUMPY = {"3.11": "1.26.0", "3.12": "1.26.0", "3.13": "2.1.0"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One environment to test in, and what came of it."""

    python: str
    numpy: str
    outcome: str
    passed: bool


def main() -> int:
    """Run the matrix, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run the tests marked `matrix` everywhere.")
    parser.add_argument("--tests", default="tests/plan", help="what to give pytest to collect")
    tests = parser.parse_args().tests

    interpreters = find_interpreters(OLDEST_NUMPY)
    runs = []
    for version, executable in interpreters.items():
        for numpy in (OLDEST_NUMPY[version], NEWEST_NUMPY):
            print(f"python {version}, numpy {numpy} ...", flush=True)
            runs.append(run_one(version, executable, numpy, tests))

    print_table(runs)
    missing = [version for version in OLDEST_NUMPY if version not in interpreters]
    for version in missing:
        print(f"not found, so NOT tested: python {version}")
    if not interpreters:
        print("no interpreter found; install one or set FEEDLINE_PYTHONS", file=sys.stderr)
        return 1
    return 0 if all(run.passed for run in runs) else 1


def run_one(version: str, executable: str, numpy: str, tests: str) -> Run:
    """Install into a fresh environment, run the tests there, and say what came of it."""
    name = f"py{version}-numpy{numpy.removesuffix('.*')}"
    env, log = WORK / name, WORK / f"{name}.log"
    WORK.mkdir(exist_ok=True)
    python = str(env / ("Scripts" if os.name == "nt" else "bin") / "python")
    # A numpy wheel or nothing: building numpy would test the compiler, for minutes.
    install = [python, "-m", "pip", "install", "--only-binary=numpy", f"numpy=={numpy}"]
    stages = {
        "venv": [executable, "-m", "venv", "--clear", str(env)],
        "install": [*install, "pytest", "hypothesis", str(ROOT)],
        "tests": [python, "-m", "pytest", tests, "-q", "-m", "matrix"],
    }
    with log.open("w", encoding="utf-8") as out:
        for stage, command in stages.items():
            status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out).returncode
            if status != 0:
                print(log.read_text(encoding="utf-8"), file=sys.stderr)
                # Status 5 is an empty collection, and passing no test is not passing.
                reason = "no test ran" if (stage, status) == ("tests", 5) else f"{stage} failed"
                outcome = f"{reason}, see {log.relative_to(ROOT)}"
                return Run(python=version, numpy=numpy, outcome=outcome, passed=False)
    summary = log.read_text(encoding="utf-8").splitlines()[-1]
    exact = installed_numpy(python)
    shutil.rmtree(env)
    return Run(python=version, numpy=exact, outcome=summary, passed=True)


def installed_numpy(python: str) -> str:
    """The version of numpy that the interpreter imports."""
    command = [python, "-c", "import numpy; print(numpy.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def print_table(runs: list[Run]) -> None:
    """Print one line per run."""
    print(f"\n{'python':<8}{'numpy':<10}{'result':<8}details")
    for run in runs:
        result = "ok" if run.passed else "FAILED"
        print(f"{run.python:<8}{run.numpy:<10}{result:<8}{run.outcome}")


if __name__ == "__main__":
    sys.exit(main())
