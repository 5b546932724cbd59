"""Tells the stories of one trainer with this interpreter; `scripts/test_trainers.py` starts it.

Arguments: the trainer, its version, and then `--all` for the full product, `--jobs N`,
`--only TEXT` (stories with that in their names), `--num-tests N` (tests that passed), `--write`.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "support")]

from forked import stop_servers  # noqa: E402
from known_trainers import Trainer, known_trainers  # noqa: E402
from trainer_results import Results, fault_of  # noqa: E402
from trainer_runner import Outcome, tell  # noqa: E402
from trainer_service import serving  # noqa: E402
from trainer_stories import Story  # noqa: E402


def main() -> int:
    """Tell the stories, keep the results if asked to, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("version")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--num-tests", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    trainer = known_trainers()[options.trainer]
    told = [story for story in trainer.stories(is_full=options.all) if options.only in story.name]
    results = Results(
        trainer=trainer.name,
        version=options.version,
        torch="" if find_spec("torch") is None else installed_version("torch"),
        python=platform.python_version(),
        num_user_lines=trainer.num_user_lines,
        num_tests=options.num_tests,
    )
    num_faults = 0
    try:
        with serving(trainer) as served, ThreadPoolExecutor(options.jobs) as pool:
            waiting = {pool.submit(timed, story, served): story for story in told}
            for done in as_completed(waiting):
                story, (outcome, seconds) = waiting[done], done.result()
                results.stories[story.name] = str(outcome)
                fault = fault_of(trainer, story, str(outcome))
                num_faults += fault is not None
                shown = outcome.kind if fault is None else f"WRONG: {fault}"
                print(f"{trainer.name} {options.version} {story.name}: {shown} ({seconds:.1f} s)")
                sys.stdout.flush()
    finally:
        stop_servers()
    if options.write and not num_faults:
        results.write()
    print(f"{trainer.name} {options.version}: {len(told) - num_faults} of {len(told)} as promised")
    return bool(num_faults)


def timed(story: Story, trainer: Trainer) -> tuple[Outcome, float]:
    """Tell a story, and return the outcome and the seconds that it took."""
    begin = time.monotonic()
    outcome = tell(story, trainer)
    return outcome, time.monotonic() - begin


if __name__ == "__main__":
    sys.exit(main())
