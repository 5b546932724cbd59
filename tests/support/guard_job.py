"""Ranks that begin an epoch, one of them with something different; each writes what it was told.

Arguments: the folder for the answers, and what differs on rank 1: seed, length, listing,
batch_size, drop_last, state, absent (it never begins) or nothing. After `chunks-` they are ranks
that share the chunks of a matrix.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from feedline.chunks import DistributedSampler as ChunkSampler
from feedline.chunks import RandomSampler
from feedline.errors import DesyncError
from feedline.store import MemoryMatrix
from feedline.torch import ChunkLoader, DataLoader, DistributedSampler
from loader_data import Listing


def chunk_loader(odd: str) -> ChunkLoader:
    store = MemoryMatrix(np.zeros((91 if odd == "length" else 90, 2)))
    inner = RandomSampler(
        chunk_size=10,
        preload_nchunks=2,
        batch_size=5 if odd == "batch_size" else 4,
        rng=8 if odd == "seed" else 7,
    )
    shards = "contiguous" if odd == "shards" else "windows"
    sampler = ChunkSampler(inner, dist_info="torch", shards=shards)
    loader = ChunkLoader(store, sampler, desync_timeout=5)
    if odd == "epoch":
        loader.set_epoch(2)
    return loader


def batch_loader(odd: str) -> DataLoader[Any]:
    data = Listing(91 if odd == "length" else 90, "reversed" if odd == "listing" else "sorted")
    sampler = DistributedSampler(data, seed=8 if odd == "seed" else 7, desync_timeout=5)
    if odd == "state":
        sampler.set_skip(3)
    batch_size = 5 if odd == "batch_size" else 4
    return DataLoader(data, batch_size, sampler=sampler, drop_last=odd == "drop_last")


def main(folder: str, odd: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    is_odd = rank == 1
    kind, _, what = odd.rpartition("-")
    make = chunk_loader if kind == "chunks" else batch_loader
    loader = make(what if is_odd else "nothing")
    if is_odd and odd == "absent":
        time.sleep(8)
        return
    start = time.monotonic()
    try:
        batches = list(islice(loader, 3))
        answer = f"received {len(batches)} batches"
    except DesyncError as error:
        answer = f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {error}"
    Path(folder, f"rank{rank}").write_text(answer)
    # At a normal exit gloo may abort when its peers are gone already.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
