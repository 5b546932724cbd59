"""A job on a mesh: each process logs its place in the mesh and the ids of its batches.

Arguments, as JSON: `mesh` (sizes by name), `num_batches`, `folder`, `run`, `resume`, `num_workers`
and `save` ("sync", "async" or none).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

from feedline.trainers.torchtitan import build_dataloader


def main(settings: dict) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = settings["mesh"]
    mesh = init_device_mesh("cpu", tuple(names.values()), mesh_dim_names=tuple(names))
    loader = build_dataloader(
        torch.arange(settings["num_samples"]),
        mesh=mesh,
        batch_size=4,
        shuffle=True,
        seed=5,
        num_workers=settings["num_workers"],
    )
    folder = Path(settings["folder"])
    if settings["resume"]:
        dcp.load({"loader": loader}, checkpoint_id=folder / f"run{settings['run'] - 1}")
    batches = iter(loader)
    place = dict(zip(names, mesh.get_coordinate(), strict=True))
    with (folder / f"run{settings['run']}-rank{dist.get_rank()}.jsonl").open("w") as file:

        def take(num_batches: int) -> None:
            for _ in range(num_batches):
                ids = next(batches).tolist()
                marks = loader.delivered.is_real
                is_real = [True] * len(ids) if marks is None else marks.tolist()
                record = {"place": place, "epoch": loader.epoch, "ids": ids, "is_real": is_real}
                file.write(json.dumps(record) + "\n")

        take(settings["num_batches"])
        if settings["save"]:
            target = folder / f"run{settings['run']}"
            if settings["save"] == "async":
                future = dcp.async_save({"loader": loader}, checkpoint_id=target)
                # What comes while it is written is not in the checkpoint.
                file.flush()
                for _ in range(3):
                    next(batches)
                future.result()
            else:
                dcp.save({"loader": loader}, checkpoint_id=target)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
