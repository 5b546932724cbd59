"""One of several processes that use a cache at the same time, until it is told to end or killed.

Arguments: one JSON object with `folder`, `limit`, `seed`, `num_files`, `num_held` (how many files
it holds at most), `log` (where fetches are noted), `stop` (a file that tells it to end) and
`has_byte_locks` (False to do as on systems without). It ends with an error if it ever gets a file
that is not right.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import zlib
from pathlib import Path

from cache_files import content
from feedline.store.cache import FileCache, holds

PAGE = 4096
MOST_BYTES = 5 * PAGE


def size_of(number: int) -> int:
    """Return the size of a file: whole pages, so that it is what the file takes on a disk too."""
    return (1 + number % 5) * PAGE


class Worker:
    """Gets and lets go of files at random, and compares what is in them.

    Args:
        job: The arguments.
    """

    def __init__(self, job: dict[str, str | int]) -> None:
        self.cache = FileCache(str(job["folder"]), int(job["limit"]), wait_seconds=100)
        self.chance = random.Random(int(job["seed"]))
        self.num_files, self.num_held = int(job["num_files"]), int(job["num_held"])
        self.log = os.open(str(job["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.held: list[tuple[int, Path]] = []
        self.num_read = 0
        self.num_failed = 0

    def note(self, what: str, number: int) -> None:
        """Write one line, at once, about a fetch."""
        line = {"time": time.monotonic_ns(), "pid": os.getpid(), "what": what, "file": number}
        os.write(self.log, json.dumps(line).encode() + b"\n")

    def step(self) -> None:
        """Get a file, read all that are held, and let one go."""
        number = self.chance.randrange(self.num_files)
        data = content(number, size_of(number))
        digest = f"crc32:{zlib.crc32(data):08x}" if number % 2 else None
        fails = self.chance.random() < 0.03

        def fetch(part: Path) -> None:
            self.note("start", number)
            try:
                with open(part, "wb") as file:
                    for start in range(0, len(data), 5_000):
                        time.sleep(self.chance.random() * 0.002)
                        file.write(data[start : start + 5_000])
                        file.flush()
                        if fails:
                            raise ConnectionResetError("the connection broke")
            finally:
                self.note("end", number)

        try:
            path = self.cache.get(f"file {number}.bin", len(data), fetch, digest=digest)
        except ConnectionResetError:
            self.num_failed += 1
            return
        self.held.append((number, path))
        for one, place in self.held:
            assert place.read_bytes() == content(one, size_of(one)), f"file {one} is wrong"
            self.num_read += 1
        while len(self.held) >= self.num_held:
            one, _ = self.held.pop(self.chance.randrange(len(self.held)))
            self.cache.let_go(f"file {one}.bin")


def main() -> None:
    """Work until the file that tells to end is there."""
    job = json.loads(sys.argv[1])
    if not job["has_byte_locks"]:
        holds.has_byte_locks = lambda _: False
    worker = Worker(job)
    while not os.path.exists(job["stop"]):
        worker.step()
    meters = worker.cache.meters
    print(json.dumps({"read": worker.num_read, "failed": worker.num_failed, **vars(meters)}))


if __name__ == "__main__":
    main()
