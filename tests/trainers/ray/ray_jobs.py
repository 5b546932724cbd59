"""What the tests run in workers of Ray Train, and how.

The model is the number of times that it has learned each sample, which is in the checkpoint. So
what was learned after a checkpoint that a run goes back to does not count, as in any training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, prepare_data_loader

from feedline.torch import DataLoader, StepScheduler
from feedline.trainers import ray as ours
from feedline.trainers.ray import load_state, save_state

IS_V2 = hasattr(ray.train, "UserCallback")
NUM_EPOCHS = 2


def trainer_without_torch() -> Any:
    """Return the trainer that makes no process group."""
    if IS_V2:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    else:
        from ray.train.data_parallel_trainer import DataParallelTrainer
    return DataParallelTrainer


def fit(
    job: Any, config: dict[str, Any], folder: Path, num_workers: Any, *, kind: Any = TorchTrainer,
    max_failures: int = 0, **scaling: Any
) -> Any:  # fmt: skip
    """Run a job on workers, and return its result."""
    return kind(
        job,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers, **scaling),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
        ),
    ).fit()


def learn(config: dict[str, Any]) -> None:
    """Train, with a checkpoint every few steps, until something happens as the test wants it."""
    folder = Path(config["folder"])
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    loader: Any = DataLoader(
        torch.arange(config["num_samples"]), batch_size=4, shuffle=True, seed=3
    )
    assert prepare_data_loader(loader) is loader
    clock = StepScheduler(
        dataloader=loader,
        global_batch_size=4 * world_size * config.get("grad_acc_steps", 1),
        num_epochs=NUM_EPOCHS,
        preemption_signal=None,
    )
    counts = torch.zeros(NUM_EPOCHS, config["num_samples"], dtype=torch.int64)
    source = config.get("checkpoint") or ray.train.get_checkpoint()
    if source is not None:
        with source.as_directory() as saved:
            counts = torch.load(Path(saved) / "counts.pt")
    load_state(source, clock=clock)
    attempt = note_attempt(folder, rank, world_size, clock.step)
    for epoch in clock.epochs:
        for batches in clock:
            learned = torch.zeros_like(counts)
            for number, batch in enumerate(batches):
                # The marks are known of the latest batch alone, so they are looked up by the plan.
                marks = loader.delivered.is_real if number == len(batches) - 1 else None
                ids = batch if marks is None else batch[torch.from_numpy(marks)]
                learned[epoch].index_add_(0, ids, torch.ones_like(ids))
            dist.all_reduce(learned)
            counts += learned
            if clock.step % 2 == 0:
                report(folder, rank, counts, clock)
            if attempt < len(kills := config.get("kills", [])) and kills[attempt] == [
                clock.step,
                rank,
            ]:
                os.kill(os.getpid(), signal.SIGKILL)
            if clock.step >= config.get("waits", {}).get(world_size, clock.step + 1):
                wait_for_phase(folder, world_size)
            if clock.step == config.get("stop_at"):
                report(folder, rank, counts, clock)
                return
    report(folder, rank, counts, clock)
    if rank == 0:
        (folder / "counts.json").write_text(json.dumps(counts.tolist()))


def note_attempt(folder: Path, rank: int, world_size: int, step: int) -> int:
    """Note that an attempt begins, and return how many there were before."""
    path = folder / f"attempts-{rank}.jsonl"
    before = attempts(folder) if rank == 0 else []
    if rank == 0:
        with path.open("a") as file:
            file.write(json.dumps([world_size, step]) + "\n")
    told = torch.tensor([len(before)])
    dist.all_reduce(told)
    return int(told)


def attempts(folder: Path) -> list[list[int]]:
    """Return the number of workers and the first step of each attempt so far."""
    path = folder / "attempts-0.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_phase(folder: Path, world_size: int) -> None:
    """Say that this many workers wait, and wait until the last phase of the test, or a restart."""
    (folder / f"waits-{world_size}").touch()
    while not (folder / "last-phase").exists() or world_size == 1:
        time.sleep(0.1)


def report(within: Path, rank: int, counts: torch.Tensor, clock: Any) -> None:
    """Report a checkpoint; rank 0 has it."""
    if rank:
        ray.train.report({})
        return
    # In the folder of the test: Ray kills workers at any time, and what they have begun stays.
    with tempfile.TemporaryDirectory(dir=within) as folder:
        torch.save(counts, Path(folder) / "counts.pt")
        save_state(folder, clock=clock)
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def told(check: Any) -> str:
    """Return what a check says, or its error."""
    try:
        return str(check())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def look(config: dict[str, Any]) -> None:
    """Try in two workers, without a group of torch, what loaders and peers do there."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    ids = torch.arange(40)
    # As if it was made before Ray's functions for torch were imported.
    modules = {name: sys.modules.pop(name) for name in ["ray.train.torch"]}
    early: Any = DataLoader(ids, batch_size=4)
    sys.modules.update(modules)
    loader: Any = DataLoader(ids, batch_size=4, shuffle=True, seed=3)
    peers = loader.peers.reached
    found: dict[str, Any] = {
        "peers": repr(peers),
        "run": ours._run(),
        "gathered": peers.gather({"rank": rank}, timeout=60),
        "maximum": [peers.maximum(2**60 + rank * step) for step in range(20)],
    }
    found["prepared"] = prepare_data_loader(loader) is loader
    found["early"] = early is prepare_data_loader(early)
    foreign = prepare_data_loader(torch.utils.data.DataLoader(ids, batch_size=4), False)
    found["foreign"] = [type(foreign).__name__, sum(len(batch) for batch in foreign)]
    found["ids"] = [one for batch in loader for one in batch.tolist()]
    other: Any = DataLoader(ids, batch_size=4, shuffle=True, seed=rank, desync_timeout=60)
    found["seeds"] = told(lambda: next(iter(other)))
    meta = torch.device("meta")
    found["meta"] = [batch.device.type for batch in _placed_on(loader, meta)][:1]
    found["twice"] = told(lambda: loader.deliver_on(torch.device("cpu")))
    # With 36 samples learned by one rank of four, a batch of one sample is left for each.
    alone: Any = DataLoader(ids[:9], batch_size=4, num_replicas=1, rank=0)
    batches = iter(alone)
    seen = [*next(batches).tolist(), *next(batches).tolist()]
    rest: Any = DataLoader(ids[:9], batch_size=4)
    rest.load_state_dict(alone.state_dict())
    found["few left"] = seen
    for batch in rest:
        marks = rest.delivered.is_real
        real = batch if marks is None else batch[torch.from_numpy(marks)]
        found["few left"] += real.tolist()
    found["late"] = ""
    if rank == 0:
        found["late"] = told(lambda: peers.gather(0, timeout=1))
    (Path(config["folder"]) / f"found-{rank}.json").write_text(json.dumps(found))
    ray.train.report({})


def _placed_on(loader: Any, device: torch.device) -> Any:
    loader.deliver_on(device)
    return loader
