"""Ranks over an iterable dataset: each writes down what it receives and saves its own state.

Arguments: one JSON object with `folder`, `run`, `sizes` (the samples of each rank), `num_workers`,
`load` (the name of a run, or null), `tail`, and `pause` (seconds of a step).
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist

from feedline.errors import DesyncError
from feedline.torch import DataLoader
from iterable_data import Counting


def main(job: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(job["folder"])
    data = Counting(job["sizes"][rank], fails_at=job.get("fails_at", {}).get(str(rank), -1))
    options = {"num_workers": job["num_workers"], "tail": job.get("tail"), "desync_timeout": 30}
    loader: Any = DataLoader(data, batch_size=3, **options)
    checkpoint = folder / f"{job['run']}.rank{rank}.json"
    if job["load"]:
        # Steps are the same on all ranks, but one may have saved one more when all were killed.
        found = [json.loads(path.read_text()) for path in folder.glob(f"{job['load']}.rank*.json")]
        step = min(states["step"] for states in found)
        loader.load_state_dict(found_state(folder, job["load"], rank, step))
    with (folder / f"{job['run']}.rank{rank}.jsonl").open("w") as log:

        def note(*fields: Any) -> None:
            log.write(json.dumps(fields) + "\n")
            log.flush()

        states: dict[int, Any] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                for batch in loader:
                    step = json.loads(loader.state_dict()["cursor"])["num_batches"]
                    note("batch", step, batch.tolist())
                    # As the gradients of a step: a rank that came alone would wait here forever.
                    dist.barrier()
                    states = {**dict(list(states.items())[-2:]), step: loader.state_dict()}
                    saved = {"step": step, "states": states}
                    checkpoint.with_suffix(".tmp").write_text(json.dumps(saved))
                    os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
                    time.sleep(job.get("pause", 0.0))
            except (DesyncError, RuntimeError) as error:
                note("error", type(error).__name__, str(error).splitlines()[-1])
        for warning in caught:
            if issubclass(warning.category, RuntimeWarning):
                note("warning", str(warning.message))
        note("end")
    dist.barrier()
    dist.destroy_process_group()


def found_state(folder: Path, run: str, rank: int, step: int) -> Any:
    """Return the state of a rank at a step that all ranks have saved."""
    saved = json.loads((folder / f"{run}.rank{rank}.json").read_text())
    return saved["states"][str(step)]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
