"""Validates, tests and predicts on several ranks with Lightning's defaults; prints what they got.

Rank 0 prints one line of JSON: for each way to make a loader, the samples of all ranks.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lightning_models import Model, quiet_trainer

from feedline.plan import SamplePlan, Shuffled
from feedline.torch import BatchPlanSampler, DataLoader, DistributedSampler
from feedline.trainers.lightning import FeedlineCallback

NUM_SAMPLES = 41
IDS = torch.arange(NUM_SAMPLES)

Makes = Callable[[bool], DataLoader[Any]]
PLAN = SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=3), tail="even")
LOADERS: dict[str, Makes] = {
    "shuffle": lambda mask: DataLoader(IDS, batch_size=4, shuffle=True, with_mask=mask),
    "sampler": lambda mask: DataLoader(
        IDS, batch_size=4, sampler=DistributedSampler(IDS, drop_last=False), with_mask=mask
    ),
    "plan": lambda mask: DataLoader(IDS, batch_size=4, sampler=PLAN, with_mask=mask),
    "batch sampler": lambda mask: DataLoader(
        IDS, batch_sampler=BatchPlanSampler(PLAN, batch_size=4), with_mask=mask
    ),
}
OF_BATCHES = ("plan", "batch sampler")
IS_OLD = tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 3)


def trainer() -> Trainer:
    """A trainer on all ranks, with Lightning's defaults for samplers."""
    options: dict[str, Any] = {"strategy": "ddp", "devices": 2, "max_epochs": 1}
    return quiet_trainer([FeedlineCallback()], **options)


def gathered(values: Any) -> list[Any]:
    """The values of all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, values)
    return found


def main() -> None:
    """Run everything, and print it on rank 0."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, make in LOADERS.items():
        model, runs = Model(), trainer()
        runs.fit(model, make(False))
        found[f"fit {name}"] = gathered(model.ids(0))
        model = Model()
        [logged] = trainer().validate(model, make(True), verbose=False)
        found[f"validate {name}"] = gathered(model.seen)
        found[f"mean {name}"] = gathered(logged["mean"])
        model = Model()
        trainer().test(model, make(True), verbose=False)
        found[f"test {name}"] = gathered(model.seen)
        if name in OF_BATCHES and IS_OLD:
            # Releases before 2.3 refuse every batch sampler of others.
            with suppress(TypeError):
                trainer().predict(Model(), make(True))
                raise AssertionError(f"{name} is not refused")
            continue
        predicted = trainer().predict(Model(), make(True)) or []
        real = [one for values, is_real in predicted for one in values[is_real].tolist()]
        found[f"predict {name}"] = gathered(real)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
