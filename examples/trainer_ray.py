"""A training on Ray whose worker is killed, and that resumes on another number of workers.

    python examples/trainer_ray.py --folder out

Needs `pip install "feedline[torch,ray]"`. In the first run, on 2 workers, one is killed in the
middle of an epoch; Ray starts the workers again, from its latest checkpoint. The second run
resumes on 1 worker from where the first one has stopped. The checkpoint has how often each sample
was learned.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, prepare_data_loader

from feedline.torch import DataLoader
from feedline.trainers.ray import load_state, save_state

NUM_SAMPLES = 1000
NUM_EPOCHS = 2


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    rank = ray.train.get_context().get_world_rank()
    loader: Any = DataLoader(torch.arange(NUM_SAMPLES), batch_size=16, shuffle=True, seed=7)
    loader = prepare_data_loader(loader)
    learned = torch.zeros(NUM_EPOCHS, NUM_SAMPLES, dtype=torch.int64)
    checkpoint = config["checkpoint"] or ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            learned = torch.load(Path(folder) / "learned.pt")
            load_state(folder, loader=loader)

    for epoch in range(loader.next_epoch, NUM_EPOCHS):
        for batch in loader:
            # What a step does: the ranks add up what they have learned of their batches.
            is_real = loader.delivered.is_real
            step = torch.zeros_like(learned)
            step[epoch, batch if is_real is None else batch[torch.from_numpy(is_real)]] = 1
            dist.all_reduce(step)
            learned += step
            num_learned = int(learned.sum())
            if rank == 1 and num_learned > 500 and not os.path.exists(config["killed"]):
                Path(config["killed"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            is_end = num_learned >= config["stop_after"]
            if is_end or num_learned % 10 == 0:
                report(rank, loader, learned)
            if is_end:
                return


def report(rank: int, loader: Any, learned: torch.Tensor) -> None:
    """Report a checkpoint to Ray; rank 0 has it."""
    metrics = {"learned": int(learned.sum()), "most": int(learned.max())}
    if rank:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(learned, Path(folder) / "learned.pt")
        save_state(folder, loader=loader)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def run(folder: Path, name: str, num_workers: int, checkpoint: Any, stop_after: int) -> Any:
    """Train on some workers, and return the result."""
    return TorchTrainer(
        train,
        train_loop_config={
            "checkpoint": checkpoint,
            "stop_after": stop_after,
            "killed": str(folder.absolute() / "killed"),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(folder.absolute()),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit()


def main() -> None:
    """Run both trainings, and account for every sample."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    first = run(folder, "first", 2, None, stop_after=1200)
    assert (folder / "killed").exists(), "no worker was killed"
    print(f"2 workers, one of them killed: {first.metrics['learned']} samples are learned")
    second = run(folder, "second", 1, first.checkpoint, stop_after=NUM_EPOCHS * NUM_SAMPLES)
    assert second.metrics["learned"] == NUM_EPOCHS * NUM_SAMPLES
    assert second.metrics["most"] == 1
    print(f"1 worker: {second.metrics['learned']} samples are learned, each once in each epoch")
    ray.shutdown()


if __name__ == "__main__":
    main()
