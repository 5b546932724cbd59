"""Trains with a StatefulDataLoader, whose state is in the checkpoint."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader as TheirLoader

from feedline.trainers.torchdata import StatefulDataLoader  # feedline
from trainer_job import Settings, StepLog, run_job


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loader = StatefulDataLoader(  # feedline
        torch.arange(settings.num_samples),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
        snapshot_every_n_steps=4,
    )
    assert isinstance(loader, TheirLoader)
    checkpoint = settings.folder / "checkpoint.pt"
    if settings.resume:
        loader.load_state_dict(torch.load(checkpoint, weights_only=True))
    log = StepLog(settings)
    while loader.next_epoch < settings.num_epochs:  # feedline
        for number, batch in enumerate(loader):
            log.write(loader.epoch, number, batch.tolist(), loader.delivered.is_real)
            if log.num_batches == settings.stop_after:
                if dist.get_rank() == 0:
                    torch.save(loader.state_dict(), checkpoint)
                dist.barrier()
                return


if __name__ == "__main__":
    run_job(main)
