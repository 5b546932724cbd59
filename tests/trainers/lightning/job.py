"""The job of Lightning: `Trainer.fit` with its own checkpoint.

Even runs save while they train, as `ModelCheckpoint` does; odd ones when `fit` has returned.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from feedline.errors import FeedlineError
from feedline.torch import DataLoader
from feedline.trainers.lightning import FeedlineCallback  # feedline
from trainer_job import Settings, StepLog, run_job


class Model(LightningModule):
    """A model that logs what its training step receives."""

    def __init__(self, loader: DataLoader[Any], log: StepLog) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.loader = loader
        self.steps = log

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        delivered = self.loader.delivered
        assert delivered is not None
        self.steps.write(self.current_epoch, batch_idx, batch.tolist(), delivered.is_real)
        return self.layer(batch[:, None].float() / 10_000).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stop(Callback):
    """Stops training after a number of batches."""

    def __init__(self, settings: Settings, log: StepLog) -> None:
        self.settings = settings
        self.steps = log

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.steps.num_batches == self.settings.stop_after:
            trainer.should_stop = True
            if self.settings.run % 2 == 0:
                trainer.save_checkpoint(self.settings.folder / "run.ckpt")


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    log = StepLog(settings)
    loader = DataLoader(  # feedline
        torch.arange(settings.num_samples),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=settings.num_processes,
        strategy="ddp" if settings.num_processes > 1 else "auto",
        max_epochs=settings.num_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stop(settings, log), FeedlineCallback()],  # feedline
    )
    path = settings.folder / "run.ckpt"
    trainer.fit(Model(loader, log), loader, ckpt_path=path if settings.resume else None)
    if settings.stop_after is not None and settings.run % 2:
        trainer.save_checkpoint(path)


if __name__ == "__main__":
    run_job(main, (FeedlineError,))
