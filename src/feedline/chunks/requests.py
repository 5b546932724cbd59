"""Load requests: what to read together, and how to cut it into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block


class LoadRequest(TypedDict):
    """Rows to read together, and the batches in them.

    `requests` is a list of slices, or an array of rows. `splits` has an array for each batch, with
    places in the rows as they come when the requests are read one after another.
    """

    requests: list[slice] | NDArray[np.int64]
    splits: list[NDArray[np.int64]]


def request_of(block: Block, offset: int, chunk_size: int, first_chunk: int) -> LoadRequest:
    """Return what to read for the batches of a block, in slices that do not cross chunks.

    `offset` is added to the block's indices, and chunks are counted from row `first_chunk` on. Rows
    that are wanted twice are read once. All arrays are new: nothing is shared with other requests.
    """
    rows, places = np.unique(block.indices, return_inverse=True)
    # A slice ends where a row is left out, and where a chunk does.
    chunks = (rows + (offset - first_chunk)) // chunk_size
    is_cut = (np.diff(rows) != 1) | (np.diff(chunks) != 0)
    edges = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(rows)]
    requests = [
        slice(int(rows[first]) + offset, int(rows[end - 1]) + 1 + offset)
        for first, end in pairwise(edges)
        if first < end
    ]
    splits = [places[first:end].copy() for first, end in pairwise(block.bounds.tolist())]
    return {"requests": requests, "splits": splits}
