"""Data-parallel training that is stopped and resumes on another number of processes.

Run it with 2 processes, then with 3, then with 1 until the end, and audit what they received:

    torchrun --standalone --nproc-per-node 2 examples/torch_ddp.py --folder out --stop-after 14
    torchrun --standalone --nproc-per-node 3 examples/torch_ddp.py --folder out --stop-after 14
    torchrun --standalone --nproc-per-node 1 examples/torch_ddp.py --folder out
    feedline audit out/logs --complete

`--stop-after` sends SIGTERM to one process after so many steps, as a cluster does that wants its
machine back. All of them save and stop after the same step. The next run resumes there.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from feedline.runs import audit_logs
from feedline.torch import DataLoader, DistributedSampler, StepScheduler

NUM_SAMPLES, NUM_EPOCHS, LEARNING_RATE = 960, 2, 0.05
GLOBAL_BATCH_SIZE, LOCAL_BATCH_SIZE = 48, 8  # 48 samples a step, on 1, 2, 3 or 6 processes


def make_dataset() -> TensorDataset:
    """Return points and a value for each, the same in every process."""
    points = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(points, points.square().mean(dim=1))


def make_model() -> nn.Module:
    """Return a small model, the same in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))


def train(folder: Path, stop_after: int | None) -> None:
    """Train until the end, or until a signal comes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, seed=7)  # rank and world size are those of the group
    loader = DataLoader(dataset, LOCAL_BATCH_SIZE, sampler=sampler, log=folder / "logs")
    clock = StepScheduler(
        GLOBAL_BATCH_SIZE, dataloader=loader, ckpt_every_steps=10, num_epochs=NUM_EPOCHS
    )

    model = make_model()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        clock.load_state_dict(state["clock"])  # the step, and the place in the data
    first_step = clock.step

    with clock:
        for _ in clock.epochs:
            for batches in clock:  # on one process 6 batches of 8 samples, on three 2
                num_samples = sum(len(points) for points, _ in batches)
                optimizer.zero_grad()
                for points, values in batches:
                    loss = (parallel(points) - values).square().sum() / num_samples
                    loss.backward()
                optimizer.step()
                if clock.step + 1 - first_step == stop_after and rank == world_size - 1:
                    signal.raise_signal(signal.SIGTERM)
                if clock.is_ckpt_step and rank == 0:
                    save(checkpoint, model, optimizer, clock.state_dict())
    if rank == 0:
        done = f"{clock.step - first_step} steps, {clock.stop_reason or 'the training is over'}"
        print(f"world_size={world_size}: {done}")


def save(path: Path, model: nn.Module, optimizer: torch.optim.SGD, clock: object) -> None:
    """Write a checkpoint; a process that is killed leaves the old one or the new."""
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "clock": clock}
    unfinished = path.with_suffix(".tmp")
    torch.save(parts, unfinished)
    os.replace(unfinished, path)


def main() -> None:
    """Train in this process, and audit what all processes of all runs received so far."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoint and logs")
    parser.add_argument("--stop-after", type=int, help="stop after so many steps of this run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments.folder, arguments.stop_after)
    dist.barrier()  # until all logs are written
    if dist.get_rank() == 0:
        result = audit_logs([arguments.folder / "logs"])
        for epoch in result.epochs:
            counts = f"{epoch.num_once} samples once, {epoch.num_to_come} to come"
            print(f"epoch {epoch.epoch}: {counts}")
        if not result.ok:
            raise SystemExit("the audit found samples that were lost or repeated")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
