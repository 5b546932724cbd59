"""A training loop without a model in one of several JAX processes.

Arguments: one JSON object with `folder`, `port`, `rank`, `world_size` and `send`, the rank and the
step of a SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax

from feedline.jax import JaxPeers, StepScheduler


def main(job: dict[str, Any]) -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{job['port']}",
        num_processes=job["world_size"],
        process_id=job["rank"],
    )
    peers = JaxPeers()
    assert (peers.rank, peers.world_size) == (job["rank"], job["world_size"])
    # Numbers of every size, and the largest of them on each rank in turn.
    for value in (0, 1, 2**21, 2**31 - 1, 2**42 + 5, 2**63 - 1):
        for owner in range(peers.world_size):
            assert peers.maximum(value if peers.rank == owner else 0) == value
    batches = [[number] for number in range(10)]
    scheduler = StepScheduler(2, 1, 2, batches, num_epochs=3, ckpt_every_steps=100)
    log: list[Any] = []
    for epoch in scheduler.epochs:
        for group in scheduler:
            if [job["rank"], scheduler.step] == job["send"]:
                os.kill(os.getpid(), signal.SIGTERM)
            log.append([epoch, scheduler.step, group, scheduler.is_ckpt_step])
    log.append([scheduler.stop_reason, scheduler.sigterm_received, scheduler.state_dict()])
    Path(job["folder"], f"rank{job['rank']}.json").write_text(json.dumps(log))
    scheduler.close()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
