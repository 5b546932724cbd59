"""Lightning: a training that stops in mid-epoch and resumes on another number of processes.

Run it on 2 processes, then on 3, then on 1 until the end. Each run audits what all have received:

    torchrun --standalone --nproc-per-node 2 examples/trainer_lightning.py --folder out --steps 14
    torchrun --standalone --nproc-per-node 3 examples/trainer_lightning.py --folder out --steps 24
    python examples/trainer_lightning.py --folder out
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import TensorDataset

from feedline.runs import audit_logs
from feedline.torch import DataLoader
from feedline.trainers.lightning import FeedlineCallback, log_mean

NUM_SAMPLES, NUM_EPOCHS, BATCH_SIZE = 480, 2, 8


class Model(LightningModule):
    """A small model that learns the mean of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1), torch.nn.Flatten(0)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        points, values = batch
        return torch.nn.functional.mse_loss(self.layers(points), values)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        (points, values), is_real = batch
        log_mean(self, "loss", (self.layers(points) - values).square(), is_real)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def points(num_samples: int, seed: int) -> TensorDataset:
    """Return points and a value for each, the same in every process."""
    drawn = torch.randn(num_samples, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(drawn, drawn.square().mean(dim=1))


def main() -> None:
    """Train from the checkpoint, if there is one, and save another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=-1)
    options = parser.parse_args()
    checkpoint = options.folder / "run.ckpt"

    loader = DataLoader(
        points(NUM_SAMPLES, 1), BATCH_SIZE, shuffle=True, seed=7, log=options.folder / "logs"
    )
    # 101 samples do not divide evenly, so the loader says which are real.
    validation = DataLoader(points(101, 2), BATCH_SIZE, with_mask=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=NUM_EPOCHS,
        max_steps=options.steps,
        default_root_dir=options.folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[FeedlineCallback()],
    )
    torch.manual_seed(3)
    model = Model()
    trainer.fit(model, loader, validation, ckpt_path=checkpoint if checkpoint.exists() else None)
    trainer.save_checkpoint(checkpoint)
    loader.close()
    trainer.strategy.barrier()  # until all logs are written
    if trainer.is_global_zero:
        result = audit_logs([options.folder / "logs"])
        for epoch in result.epochs:
            counts = f"{epoch.num_once} samples once, {epoch.num_to_come} to come"
            print(f"step {trainer.global_step}, epoch {epoch.epoch}: {counts}")
        if not result.ok:
            raise SystemExit("the audit found samples that were lost or repeated")


if __name__ == "__main__":
    main()
