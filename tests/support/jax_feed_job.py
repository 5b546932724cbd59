"""A feed in one of several JAX processes, which is not told its rank.

Arguments: one JSON object with `folder`, `port`, `rank` and `world_size`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from feedline.errors import DesyncError
from feedline.feed import Feed
from feedline.packing import pack
from feedline.plan import SamplePlan, Shuffled
from feedline.store import FolderStore


def main(job: dict[str, Any]) -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{job['port']}",
        num_processes=job["world_size"],
        process_id=job["rank"],
    )
    folder, rank = Path(job["folder"]), job["rank"]
    pack({"x": np.arange(40)}, folder / f"data{rank}")
    store = FolderStore(folder / f"data{rank}")
    feed = Feed(store, SamplePlan(order=Shuffled(num_samples=40)), batch_size=5)
    told: dict[str, Any] = {"ids": [int(x) for batch in feed for x in batch.arrays["x"]]}
    told["state"] = feed.state_dict()
    other = Feed(store, SamplePlan(order=Shuffled(num_samples=40, seed=rank)), batch_size=5)
    try:
        next(iter(other))
    except DesyncError as error:
        told["desync"] = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
