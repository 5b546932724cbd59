"""A training loop over a matrix in zarr: each rank writes down the rows that it receives.

Arguments: one JSON object with `framework` (torch or jax), `data` (the matrix), `folder`, `run`,
`shards`, `load` (a checkpoint or null), `pause` (seconds after each batch) and, for jax, `port`,
`rank` and `world_size`. Rank 0 saves a checkpoint after every third batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from feedline.chunks import DistributedSampler, RandomSampler
from feedline.feed import ChunkLoader
from feedline.store import open_anndata
from zarr_data import array_of, dense_rows

EVERY = 3
BATCH_SIZE = 6


def main(job: dict[str, Any]) -> None:
    barrier, end = {"torch": begin_torch, "jax": begin_jax}[job["framework"]](job)
    inner = RandomSampler(chunk_size=4, preload_nchunks=3, batch_size=BATCH_SIZE, rng=5)
    sampler = DistributedSampler(inner, dist_info=job["framework"], shards=job["shards"])
    loader = ChunkLoader(open_anndata(job["data"], obs=["number"]), sampler)
    if job["load"]:
        loader.load_state_dict(json.loads(Path(job["load"]).read_text())["state"])
    name = f"{job['run']}.rank{sampler.rank}of{sampler.world_size}"
    Path(job["folder"], f"{name}.pid").write_text(str(os.getpid()))
    consume(loader, Path(job["folder"], f"{name}.jsonl"), barrier, job)
    end()


def consume(
    loader: ChunkLoader, log_file: Path, barrier: Callable[[], Any], job: dict[str, Any]
) -> None:
    """Check and log every batch, and save a checkpoint now and then."""
    values = dense_rows(loader.n_obs)
    checkpoint = Path(job["folder"], f"{job['run']}.json")
    with log_file.open("w") as log:
        for step, batch in enumerate(loader, 1):
            np.testing.assert_array_equal(array_of(batch.X), values[batch.rows])
            np.testing.assert_array_equal(batch.obs["number"], batch.rows)
            log.write(json.dumps([step, batch.rows.tolist()]) + "\n")
            log.flush()
            if step % EVERY == 0:
                barrier()
                if loader.sampler.rank == 0:
                    saved = {"state": loader.state_dict(), "step": step}
                    checkpoint.with_suffix(".tmp").write_text(json.dumps(saved))
                    os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
            time.sleep(job["pause"])
    barrier()


def begin_torch(_: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Join the process group; return how to wait for the others, and how to leave."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.barrier, dist.destroy_process_group


def begin_jax(job: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Join the other processes; return how to wait for them, and how to leave."""
    import jax

    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{job['port']}",
        num_processes=job["world_size"],
        process_id=job["rank"],
    )
    # Leaving waits for the others.
    return lambda: None, jax.distributed.shutdown


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
