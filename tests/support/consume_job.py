"""A training loop without a model: each rank writes down the ids it receives, step by step.

Arguments: one JSON object with `kind`, `folder`, `run`, `batch_size`, `num_workers`, `load` (a
checkpoint or null), `stop_after` (steps or null), `every` (steps between checkpoints) and `pause`
(seconds of a step).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bucket_data import BucketData
from feedline.torch import DataLoader, DistributedSampler, MixtureSampler, SequentialBucketSampler
from loader_data import Ids

NUM_SAMPLES = 401
BUCKET_SIZES = [200, 120, 81]
MIXTURE_EDGES = [0, 250, 330, 401]
MIXTURE_WEIGHTS = [3.0, 3.0, 1.0]


def make_loader(kind: str, batch_size: int, num_workers: int) -> DataLoader[Any]:
    """Return the loader of one kind; the ranks come from the process group."""
    options: dict[str, Any] = {"num_workers": num_workers, "with_mask": True}
    if kind == "buckets":
        data = BucketData(BUCKET_SIZES)
        sampler = SequentialBucketSampler(data, batch_size, drop_last=False)
        return DataLoader(data, batch_sampler=sampler, **options)
    options["batch_size"] = batch_size
    if kind == "mixture":
        mixture = MixtureSampler(MIXTURE_EDGES, MIXTURE_WEIGHTS, drop_last=False)
        return DataLoader(Ids(NUM_SAMPLES), sampler=mixture, **options)
    distributed = DistributedSampler(range(NUM_SAMPLES), drop_last=False)
    return DataLoader(Ids(NUM_SAMPLES), sampler=distributed, **options)


def main(job: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = Path(job["folder"])
    loader = make_loader(job["kind"], job["batch_size"], job["num_workers"])
    if job["load"]:
        loader.load_state_dict(json.loads(Path(job["load"]).read_text())["state"])
    checkpoint = folder / f"{job['run']}.json"
    step = 0
    with (folder / f"{job['run']}.rank{rank}.jsonl").open("w") as log:
        for batch, is_real in loader:
            step += 1
            log.write(json.dumps([step, batch[is_real].tolist()]) + "\n")
            log.flush()
            if step % job["every"] == 0 or step == job["stop_after"]:
                dist.barrier()
                if rank == 0:
                    saved = {"state": loader.state_dict(), "step": step}
                    checkpoint.with_suffix(".tmp").write_text(json.dumps(saved))
                    os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
            if step == job["stop_after"]:
                break
            time.sleep(job.get("pause", 0.01))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
