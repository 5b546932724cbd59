"""Runs cases of one target, within limits, and writes what came of them as lines of JSON.

Before each case its number is written to the file of the progress: whoever waits for this process
knows which one it hangs or dies in.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from random import Random

from targets import TARGETS

from feedline.errors import FeedlineError

MAX_ADDRESS_SPACE = 6 * 2**30
MAX_GROWTH = 2**30
MAX_FILES = 256


def rng_of(seed: int, target: str, number: int) -> Random:
    """Return the randomness of a case, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{target}/{number}".encode(), digest_size=8).digest()
    return Random(int.from_bytes(digest, "little"))


def damaged(sound: Path, place: Path, rng: Random, target: str) -> None:
    """Write the input of a case."""
    shutil.rmtree(place, ignore_errors=True)
    kinds = sorted(sound.iterdir())
    shutil.copytree(rng.choice(kinds), place)
    # What is damaged already may be beyond the next damage.
    with suppress(ValueError, LookupError, TypeError, OSError, RecursionError):
        TARGETS[target].damage(rng, place)


def use(target: str, place: Path, rng: Random) -> str:
    """Return what came of an input: "" for success or a refusal, or else what went wrong."""
    try:
        TARGETS[target].use(place, rng)
    except FeedlineError:
        return ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error))[-3000:]
    return ""


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit() -> None:
    """Hold this process within the limits."""
    warnings.simplefilter("ignore")
    for kind, most in (
        (resource.RLIMIT_AS, MAX_ADDRESS_SPACE),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 2**35),
    ):
        resource.setrlimit(kind, (most, most))


def main(target: str, sound: Path, work: Path, seed: int, first: int, end: int) -> None:
    limit()
    # Imports and threads of the first cases are not what a file takes.
    shutil.rmtree(work / "case", ignore_errors=True)
    for kind in sorted(sound.iterdir()):
        shutil.copytree(kind, work / "case")
        fault = use(target, work / "case", Random(0))
        shutil.rmtree(work / "case")
        if fault:
            raise SystemExit(f"sound data of {target} fails:\n{fault}")
    memory, files = peak(), num_files()
    progress = os.open(work / "progress", os.O_CREAT | os.O_WRONLY)
    for number in range(first, end):
        os.pwrite(progress, f"{number:20}".encode(), 0)
        rng = rng_of(seed, target, number)
        damaged(sound, work / "case", rng, target)
        fault = use(target, work / "case", rng)
        if not fault and peak() - memory > MAX_GROWTH:
            fault = f"memory grew by {peak() - memory} bytes"
            memory = peak()
        if not fault and num_files() > files + 32:
            gc.collect()
            if num_files() > files + 32:
                fault = f"{num_files() - files} files were left open"
        if fault:
            print(json.dumps({"number": number, "fault": fault}), flush=True)
    os.pwrite(progress, f"{end:20}".encode(), 0)
    print(json.dumps({"growth": peak() - memory, "files": num_files() - files}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        warnings.simplefilter("ignore")
        for name in sys.argv[3:]:
            (Path(sys.argv[2]) / name).mkdir(parents=True)
            TARGETS[name].make(Path(sys.argv[2]) / name)
    elif sys.argv[1] == "replay":
        limit()
        found = ""
        # What is done with an input is drawn too.
        for again in range(10):
            with tempfile.TemporaryDirectory() as copy:
                subprocess.run(["cp", "-a", sys.argv[3], f"{copy}/case"], check=True)
                found = found or use(sys.argv[2], Path(copy) / "case", Random(again))
        print(found or "refused or read, as it should be")
        sys.exit(bool(found))
    else:
        name, seed, first, end = sys.argv[1], *map(int, sys.argv[4:7])
        main(name, Path(sys.argv[2]), Path(sys.argv[3]), seed, first, end)
