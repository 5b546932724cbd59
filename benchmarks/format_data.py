"""The samples of `formats.py`: rows of bytes with their number, the same in every format."""

from __future__ import annotations

import os

import numpy as np

# `remote.py` has more, and less where it only tries whether all works.
NUM_ROWS = int(os.environ.get("FEEDLINE_BENCH_ROWS", "100000"))
ROW_BYTES = 4096
BATCH_SIZE = 512
SHARD_BYTES = 2**24
SECONDS = 1.0
WORKERS = (0, 2)
# How many times the library's own rate ours must be, on as many workers.
TARGETS = {"webdataset": 10.0, "mds": 10.0, "litdata": 2.0, "huggingface": 2.0}
# Below this target, our best must be as many times their best, too.
BY_FAR = 10.0


def row(number: int) -> bytes:
    """Return one row; it does not compress."""
    return number.to_bytes(8, "little") + _NOISE[number % 64 : number % 64 + ROW_BYTES - 8]


_NOISE = np.random.default_rng(0).bytes(ROW_BYTES + 64)
