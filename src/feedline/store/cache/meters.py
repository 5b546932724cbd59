"""What one process has got from a cache."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.words import one_line


@one_line
@dataclass
class CacheMeters:
    """What one process has got from a cache.

    Args:
        num_hits: Files that were there.
        num_misses: Files that this process fetched.
        num_bytes_fetched: The bytes of these.
        num_evictions: Files that this process evicted.
        num_damaged: Files that were found damaged, and fetched again.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_bytes_fetched: int = 0
    num_evictions: int = 0
    num_damaged: int = 0
