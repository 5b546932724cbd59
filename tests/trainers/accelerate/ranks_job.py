"""Checks that need several ranks of accelerate; each prints one line of JSON on rank 0.

Arguments: `metrics NUM_SAMPLES` (gather them), `unequal FOLDER` (ranks with batches of unequal
sizes), `iterable` (prepare an iterable dataset), `refused CONFIG` (prepare with such settings).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration

import feedline
from feedline.errors import InvalidValueError
from feedline.torch import DataLoader
from feedline.trainers.accelerate import PaddingGathered, gather_for_metrics
from iterable_data import Counting


def say(accelerator: Accelerator, told: Any) -> None:
    if accelerator.is_main_process:
        print(json.dumps(told), flush=True)


def metrics(accelerator: Accelerator, num_samples: int) -> None:
    ids = torch.arange(num_samples)
    loader = accelerator.prepare(DataLoader(ids, batch_size=2, shuffle=True, seed=1))
    ours: list[int] = []
    objects: list[int] = []
    for batch in loader:
        gathered = gather_for_metrics(accelerator, loader, {"a": batch, "b": (batch * 2,)})
        assert torch.equal(gathered["a"] * 2, gathered["b"][0])
        ours += gathered["a"].tolist()
        objects += gather_for_metrics(accelerator, loader, batch.tolist(), use_gather_object=True)
    theirs: list[int] = []
    refused = ""
    try:
        for batch in loader:
            theirs += accelerator.gather_for_metrics(batch).tolist()
    except PaddingGathered as error:
        refused = str(error)
    told = {"ours": sorted(ours), "objects": sorted(objects), "theirs": len(theirs)}
    say(accelerator, {**told, "refused": refused})


def unequal(accelerator: Accelerator, folder: str) -> None:
    if accelerator.is_main_process:
        feedline.pack({"x": np.arange(10)}, folder)
    accelerator.wait_for_everyone()
    loader = accelerator.prepare(DataLoader(feedline.open(folder), batch_size=8))
    sizes, ours = [], []
    for batch in loader:
        sizes.append(len(batch["x"]))
        ours += gather_for_metrics(accelerator, loader, batch["x"]).tolist()
    gathered = accelerator.gather(torch.tensor(sizes)).tolist()
    say(accelerator, {"ours": sorted(ours), "sizes": gathered})


def refused(accelerator: Accelerator, loader: Any) -> None:
    try:
        accelerator.prepare(loader)
    except InvalidValueError as error:
        say(accelerator, {"refused": str(error)})
    else:
        say(accelerator, {"refused": ""})


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "refused":
        config = DataLoaderConfiguration(**json.loads(arguments[0]))
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        refused(accelerator, DataLoader(list(range(10)), batch_size=2))
        return
    accelerator = Accelerator(cpu=True)
    if kind == "iterable":
        refused(accelerator, DataLoader(Counting(10), batch_size=2))
    elif kind == "unequal":
        unequal(accelerator, arguments[0])
    else:
        metrics(accelerator, int(arguments[0]))


if __name__ == "__main__":
    main()
    # A rank that has ended already cannot be connected to.
    torch.distributed.barrier()
    # At exit, the threads of the group may end the process.
    torch.distributed.destroy_process_group()
