"""On meshes of real processes, ranks that share data get the same batches, also after a resize."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from forked import forked_ranks
from processes import finish

JOB = Path(__file__).parent / "mesh_job.py"
PRELOAD = ["torch.distributed.checkpoint", "torch.distributed.device_mesh"]
NUM_SAMPLES = 48


def run(folder: Path, number: int, mesh: dict[str, int], num_batches: int, **more: Any) -> Any:
    """Run the job, and return for each data-parallel place its batches, by process."""
    num_processes = 1
    for size in mesh.values():
        num_processes *= size
    settings = {
        **{"mesh": mesh, "num_batches": num_batches, "folder": str(folder), "run": number},
        **{"resume": number > 0, "num_workers": 0, "save": None, "num_samples": NUM_SAMPLES},
        **more,
    }
    with forked_ranks(JOB, num_processes, json.dumps(settings), preload=PRELOAD) as job:
        finish(job)
    by_place: dict[tuple[int, ...], list[list[dict[str, Any]]]] = {}
    for rank in range(num_processes):
        lines = (folder / f"run{number}-rank{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert len(records) == num_batches
        place = {name: at for name, at in records[0]["place"].items() if name.startswith("dp")}
        by_place.setdefault(tuple(place.values()), []).append(records)
    return by_place


def shared(by_place: Any, num_sharing: int) -> list[list[dict[str, Any]]]:
    """Return the batches of each data-parallel rank; all processes of it must have the same."""
    for processes in by_place.values():
        assert len(processes) == num_sharing
        batches = [[(r["epoch"], r["ids"], r["is_real"]) for r in one] for one in processes]
        assert all(one == batches[0] for one in batches)
    return [processes[0] for _, processes in sorted(by_place.items())]


def counts(runs: list[list[list[dict[str, Any]]]]) -> dict[int, Counter[int]]:
    """Return how often each real sample came, by epoch."""
    found: dict[int, Counter[int]] = {}
    for record in (record for ranks in runs for rank in ranks for record in rank):
        real = [
            one for one, is_real in zip(record["ids"], record["is_real"], strict=True) if is_real
        ]
        found.setdefault(record["epoch"], Counter()).update(real)
    return found


@pytest.mark.slow
def test_ranks_that_share_data_get_the_same_batches_on_any_mesh(tmp_path: Path) -> None:
    # 48 samples in batches of 4: 6 steps an epoch on two data-parallel ranks, 4 on three.
    first = shared(run(tmp_path, 0, {"pp": 2, "dp": 2, "tp": 2}, 4, save="async"), 4)
    # 16 samples of epoch 0 are left: 2 steps on three ranks, the second one of 4 samples.
    second = shared(run(tmp_path, 1, {"dp": 3, "cp": 2}, 4, save="sync"), 2)
    # 24 of epoch 1 are left.
    mesh = {"dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 1}
    third = shared(run(tmp_path, 2, mesh, 5, num_workers=1), 1)
    assert [len(one) for one in (first, second, third)] == [2, 3, 4]
    epochs = [
        [epoch for epoch, _ in groupby(r["epoch"] for r in one[0])] for one in (first, second)
    ]
    assert epochs == [[0], [0, 1]]
    found = counts([first, second, third])
    for epoch in (0, 1):
        assert found[epoch] == Counter(range(NUM_SAMPLES))
    # Without end: the third epoch has begun by itself.
    assert max(found) == 2
    assert set(found[2].values()) == {1}


WRONG = """
import sys, torch, torch.distributed as dist
from feedline.errors import DesyncError
from feedline.trainers.torchtitan import build_dataloader
dist.init_process_group("gloo")
loader = build_dataloader(torch.arange(12), 0, 2, batch_size=2)
try:
    next(iter(loader))
except DesyncError as error:
    assert "dp_rank is 0, 0 on the 2 processes" in str(error), error
    assert "data_parallel_rank(mesh)" in str(error), error
else:
    sys.exit("a data-parallel rank that no process has was not noticed")
dist.destroy_process_group()
"""


def test_a_data_parallel_rank_that_no_process_has_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    with forked_ranks(script, 2, preload=PRELOAD) as job:
        finish(job)
