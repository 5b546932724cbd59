"""Run the tests and the stories of every trainer, in an environment for each of its versions.

    python scripts/test_trainers.py                       all trainers, a pairwise cover of stories;
                                                          of Ray the newest version alone
    python scripts/test_trainers.py accelerate            one of them
    python scripts/test_trainers.py accelerate-1.15.0     one version of it
    python scripts/test_trainers.py --all                 the full product of stories
    python scripts/test_trainers.py --write               keep the results, and write the table
    python scripts/test_trainers.py --table               write the table alone

Environments are `.venv-trainers-<trainer>-<version>`, made with the pins in `tests/trainers`, and
made again when these change. `--python` takes another interpreter instead, for one version.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from environments import ROOT, python_of

HARNESS = ROOT / "tests" / "trainers" / "harness"
sys.path.insert(0, str(HARNESS))

from known_trainers import Trainer, known_trainers  # noqa: E402
from trainer_results import PAGE, page_with_table  # noqa: E402


def main() -> int:
    """Run what the arguments choose, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="trainers, or a trainer-version")
    parser.add_argument("--all", action="store_true", help="the full product of stories")
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--table", action="store_true", help="write the table, and nothing else")
    parser.add_argument("--stories", action="store_true", help="the stories without the tests")
    parser.add_argument("--only", default="", help="stories with this in their names")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--python", help="an interpreter that has the trainer")
    options = parser.parse_args()
    failed, seconds = [], {}
    pairs = [] if options.table else chosen(options.names, is_full=options.all)
    # The next environment is made while the tests of one run.
    with ThreadPoolExecutor(1) as maker:
        pythons = [
            None if options.python else maker.submit(python_with, trainer, version)
            for trainer, version in pairs
        ]
        for (trainer, version), made in zip(pairs, pythons, strict=True):
            begin = time.monotonic()
            name = f"{trainer.name}-{version}"
            python = options.python if made is None else made.result()
            ready = time.monotonic()
            if not is_sound(trainer, version, python, options):
                failed.append(name)
            seconds[name] = (ready - begin, time.monotonic() - ready)
    for name, (to_install, to_run) in seconds.items():
        print(f"{name}: {to_install:.0f} s of waiting for its environment, {to_run:.0f} s to run")
    if options.table or options.write:
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def chosen(names: list[str], *, is_full: bool) -> list[tuple[Trainer, str]]:
    """Return the trainers and versions that are named; if none is, those that run by default."""
    every = {(one.name, v): (one, v) for one in known_trainers().values() for v in one.versions}
    known = {name: [] for name in {name for name, _ in every}}
    for (name, version), pair in every.items():
        known[name].append(pair)
        known[f"{name}-{version}"] = [pair]
    if strange := set(names) - set(known):
        sys.exit(f"{', '.join(sorted(strange))}: known are {', '.join(sorted(known))}")
    if names:
        return [pair for name in names for pair in known[name]]
    return [
        (trainer, version)
        for trainer, version in every.values()
        if is_full or version in trainer.versions_by_default
    ]


def is_sound(trainer: Trainer, version: str, python: str, options: argparse.Namespace) -> bool:
    """Whether the tests of a trainer pass, and its stories go as promised."""
    print(f"{trainer.name} {version}:", flush=True)
    num_tests = 0
    if not options.stories:
        passed = run_tests(trainer, python)
        if passed is None:
            return False
        num_tests = passed
    tell = [python, str(HARNESS / "tell_stories.py"), trainer.name, version]
    tell += ["--jobs", str(options.jobs), "--only", options.only, "--num-tests", str(num_tests)]
    tell += [f"--{name}" for name in ("all", "write") if getattr(options, name)]
    return subprocess.run(tell, cwd=ROOT, env=variables_of(trainer)).returncode == 0


def run_tests(trainer: Trainer, python: str) -> int | None:
    """Return how many tests of a trainer passed, or None if one failed."""
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
    tests += [str(trainer.folder), str(ROOT / "tests" / "trainers" / "test_pages.py")]
    done = subprocess.run(
        tests, cwd=ROOT, env=variables_of(trainer), stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="", flush=True)
    counted = re.search(r"(\d+) passed", done.stdout)
    return int(counted[1]) if counted and done.returncode == 0 else None


def variables_of(trainer: Trainer) -> dict[str, str]:
    """Return the environment variables of its tests."""
    more = {
        "FEEDLINE_TRAINER": trainer.name,
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
    }
    return {**os.environ, **more, **trainer.variables}


def python_with(trainer: Trainer, version: str) -> str:
    """Return the interpreter of an environment with the trainer, made if need be."""
    return python_of(
        ROOT / f".venv-trainers-{trainer.name}-{version}",
        trainer.pins(version),
        # Pins name all that is needed, so nothing is resolved. Most files are never imported.
        options=["--no-deps", "--no-compile"],
    )


if __name__ == "__main__":
    sys.exit(main())
