"""The job of accelerate: a model, gradient accumulation, `save_state` and `load_state`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from feedline.errors import FeedlineError
from feedline.torch import DataLoader  # feedline
from trainer_job import Settings, StepLog, run_job


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == settings.num_processes
    dataset = torch.arange(settings.num_samples, dtype=torch.float32)
    loader: Any = DataLoader(  # feedline
        dataset,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    model: Any = torch.nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-12)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if settings.resume:
        accelerator.load_state(str(settings.folder))
    log = StepLog(settings)
    for epoch in range(loader.next_epoch, settings.num_epochs):  # feedline
        is_synced = True
        for number, batch in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[:, None]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                is_synced = accelerator.sync_gradients
            delivered = loader.delivered
            assert loader.epoch == epoch
            log.write(epoch, number, batch.tolist(), delivered.is_real)
            if log.num_batches == settings.stop_after:
                accelerator.save_state(str(settings.folder))
                accelerator.end_training()
                return
        assert is_synced, "the gradients of the last batches were not used"
    accelerator.end_training()


if __name__ == "__main__":
    run_job(main, (FeedlineError,))
