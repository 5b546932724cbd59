"""The samples of `formats.py`: rows of bytes with their number, the same in every format."""

from __future__ import annotations

import numpy as np

NUM_ROWS = 100_000
ROW_BYTES = 4096
BATCH_SIZE = 512
SHARD_BYTES = 2**24
SECONDS = 1.0


def row(number: int) -> bytes:
    """Return one row; it does not compress."""
    return number.to_bytes(8, "little") + _NOISE[number % 64 : number % 64 + ROW_BYTES - 8]


_NOISE = np.random.default_rng(0).bytes(ROW_BYTES + 64)
