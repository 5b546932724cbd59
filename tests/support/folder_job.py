"""A training loop over a folder, without a model: each rank writes down the ids it receives.

Arguments: one JSON object with `data` (the folder), `odd_data` (another one for rank 1, or null),
`folder`, `run`, `batch_size`, `num_workers`, `load` (a checkpoint or null), `stop_after` (steps or
null) and `every` (steps between checkpoints). SIGTERM ends the loop after a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from feedline.errors import DesyncError
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset
from lazy_data import check_batch


class Notice:
    """Whether this rank was asked to end."""

    def __init__(self) -> None:
        self.has_come = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, *_: Any) -> None:
        self.has_come = True


def stay(_: int) -> None:
    """Let a worker ignore SIGTERM, which torchrun sends to the whole group of processes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def any_rank(value: bool) -> bool:
    """Whether it is so on any rank."""
    flag = torch.tensor(int(value))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def main(job: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    notice = Notice()
    folder = Path(job["folder"])
    data = job["odd_data"] if rank == 1 and job["odd_data"] else job["data"]
    config = FolderConfig(batch_size=job["batch_size"], num_workers=job["num_workers"], seed=5)
    dataset = LazyFolderDataset(data, config, desync_timeout=20)
    loader = DataLoader(
        dataset, num_workers=job["num_workers"], with_mask=True, worker_init_fn=stay
    )
    if job["load"]:
        loader.load_state_dict(json.loads(Path(job["load"]).read_text())["state"])
    try:
        consume(loader, job, rank, folder, notice)
    except DesyncError as error:
        (folder / f"{job['run']}.rank{rank}.error").write_text(str(error))
        # At a normal exit gloo may abort when its peers are gone already.
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()


def consume(
    loader: DataLoader[Any], job: dict[str, Any], rank: int, folder: Path, notice: Notice
) -> None:
    """Log every batch, and save a checkpoint now and then."""
    checkpoint = folder / f"{job['run']}.json"
    step = 0
    with (folder / f"{job['run']}.rank{rank}.jsonl").open("w") as log:
        for batch, is_real in loader:
            step += 1
            ids = torch.tensor(check_batch(batch))
            log.write(json.dumps([step, ids[is_real].tolist()]) + "\n")
            log.flush()
            is_last = any_rank(notice.has_come) or step == job["stop_after"]
            if step % job["every"] == 0 or is_last:
                dist.barrier()
                if rank == 0:
                    saved = {"state": loader.state_dict(), "step": step}
                    checkpoint.with_suffix(".tmp").write_text(json.dumps(saved))
                    os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
            if is_last:
                break
            time.sleep(0.02)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
