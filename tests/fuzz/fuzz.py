"""`make fuzz`: damaged files of every format, read by processes with little memory and time.

Each case is one damaged file or folder. It must be read, or refused with an error of Feedline. All
else fails: another exception, a crash, a case of more than some seconds, memory that grows by more
than 1 GiB, files that stay open. What fails is kept with its seed, and can be run again:

    python tests/fuzz/fuzz.py --cases 100000 --seed 1
    python tests/fuzz/fuzz.py --target zarr --seconds 60
    python tests/fuzz/fuzz.py --replay fuzz-crashers/zarr-1-4711
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(HERE / "child.py"), *map(str, arguments)]


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(HERE), str(SOURCE)))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


class Fuzz:
    """Runs cases of one target after another, and keeps what fails."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, names: list[str]) -> None:
        self.options = arguments
        self.sound = folder / "sound"
        self.work = folder / "work"
        self.work.mkdir()
        subprocess.run(command("make", self.sound, *names), env=environment(), check=True)
        self.counts: dict[str, int] = {}
        self.faults: list[dict[str, Any]] = []
        self.most_growth = 0

    def run(self, target: str, first: int, end: int) -> None:
        """Run cases `[first, end)`; one that hangs or crashes ends its process, not the others."""
        while first < end:
            first = self._run_process(target, first, end)

    def _run_process(self, target: str, first: int, end: int) -> int:
        (self.work / "progress").write_text(f"{first:20}")
        arguments = (target, self.sound / target, self.work, self.options.seed, first, end)
        with open(self.work / "output", "w+") as output:
            child = subprocess.Popen(
                command(*arguments),
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            number, reason = self._watch(child, first)
            output.seek(0)
            lines = output.read().splitlines()
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if "fault" in told:
                self._keep(target, told["number"], told["fault"])
            self.most_growth = max(self.most_growth, told.get("growth", 0))
        if number >= end or not reason:
            if number < end:
                raise SystemExit("\n".join(lines[-30:]))
            self.counts[target] = self.counts.get(target, 0) + end - first
            return end
        self._keep(target, number, reason + "\n" + "\n".join(lines[-20:]))
        self.counts[target] = self.counts.get(target, 0) + number + 1 - first
        return number + 1

    def _watch(self, child: subprocess.Popen[bytes], first: int) -> tuple[int, str]:
        """Return the number of the last case, and how the process ended if that is a fault."""
        seen, since = first, time.monotonic() + 30  # it starts
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.2)
            number = int((self.work / "progress").read_text() or first)
            if child.returncode is not None:
                return number, f"ended with {child.returncode}" if child.returncode < 0 else ""
            if number != seen:
                seen, since = number, time.monotonic()
            elif time.monotonic() - since > self.options.case_seconds:
                child.kill()
                child.wait()
                return number, f"took more than {self.options.case_seconds} seconds"

    def _keep(self, target: str, number: int, reason: str) -> None:
        name = f"{target}-{self.options.seed}-{number}"
        place = Path(self.options.crashers) / name
        shutil.rmtree(place, ignore_errors=True)
        sys.path[:0] = [str(HERE), str(SOURCE)]
        from child import damaged, rng_of

        place.mkdir(parents=True)
        damaged(
            self.sound / target, place / "case", rng_of(self.options.seed, target, number), target
        )
        told = {"target": target, "seed": self.options.seed, "number": number, "reason": reason}
        (place / "case.json").write_text(json.dumps(told, indent=1))
        self.faults.append(told)
        print(f"FAULT {name}: {reason.strip().splitlines()[-1][:300]}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=5000, help="how many, over all targets")
    parser.add_argument("--seconds", type=float, default=600, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--target", action="append", help="one format; by default all")
    parser.add_argument("--case-seconds", type=float, default=20, help="how long one may take")
    parser.add_argument("--crashers", default="fuzz-crashers", help="where failures are kept")
    parser.add_argument("--replay", help="a kept failure, to run again")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.replay:
        place = Path(options.replay)
        told = json.loads((place / "case.json").read_text())
        return subprocess.run(
            command("replay", told["target"], place / "case"), env=environment()
        ).returncode
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        sys.path[:0] = [str(HERE), str(SOURCE)]
        from targets import TARGETS

        names = options.target or list(TARGETS)
        fuzz = Fuzz(options, Path(folder), names)
        total = sum(TARGETS[name].weight for name in names)
        start = time.monotonic()
        # In turns, so that every format has had its share when time is up.
        num_turns = max(1, options.cases // 5000)
        for turn in range(num_turns):
            for name in names:
                share = options.cases * TARGETS[name].weight // total
                first, end = (options.first + share * (turn + n) // num_turns for n in (0, 1))
                if time.monotonic() - start < options.seconds:
                    fuzz.run(name, first, end)
        took = time.monotonic() - start
    print(json.dumps(fuzz.counts))
    print(
        f"{sum(fuzz.counts.values()):,} cases, seed {options.seed}, {took:.0f} s: "
        f"{len(fuzz.faults)} faults; memory grew by at most {fuzz.most_growth / 2**20:.0f} MiB"
    )
    return bool(fuzz.faults)


if __name__ == "__main__":
    sys.exit(main())
