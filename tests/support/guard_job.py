"""Ranks that begin an epoch, one of them with something different; each writes what it was told.

Arguments: the folder for the answers, and what differs on rank 1: seed, length, listing,
batch_size, drop_last, state, absent (it never begins) or nothing.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path

import torch.distributed as dist

from feedline.errors import DesyncError
from feedline.torch import DataLoader, DistributedSampler
from loader_data import Listing


def main(folder: str, odd: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    is_odd = rank == 1
    size = 91 if is_odd and odd == "length" else 90
    data = Listing(size, "reversed" if is_odd and odd == "listing" else "sorted")
    sampler = DistributedSampler(data, seed=8 if is_odd and odd == "seed" else 7, desync_timeout=5)
    loader = DataLoader(
        data,
        batch_size=5 if is_odd and odd == "batch_size" else 4,
        sampler=sampler,
        drop_last=is_odd and odd == "drop_last",
    )
    if is_odd and odd == "state":
        sampler.set_skip(3)
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
