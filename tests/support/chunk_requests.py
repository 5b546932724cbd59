"""What a loader does with load requests, as plainly as it can be said."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.chunks import LoadRequest, Sampler

Rows = NDArray[np.int64]


def rows_of(request: LoadRequest) -> Rows:
    """The rows that a request reads, in the order in which they are read."""
    wanted = request["requests"]
    if isinstance(wanted, np.ndarray):
        return wanted
    return np.concatenate([np.arange(part.start, part.stop) for part in wanted])


def batches_of(request: LoadRequest) -> list[Rows]:
    """The rows of each batch of a request."""
    rows = rows_of(request)
    return [rows[split] for split in request["splits"]]


def sampled(sampler: Sampler, n_obs: int) -> list[Rows]:
    """The rows of each batch of a pass."""
    return [batch for request in sampler.sample(n_obs) for batch in batches_of(request)]


def joined(batches: list[Rows]) -> list[int]:
    """All rows of some batches, in order."""
    return [int(row) for batch in batches for row in batch]
