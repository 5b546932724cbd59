"""Reading batches of a store as tensors: with threads in one process, or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import StoreError
from feedline.feed import gather_samples, picked_batches
from feedline.feed.reading import Slabs
from feedline.plan import Chunking, Segment
from feedline.store import Column, FolderStore
from feedline.store.columns import Arrays, make_out
from feedline.torch.regions import Regions, share_batches
from feedline.torch.tensors import as_tensor

Tensors = dict[str, torch.Tensor]
Arrange = Callable[[Sequence[Tensors]], Any]
_ROWS_AT_ONCE = 1024


def batches_in_slabs(
    slabs: Slabs, columns: Mapping[str, Column], prefixes: Sequence[str], arrange: Arrange
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of the first batch of each slab, and its batches, as views of the slab."""
    try:
        for slab in slabs:
            sizes = [end - first for first, end in pairwise(slab.block.bounds.tolist())]
            parts = [_split(slab.arrays, sizes, columns, prefix) for prefix in prefixes]
            yield slab.block.first, list(map(arrange, zip(*parts, strict=True)))
    finally:
        slabs.close()


def _split(
    arrays: Arrays, sizes: list[int], columns: Mapping[str, Column], prefix: str
) -> list[Tensors]:
    """Return the columns that begin with `prefix`, a dict for each batch."""
    names = [name for name in columns if name.startswith(prefix)]
    short = [name.removeprefix(prefix) for name in names]
    tensors = [as_tensor(arrays[name], columns[name].type_name) for name in names]
    parts = [tensor.split_with_sizes(sizes) for tensor in tensors]
    return [dict(zip(short, batch, strict=True)) for batch in zip(*parts, strict=True)]


def batches_in_worker(
    store: FolderStore,
    chunking: Chunking,
    segment: Segment,
    rank: int,
    numbers: range,
    regions: Regions | None,
    memory_budget: int,
    prefixes: Sequence[str],
    arrange: Arrange,
) -> Iterator[Any]:
    """Yield the batches with these numbers, in regions if there are any.

    Batches that are read together take at most a quarter of the budget, because some wait in the
    queue of the worker, or are in use, while the next ones are read.
    """

    def read(some: list[NDArray[np.int64]]) -> Iterator[Any]:
        indices, sizes = np.concatenate(some), [len(batch) for batch in some]
        if regions is None:
            arrays = make_out(store.columns, len(indices), None)
            gather_samples(store, chunking, indices, arrays)
            parts = [_split(arrays, sizes, store.columns, prefix) for prefix in prefixes]
            # Batches that share no memory: torch would send all that is shared with each.
            return (
                arrange([_copied(part) for part in batch]) for batch in zip(*parts, strict=True)
            )
        arrays, shared = share_batches(regions, store.columns, sizes, prefixes)
        gather_samples(store, chunking, indices, arrays)
        return map(arrange, shared)

    # One batch at first, so that it comes soon, then more and more together.
    batches = picked_batches(segment, rank, numbers)
    row_bytes = sum(column.row_bytes for column in store.columns.values())
    num_rows = min(_ROWS_AT_ONCE, memory_budget // (4 * max(1, row_bytes)))
    count, num_most = 1, max(1, num_rows // segment.batch_size)
    while some := list(islice(batches, count)):
        try:
            found = read(some)
        except StoreError:
            if len(some) == 1:
                raise
            # One by one, so that those before the one that cannot be read are delivered.
            found = chain.from_iterable(read([batch]) for batch in some)
        yield from found
        count = min(2 * count, num_most)


def _copied(columns: Tensors) -> Tensors:
    return {name: column.clone() for name, column in columns.items()}
