"""Whole runs of a clock, and a plain model of what each of their steps must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clock_loaders import ids_of
from feedline.steps import Alone, StepScheduler

Record = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the interface document says of a run, counted out step by step."""

    epochs: Sequence[Sequence[Any]]
    grad_acc: int = 1
    max_steps: int | None = None
    ckpt_every: int = 10**9
    every_epoch: bool = True
    val_every: int | None = None
    log_every: int = 1
    gc_every: int | None = None
    start_step: int = 0
    start_epoch: int = 0

    def records(self) -> list[Record]:
        """What is true while each step is out."""
        found: list[Record] = []
        step = self.start_step
        for epoch in range(self.start_epoch, len(self.epochs)):
            batches = list(self.epochs[epoch])
            for first in range(0, len(batches), self.grad_acc):
                if self.max_steps is not None and step >= self.max_steps:
                    return found
                is_last_batch = first + self.grad_acc >= len(batches)
                found.append(self._record(epoch, step, is_last_batch))
                found[-1]["ids"] = batches[first : first + self.grad_acc]
                step += 1
        return found

    def _record(self, epoch: int, step: int, is_last_batch: bool) -> Record:
        def is_due(every: int | None) -> bool:
            return every is not None and step % every == every - 1

        is_last_step = step + 1 == self.max_steps or (
            is_last_batch and epoch == len(self.epochs) - 1
        )
        is_ckpt = is_last_step or is_due(self.ckpt_every) or (self.every_epoch and is_last_batch)
        return {
            "epoch": epoch,
            "step": step,
            "is_last_batch": is_last_batch,
            "is_last_step": is_last_step,
            "is_ckpt_step": is_ckpt,
            "is_val_step": is_ckpt or is_due(self.val_every),
            "is_remote_logging_step": step % self.log_every == 0,
            "is_gc_step": self.gc_every is not None and step % self.gc_every == 0,
            "sigterm_received": False,
        }


def record_of(scheduler: StepScheduler, batches: list[Any]) -> Record:
    """What a clock says while a step is out."""
    names = (
        *("epoch", "step", "is_last_batch", "is_last_step", "is_ckpt_step", "is_val_step"),
        *("is_remote_logging_step", "is_gc_step", "sigterm_received"),
    )
    record = {name: getattr(scheduler, name) for name in names}
    return {**record, "ids": [ids_of(batch) for batch in batches]}


def records_of(scheduler: StepScheduler) -> list[Record]:
    """What a clock says at each step of the rest of its run."""
    found = []
    for epoch in scheduler.epochs:
        for batches in scheduler:
            assert scheduler.epoch == epoch
            found.append(record_of(scheduler, batches))
    return found


def epochs_of(make: Callable[[], Any], num_epochs: int) -> list[list[list[int]]]:
    """The ids of each batch of each epoch, from plain walks through a loader."""
    loader = make()
    found = []
    for epoch in range(num_epochs):
        for part in (loader, getattr(loader, "sampler", None)):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)  # type: ignore[union-attr]
        found.append([ids_of(batch) for batch in loader])
    return found


def steps_of(records: list[Record]) -> list[tuple[int, int, Any]]:
    """Epoch, step and ids alone."""
    return [(record["epoch"], record["step"], record["ids"]) for record in records]


def scheduler_for(loader: Any, *, grad_acc: int = 1, **options: Any) -> StepScheduler:
    """A clock of steps of so many batches that hears no signals; the loader knows its sizes."""
    local = getattr(loader, "batch_size", None) or 1
    size = loader.peers.world_size if hasattr(loader, "peers") else 1
    options = {"preemption_signal": None, "peers": Alone(), **options}
    return StepScheduler(grad_acc * local * size, local, size, loader, **options)


class Silent(Alone):
    """One rank of several that it cannot talk to."""

    def __init__(self, world_size: int, rank: int = 0) -> None:
        self.world_size = world_size
        self.rank = rank


def saved(scheduler: StepScheduler) -> State:
    """The state of a clock as it comes back from a file."""
    state: State = json.loads(json.dumps(scheduler.state_dict()))
    return state
