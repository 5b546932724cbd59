"""The job of Ray Train: a trainer of torch, `prepare_data_loader`, and checkpoints of Ray."""

from __future__ import annotations

import tempfile
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader

from feedline.errors import FeedlineError
from feedline.torch import DataLoader  # feedline
from feedline.trainers.ray import load_state, save_state  # feedline
from trainer_job import Settings, StepLog, run_job


def train(config: dict[str, Any]) -> None:
    """Train on one worker, from the checkpoint if there is one."""
    settings: Settings = config["settings"]
    rank = ray.train.get_context().get_world_rank()
    loader: Any = DataLoader(  # feedline
        torch.arange(settings.num_samples),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    assert prepare_data_loader(loader) is loader
    load_state(config["checkpoint"], loader=loader)  # feedline
    log = StepLog(settings, rank)
    for epoch in range(loader.next_epoch, settings.num_epochs):  # feedline
        for number, batch in enumerate(loader):
            assert loader.epoch == epoch
            log.write(epoch, number, batch.tolist(), loader.delivered.is_real)
            if log.num_batches == settings.stop_after:
                report(loader, rank)
                return


def report(loader: Any, rank: int) -> None:
    """Report a checkpoint to Ray; rank 0 has it."""
    if rank:
        ray.train.report({})
        return
    with tempfile.TemporaryDirectory() as folder:
        save_state(folder, loader=loader)  # feedline
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main(settings: Settings) -> None:
    """Train on a cluster, and remember where the checkpoint is."""
    where = settings.folder / "checkpoint.txt"
    checkpoint = ray.train.Checkpoint(where.read_text()) if settings.resume else None
    ray.init("auto", logging_level="ERROR", log_to_driver=False)
    result = TorchTrainer(
        train,
        train_loop_config={"settings": settings, "checkpoint": checkpoint},
        scaling_config=ray.train.ScalingConfig(num_workers=settings.num_processes),
        run_config=ray.train.RunConfig(
            name=f"run{settings.run}", storage_path=str(settings.folder)
        ),
    ).fit()
    if result.checkpoint is not None:
        where.write_text(result.checkpoint.path)


if __name__ == "__main__":
    run_job(main, (FeedlineError,))
