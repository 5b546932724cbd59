"""A job with data and tensor parallelism that is saved while it trains, and resumes resized.

    torchrun --standalone --nproc-per-node 4 examples/trainer_torchtitan.py --dp 2 --tp 2
    torchrun --standalone --nproc-per-node 3 examples/trainer_torchtitan.py --dp 3 --tp 1

The first run has two data-parallel ranks of two tensor-parallel processes each, and saves with
`async_save`. The second one resumes on three data-parallel ranks, and finishes the second epoch.
It needs torch alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh

from feedline.trainers.torchtitan import Endless, build_dataloader

NUM_SAMPLES, NUM_EPOCHS, STEPS_OF_FIRST_RUN = 240, 2, 20


class Seen:
    """The samples that the data-parallel ranks have received, by epoch; saved with the rest."""

    def __init__(self) -> None:
        self.counts = torch.zeros(NUM_EPOCHS, NUM_SAMPLES, dtype=torch.int64)

    def add(self, epoch: int, ids: torch.Tensor) -> None:
        """Count a batch of every data-parallel rank."""
        self.counts[epoch] += torch.bincount(ids, minlength=NUM_SAMPLES)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the counts of an earlier run."""
        self.counts = state["counts"]


def real_ids(loader: Endless, batch: torch.Tensor, is_first: bool) -> torch.Tensor:
    """Return the real samples of a batch on all data-parallel ranks."""
    marks = loader.delivered.is_real
    mine = (batch if marks is None else batch[torch.from_numpy(marks)]).tolist()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine if is_first else [])
    return torch.tensor([one for part in told for one in part], dtype=torch.int64)


def train(folder: Path, sizes: tuple[int, int]) -> None:
    """Train until the epochs are done, or until the first run has had its steps."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    loader = build_dataloader(
        torch.arange(NUM_SAMPLES), mesh=mesh, batch_size=4, shuffle=True, seed=7
    )
    assert isinstance(loader, Endless)
    seen, is_resumed = Seen(), folder.exists()
    if is_resumed:
        load({"loader": loader, "seen": seen}, checkpoint_id=folder)
    dist.barrier()
    batches, num_steps = iter(loader), 0
    while loader.next_epoch < NUM_EPOCHS and (is_resumed or num_steps < STEPS_OF_FIRST_RUN):
        batch = next(batches)
        # All tensor-parallel ranks have the same batch.
        of_group: list[Any] = [None] * sizes[1]
        dist.all_gather_object(of_group, batch.tolist(), group=mesh["tp"].get_group())
        assert of_group == [batch.tolist()] * sizes[1]
        seen.add(loader.epoch, real_ids(loader, batch, mesh["tp"].get_local_rank() == 0))
        num_steps += 1
    if not is_resumed:
        saving: Any = async_save({"loader": loader, "seen": seen}, checkpoint_id=folder)
        next(batches)  # the training goes on while the checkpoint is written
        saving.result()
    if dist.get_rank() == 0:
        found = [Counter(epoch.tolist()) for epoch in seen.counts]
        shown = ", ".join(f"epoch {n}: {one[1]} samples once" for n, one in enumerate(found))
        print(f"dp={sizes[0]}, tp={sizes[1]}: {num_steps} steps; {shown}")
        if is_resumed and any(set(one) != {1} for one in found):
            raise SystemExit("samples were lost or repeated")


def main() -> None:
    """Train in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp", type=int, required=True, help="data-parallel ranks")
    parser.add_argument("--tp", type=int, required=True, help="processes that share their data")
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments.folder, (arguments.dp, arguments.tp))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
