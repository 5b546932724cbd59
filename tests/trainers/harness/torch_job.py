"""The job of no framework: a loop of torch's own, by which the harness itself is tested.

`FEEDLINE_FAULT` breaks it: `loses` leaves out a batch, `hangs` and `crashes` on rank 1, `refuses`,
`leaves` a process behind.
"""

from __future__ import annotations

import os
import subprocess
import time

import torch
import torch.distributed as dist

from feedline.torch import DataLoader
from trainer_job import Settings, StepLog, run_job


class Refused(Exception):
    """What the job cannot do."""


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    fault = os.environ.get("FEEDLINE_FAULT", "")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if fault == "refuses":
        raise Refused("it cannot be done")
    if fault == "leaves":
        subprocess.Popen(["sleep", "600"])
    if rank == 1 and fault == "crashes":
        raise RuntimeError("it crashes")
    if rank == 1 and fault == "hangs":
        time.sleep(600)
    ids = torch.arange(settings.num_samples)
    loader = DataLoader(  # feedline
        ids,
        batch_size=settings.batch_size,
        shuffle=True,
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    checkpoint = settings.folder / "checkpoint.pt"
    if settings.resume:
        loader.load_state_dict(torch.load(checkpoint))  # feedline
    log = StepLog(settings)
    while loader.epoch < settings.num_epochs - 1 or loader.num_batches_left():
        for number, batch in enumerate(loader):
            delivered = loader.delivered
            assert delivered is not None
            if not (fault == "loses" and log.num_batches == 3):
                log.write(loader.epoch, number, batch.tolist(), delivered.is_real)
            else:
                log.num_batches += 1
            if log.num_batches == settings.stop_after:
                dist.barrier()
                if rank == 0:
                    torch.save(loader.state_dict(), checkpoint)
                dist.barrier()
                return
        if loader.epoch == settings.num_epochs - 1:
            return


if __name__ == "__main__":
    run_job(main, (Refused,))
