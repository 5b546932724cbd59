"""Training loops without a model under one launch, with signals at chosen steps of chosen ranks.

Arguments: one JSON object with `folder`, `grace` (seconds or null) and `runs`, one after another.
Each run has a `name`, `loader` (feedline or plain), `load` (the name of a run to go on with, or
null), `preemption_signal`, and `send`: null, or `rank`, `step`, `moment` (train, validate or save),
`to` (self, groups or workers) and `signals` with the seconds to sleep before each. At the end the
ranks part ways on purpose.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.utils.data

from feedline.errors import DesyncError
from feedline.steps import signal_handler
from feedline.torch import DataLoader, DistributedSampler, StepScheduler
from loader_data import Ids

NUM_SAMPLES = 50
LOCAL_BATCH_SIZE = 2
GRAD_ACC_STEPS = 2
NUM_EPOCHS = 3
CKPT_EVERY = 3
VAL_EVERY = 2


def make_loader(kind: str) -> Any:
    """Return a loader of one kind with a worker; the ranks come from the process group."""
    data = Ids(NUM_SAMPLES)
    options: dict[str, Any] = {"batch_size": LOCAL_BATCH_SIZE, "num_workers": 1}
    if kind == "feedline":
        return DataLoader(data, sampler=DistributedSampler(data, drop_last=False), **options)
    sampler = torch.utils.data.DistributedSampler(data)  # type: ignore[arg-type, var-annotated]
    return torch.utils.data.DataLoader(data, sampler=sampler, **options)  # type: ignore[arg-type]


class Sender:
    """Sends the signals of a run when their moment comes; all ranks call it together."""

    def __init__(self, plan: dict[str, Any] | None) -> None:
        self._plan = plan

    def __call__(self, step: int, moment: str) -> None:
        plan = self._plan
        if plan is None or (step, moment) != (plan["step"], plan["moment"]):
            return
        pids = self._targets(plan)
        for number, pause in plan["signals"]:
            time.sleep(pause)
            for pid in pids:
                os.killpg(pid, number) if plan["to"] == "groups" else os.kill(pid, number)
        dist.barrier()

    def _targets(self, plan: dict[str, Any]) -> list[int]:
        rank = dist.get_rank()
        if plan["to"] == "self":
            return [os.getpid()] if rank == plan["rank"] else []
        workers = [child.pid for child in multiprocessing.active_children()]
        assert workers, "the loader must have workers by now"
        known: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(known, [os.getpid(), workers])
        # What a worker hears from its own rank ends it; so each rank tells its neighbour's.
        neighbour, of_neighbour = known[(rank + 1) % len(known)]
        if plan["to"] == "workers":
            return list(of_neighbour)
        assert os.getpgid(neighbour) == neighbour, "a rank is in a group of its own"
        assert all(os.getpgid(pid) == neighbour for pid in of_neighbour)
        return [neighbour]


def run_one(run: dict[str, Any], folder: Path) -> None:
    """Train until the end, or until a signal stops it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    loader = make_loader(run["loader"])
    scheduler = StepScheduler(
        LOCAL_BATCH_SIZE * GRAD_ACC_STEPS * size,
        LOCAL_BATCH_SIZE,
        size,
        loader,
        ckpt_every_steps=CKPT_EVERY,
        val_every_steps=VAL_EVERY,
        save_checkpoint_every_epoch=False,
        num_epochs=NUM_EPOCHS,
        preemption_signal=run["preemption_signal"],
    )
    if run["load"]:
        saves = (folder / f"{run['load']}.saves.jsonl").read_text().splitlines()
        scheduler.load_state_dict(json.loads(saves[-1])["state"])
    send = Sender(run["send"])
    name = folder / f"{run['name']}.rank{rank}.jsonl"
    with scheduler, name.open("w") as log:

        def note(entry: Any) -> None:
            log.write(json.dumps(entry) + "\n")
            log.flush()

        for epoch in scheduler.epochs:
            for batches in scheduler:
                ids = [batch.tolist() for batch in batches]
                note([epoch, scheduler.step, ids])
                send(scheduler.step, "train")
                if scheduler.is_ckpt_step:
                    send(scheduler.step, "save")
                    if rank == 0:
                        save(folder / f"{run['name']}.saves.jsonl", scheduler)
                if scheduler.is_val_step:
                    send(scheduler.step, "validate")
        note(["stopped", scheduler.step, scheduler.stop_reason])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not multiprocessing.active_children(), "closing the clock ends the workers"


def part_ways(folder: Path) -> None:
    """Let one rank be a step ahead of the others, and note what each of them makes of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = [[number] for number in range(8)]
    options = {"start_step": 5 if rank == 1 else 4, "num_epochs": 1, "preemption_signal": None}
    scheduler = StepScheduler(size, 1, size, batches, **options)
    said = ""
    for _ in scheduler:
        try:
            _ = scheduler.is_ckpt_step
        except DesyncError as error:
            said = str(error)
        break
    (folder / f"parted.rank{rank}.txt").write_text(said)


def hear(folder: Path) -> None:
    """Let one rank get a signal before the first step, and note what each of them knows of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = [[number] for number in range(8)]
    options = {"num_epochs": 2, "preemption_signal": "USR2"}
    with (
        signal_handler.DistributedSignalHandler(sig="USR2") as handler,
        StepScheduler(size, 1, size, batches, **options) as scheduler,
    ):
        before = [handler.signals_received(), scheduler.sigterm_received]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        after = [handler.signals_received(), scheduler.sigterm_received]
        noted = [before, after, list(scheduler.epochs), scheduler.step, scheduler.stop_reason]
    (folder / f"heard.rank{rank}.json").write_text(json.dumps(noted))


def save(path: Path, scheduler: StepScheduler) -> None:
    """Append the state after this step."""
    with path.open("a") as saves:
        entry = {"step": scheduler.step, "state": scheduler.state_dict()}
        saves.write(json.dumps(entry) + "\n")


def main(job: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    if job["grace"] is not None:
        signal_handler.GRACE_SECONDS = job["grace"]
    folder = Path(job["folder"])
    (folder / f"rank{dist.get_rank()}.pid").write_text(str(os.getpid()))
    for run in job["runs"]:
        run_one(run, folder)
        dist.barrier()
    hear(folder)
    part_ways(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
