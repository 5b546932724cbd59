"""Random numbers that depend only on the seed, the purpose and the row.

So batches, threads and interruptions cannot change an order. Only raw bits are drawn:
numpy keeps those the same in every release, unlike what its generators make of them.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from feedline.plan.seeds import Seed

# A generator is made for each block of rows; rows are drawn in whole blocks.
_BLOCK_ROWS = 4096


def draw(seed: Seed, purpose: str, block: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` random 64-bit numbers of one block for one purpose."""
    digest = hashlib.blake2b(digest_size=16, person=b"feedline.pack.1")
    # Hexadecimal, because Python refuses to write very long integers in decimal.
    text = f"s{seed}" if isinstance(seed, str) else f"i{seed:x}"
    for part in (text, purpose, f"{block:x}"):
        body = part.encode("utf-8", "surrogatepass")
        digest.update(len(body).to_bytes(8, "little") + body)
    generator = np.random.Philox(key=int.from_bytes(digest.digest(), "little"))
    return generator.random_raw(count)


def row_keys(seed: Seed, start: int, stop: int) -> NDArray[np.uint64]:
    """Return the keys of rows `[start, stop)`; sorting all rows by their keys shuffles them.

    Examples:
        >>> bool((row_keys(0, 0, 9)[4:6] == row_keys(0, 4, 6)).all())
        True
    """
    found = np.empty(stop - start, np.uint64)
    for block in range(start // _BLOCK_ROWS, -(-stop // _BLOCK_ROWS)):
        first = block * _BLOCK_ROWS
        low, high = max(start, first), min(stop, first + _BLOCK_ROWS)
        found[low - start : high - start] = draw(seed, "shuffle", block, high - first)[
            low - first :
        ]
    return found
