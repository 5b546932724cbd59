"""A training loop without a model that may go back to a checkpoint and skip steps.

Arguments: one JSON object with `folder` (for checkpoints and logs), `load` (the step of a
checkpoint, or null), `skip` (the first step to skip and the one after the last, or null),
`stop_before` (a step, or null), `batch_size`, `global_batch_size` and `num_workers`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from feedline.torch import DataLoader, StepScheduler
from loader_data import Ids

NUM_SAMPLES = 240
NUM_EPOCHS = 2


def main(job: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    folder = Path(job["folder"])
    loader = DataLoader(
        Ids(NUM_SAMPLES),
        batch_size=job["batch_size"],
        shuffle=True,
        seed=3,
        num_workers=job["num_workers"],
        log=folder / "logs",
    )
    with StepScheduler(
        job["global_batch_size"],
        dataloader=loader,
        num_epochs=NUM_EPOCHS,
        preemption_signal=None,
    ) as scheduler:
        if job["load"] is not None:
            state = (folder / f"step-{job['load']}.json").read_text()
            scheduler.load_state_dict(json.loads(state))
        if job["skip"] is not None:
            scheduler.skip_steps(*job["skip"])
        train(scheduler, folder, job["stop_before"])
    loader.close()
    dist.destroy_process_group()


def train(scheduler: StepScheduler, folder: Path, stop_before: int | None) -> None:
    """Save a checkpoint after every step."""
    for _ in scheduler.epochs:
        for _ in scheduler:
            state = scheduler.state_dict()
            if scheduler.peers.rank == 0:
                (folder / f"step-{state['step']}.json").write_text(json.dumps(state))
            if state["step"] == stop_before:
                return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
