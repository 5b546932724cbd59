"""A trainer whose batches are read by processes; it says their numbers and waits to be killed.

Argument: the folder of the data.
"""

from __future__ import annotations

import sys
import time

import feedline
from feedline.torch import DataLoader


def main(folder: str) -> None:
    loader = DataLoader(feedline.open(folder), 8, device="cpu", num_threads=2, reader_processes=2)
    next(iter(loader))
    assert loader._feeder is not None
    readers = loader._feeder._readers
    assert readers is not None
    while not readers.are_ready:
        time.sleep(0.01)
    batches = iter(loader)
    next(batches)
    print(*(reader.process.pid for reader in readers.readers), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
