"""Real processes: killed on two ranks, resumed on three, stopped, ended on one, nothing lost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consume_job import MIXTURE_EDGES, MIXTURE_WEIGHTS, NUM_SAMPLES
from feedline.plan import Mixture
from forked import forked_ranks
from processes import finish, kill_job, torchrun, wait_for


def arguments(folder: Path, **job: Any) -> str:
    defaults = {"folder": str(folder), "load": None, "stop_after": None, "every": 4}
    return json.dumps({**defaults, **job})


def received(folder: Path, run: str, num_steps: int | None) -> Counter[int]:
    """What all ranks of a run received, up to a step."""
    ids: Counter[int] = Counter()
    for log in folder.glob(f"{run}.rank*.jsonl"):
        for line in log.read_text().splitlines():
            step, batch = json.loads(line)
            if num_steps is None or step <= num_steps:
                ids.update(batch)
    return ids


def due(kind: str) -> Counter[int]:
    if kind != "mixture":
        return Counter(range(NUM_SAMPLES))
    order = Mixture(sizes=np.diff(MIXTURE_EDGES).tolist(), weights=MIXTURE_WEIGHTS)
    return Counter(order.indices(0, range(NUM_SAMPLES)).tolist())


KINDS = ("distributed", "mixture")


# The demo kills and resizes a mixture, and an example one dataset.
@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS), "buckets"]
)
def test_killed_resized_stopped_and_ended_runs_account_for_every_sample(
    kind: str, tmp_path: Path
) -> None:
    # The slow ones have torchrun itself.
    launch: Any = forked_ranks if kind == "buckets" else torchrun
    first = tmp_path / "first.json"
    job = arguments(tmp_path, kind=kind, run="first", batch_size=4, num_workers=2, pause=0.1)
    with launch("consume_job.py", 2, job) as run:
        wait_for(lambda: first.exists() and json.loads(first.read_text())["step"] >= 12, run)
        kill_job(run)
    saved_step = json.loads(first.read_text())["step"]
    assert saved_step < 40, "the run must be killed before its epoch ends"

    job = arguments(
        tmp_path,
        kind=kind,
        run="second",
        batch_size=3,
        num_workers=1,
        load=str(first),
        stop_after=10,
    )
    with launch("consume_job.py", 3, job) as run:
        finish(run)
    second = tmp_path / "second.json"
    job = arguments(tmp_path, kind=kind, run="third", batch_size=5, num_workers=0, load=str(second))
    with launch("consume_job.py", 1, job) as run:
        finish(run)

    everything = received(tmp_path, "first", saved_step)
    everything += received(tmp_path, "second", 10) + received(tmp_path, "third", None)
    assert everything == due(kind)
