"""A training process whose workers read lists into shared memory, until somebody kills it.

Argument: the folder of the data. It prints the processes of its workers after some batches, holds
these batches, and waits.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path

import feedline
from feedline.torch import DataLoader


def main(folder: str) -> None:
    loader = DataLoader(feedline.open(folder), 8, shuffle=True, num_workers=2)
    batches = iter(loader)
    held = list(islice(batches, 5))
    children = Path("/proc/self/task").glob("*/children")
    workers = [pid for task in children for pid in task.read_text().split()]
    print(*workers, flush=True)
    while held:
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
