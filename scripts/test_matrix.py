"""Run the tests marked `matrix` on every supported Python, with the oldest and the newest numpy.

Interpreters come from the environment variable FEEDLINE_PYTHONS (paths or commands, separated as in
PATH) when it is set, else from PATH and from pyenv. Each run gets a fresh environment under
`.venv-matrix/`, with the package installed as a user would install it. The environment is removed
when its run passes and kept, next to its log, when it fails.

Exits with 1 if a run failed or no interpreter was found. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".venv-matrix"

NEWEST_NUMPY = "2.4.*"
# The oldest numpy we support that has wheels for that Python.
OLDEST_NUMPY = {"3.11": "1.26.0", "3.12": "1.26.0", "3.13": "2.1.0"}

PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"


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

    interpreters = find_interpreters()
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


def find_interpreters() -> dict[str, str]:
    """The first working interpreter of each supported version, by version."""
    found: dict[str, str] = {}
    for candidate in candidates():
        probed = probe(candidate)
        if probed is not None and probed[0] in OLDEST_NUMPY:
            found.setdefault(*probed)
    return dict(sorted(found.items()))


def candidates() -> Iterator[str]:
    """Commands and paths that may be an interpreter, in order of preference."""
    given = os.environ.get("FEEDLINE_PYTHONS")
    if given:
        yield from filter(None, given.split(os.pathsep))
        return
    for version in OLDEST_NUMPY:
        yield f"python{version}"
        yield from pyenv_interpreters(version)
    yield sys.executable


def pyenv_interpreters(version: str) -> list[str]:
    """The interpreters of that version that pyenv has installed, newest patch release first."""
    try:
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    patches = {}
    for path in (Path(root.strip()) / "versions").glob(f"{version}.*"):
        # Only plain releases: no pre-releases, no free-threaded builds, no named environments.
        if match := re.fullmatch(re.escape(version) + r"\.(\d+)", path.name):
            patches[int(match[1])] = str(path / "bin" / "python")
    return [patches[patch] for patch in sorted(patches, reverse=True)]


def probe(candidate: str) -> tuple[str, str] | None:
    """The version and the path of an interpreter; None if it does not run or cannot make a venv.

    A command on PATH proves nothing: pyenv puts one there for every version it has ever installed,
    and it fails unless that version is selected.
    """
    command = shutil.which(candidate)
    if command is None:
        return None
    result = subprocess.run([command, "-c", PROBE], capture_output=True, text=True)
    if result.returncode != 0:
        return None
    version, executable = result.stdout.splitlines()
    return version, executable


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
