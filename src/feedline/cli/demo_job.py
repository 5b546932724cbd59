"""The training of the demo, one rank of it: `torchrun -m feedline.cli.demo_job '{…}'`.

The argument is JSON: `folder`; `run`, the name of this run; `slow_step`, from which steps are slow,
so that the run can be stopped before its end; and `drop_one`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feedline.cli.demo_data import GLOBAL_BATCH_SIZE, LOCAL_BATCH_SIZE, SOURCES, PackedSource
from feedline.errors import DesyncError
from feedline.feed import Delivered, LoaderWrapper
from feedline.runs import ConsumptionLog, LoggedLoader
from feedline.torch import DataLoader, MixtureDataset, MixtureSampler, StepScheduler

CKPT_EVERY_STEPS = 10
_SECONDS_PER_STEP, _SECONDS_PER_SLOW_STEP = 0.02, 1.0


class DropsOne(LoaderWrapper):
    """A loader that removes one sample from its first batch: the fault that an audit must find."""

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            yield [part[int(number == 0) :] for part in batch]

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch, with the samples that are left in it."""
        record = self.loader.delivered
        if record is None or record.number or record.ids is None:
            return record
        left = record.ids[1:]
        return SimpleNamespace(number=0, ids=left, is_real=None, bucket=None, num_real=len(left))


class Training:
    """A small model, its optimizer, the data and the clock."""

    def __init__(self, folder: Path, run: str, *, drop_one: bool) -> None:
        self.rank, size = dist.get_rank(), dist.get_world_size()
        self.checkpoint = folder / "checkpoint.pt"
        torch.manual_seed(7)
        layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        self.model = DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        data = MixtureDataset([PackedSource(folder / name) for name in SOURCES], list(SOURCES))
        # In proportion to their sizes, both sources are consumed once in an epoch.
        sampler = MixtureSampler(data.cumulative_sizes, list(SOURCES.values()), seed=7)
        loader: Any = DataLoader(data, LOCAL_BATCH_SIZE, sampler=sampler, num_workers=1)
        if drop_one and self.rank == size - 1:
            loader = DropsOne(loader)
        info = {"sources": SOURCES, "weights": SOURCES, "tail": "drop", "entry_size": 1}
        info["batch_size"] = LOCAL_BATCH_SIZE
        path = folder / "logs" / run / f"rank{self.rank}.log"
        self.log = ConsumptionLog(path, rank=self.rank, world_size=size, run=run, info=info)
        self.loader = LoggedLoader(loader, self.log)
        self.clock = StepScheduler(
            GLOBAL_BATCH_SIZE,
            LOCAL_BATCH_SIZE,
            size,
            self.loader,
            ckpt_every_steps=CKPT_EVERY_STEPS,
            num_epochs=1,
        )

    def load(self) -> None:
        """Resume from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            self.log.event("start", pid=os.getpid())
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.clock.load_state_dict(state["clock"])
        self.log.event("resume", step=self.clock.step, pid=os.getpid())

    def save(self) -> None:
        """Write a checkpoint atomically, on rank 0."""
        state = self.clock.state_dict()
        if self.rank == 0:
            unfinished = self.checkpoint.with_suffix(".tmp")
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
            torch.save({"model": model, "optimizer": optimizer, "clock": state}, unfinished)
            os.replace(unfinished, self.checkpoint)
        self.log.event("checkpoint", step=state["step"], loss=self.clock.loss_average)

    def step(self, batches: list[Any]) -> None:
        """Train on the batches of a step."""
        self.optimizer.zero_grad()
        total = 0.0
        for _, features, target in batches:
            loss = nn.functional.mse_loss(self.model(features)[:, 0], target) / len(batches)
            loss.backward()
            total += float(loss.detach())
        # The samples say themselves which they are. If they are not those in the log, it lies.
        record = self.loader.delivered
        assert record is not None
        assert record.ids is not None
        if batches[-1][0].tolist() != record.ids.tolist():
            raise DesyncError(f"rank {self.rank} received other samples than in its log")
        self.optimizer.step()
        self.clock.record_loss(total)


def main(job: dict[str, Any]) -> None:
    """Train until the epoch ends, or a signal comes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(Path(job["folder"]), job["run"], drop_one=job["drop_one"])
    training.load()
    with training.clock as clock, training.log as log:
        for _ in clock.epochs:
            for batches in clock:
                training.step(batches)
                is_slow = clock.step >= job["slow_step"]
                time.sleep(_SECONDS_PER_SLOW_STEP if is_slow else _SECONDS_PER_STEP)
                if clock.is_ckpt_step:
                    training.save()
        log.event("stop", step=clock.step, reason=clock.stop_reason)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
