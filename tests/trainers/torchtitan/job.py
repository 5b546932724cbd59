"""Trains as torchtitan does: a mesh, batches without end, and its own checkpoint manager, async."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.components.checkpoint import CheckpointManager

from feedline.torch import DataLoader
from feedline.trainers.torchtitan import Endless, build_dataloader  # feedline
from trainer_job import Settings, StepLog, run_job


def checkpoint_manager(loader: Endless | DataLoader[Any], settings: Settings) -> CheckpointManager:
    """Return torchtitan's checkpoint manager, which saves in the background."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"enable": True, "folder": str(settings.folder), "interval": 10**9}
    parts = {
        "dataloader": loader,
        "model_parts": [model],
        "optimizers": optimizer,
        "lr_schedulers": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "states": {},
        "sd_adapter": None,
    }
    if hasattr(CheckpointManager, "Config"):
        return CheckpointManager.Config(async_mode="async", **config).build(**parts)
    # Before 0.3.
    from torchtitan.config import Checkpoint

    return CheckpointManager(checkpoint_config=Checkpoint(async_mode="async", **config), **parts)


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    loader = build_dataloader(  # feedline
        torch.arange(settings.num_samples),
        mesh["dp"].get_local_rank(),
        mesh["dp"].size(),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    checkpointer = checkpoint_manager(loader, settings)
    # Steps on any number of ranks, so that checkpoints of later runs are later.
    step = 1000 * settings.run
    if settings.resume:
        assert checkpointer.load()
    log = StepLog(settings)
    batches = iter(loader)
    while loader.next_epoch < settings.num_epochs:
        ids = next(batches)
        delivered = loader.delivered
        log.write(loader.epoch, delivered.number, ids.tolist(), delivered.is_real)
        step += 1
        if log.num_batches == settings.stop_after:
            checkpointer.interval = step
            checkpointer.save(step)
            checkpointer.save_future.result()
            break
    checkpointer.close()
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_job(main)
