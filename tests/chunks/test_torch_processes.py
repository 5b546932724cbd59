"""Real ranks over a matrix in zarr: equal counts, and every row exactly once."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunk_job import BATCH_SIZE
from forked import forked_ranks
from processes import finish, is_running, kill_job, torchrun, wait_for
from zarr_data import write_anndata

# 3 ranks of 33 full batches, and 5 rows that make no batch.
NUM_ROWS = 3 * 33 * BATCH_SIZE + 5

#: The slow tests have torchrun itself.
LAUNCH: dict[str, Any] = {
    "windows": partial(forked_ranks, preload=["zarr", "scipy.sparse"]),
    "contiguous": torchrun,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_anndata(tmp_path_factory.mktemp("data") / "a.zarr", NUM_ROWS)


def arguments(folder: Path, data: Path, **job: Any) -> str:
    defaults = {"framework": "torch", "folder": str(folder), "data": str(data), "load": None}
    return json.dumps({**defaults, "pause": 0, **job})


def logs_of(folder: Path, run: str) -> dict[str, list[tuple[int, list[int]]]]:
    """The steps of each rank, by the name of the rank, each with the rows of its batch."""
    return {
        log.stem.partition(".")[2]: [json.loads(line) for line in log.read_text().splitlines()]
        for log in sorted(folder.glob(f"{run}.rank*.jsonl"))
    }


def received(folder: Path, run: str, num_steps: int | None = None) -> Counter[int]:
    """The rows that all ranks of a run received, up to a step."""
    return Counter(
        row
        for steps in logs_of(folder, run).values()
        for step, rows in steps
        if num_steps is None or step <= num_steps
        for row in rows
    )


@pytest.mark.parametrize("shards", [pytest.param("contiguous", marks=pytest.mark.slow), "windows"])
def test_three_ranks_have_equal_counts_and_disjoint_rows(
    shards: str, data: Path, tmp_path: Path
) -> None:
    job = arguments(tmp_path, data, run="run", shards=shards)
    with LAUNCH[shards]("chunk_job.py", 3, job) as run:
        finish(run)
    logs = logs_of(tmp_path, "run")
    assert list(logs) == ["rank0of3", "rank1of3", "rank2of3"]
    if shards == "contiguous":
        size = 33 * BATCH_SIZE
        assert [len(steps) for steps in logs.values()] == [33, 33, 33]
        for rank, steps in enumerate(logs.values()):
            rows = sorted(row for _, batch in steps for row in batch)
            assert rows == list(range(rank * size, (rank + 1) * size))
    else:
        assert [len(steps) for steps in logs.values()] == [34, 34, 34]
        assert received(tmp_path, "run") == Counter(range(NUM_ROWS))


def test_a_killed_run_goes_on_on_two_ranks_with_every_row_exactly_once(
    data: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "first.json"
    job = arguments(tmp_path, data, run="first", shards="windows", pause=0.05)
    with LAUNCH["windows"]("chunk_job.py", 3, job) as run:
        wait_for(lambda: saved.exists() and json.loads(saved.read_text())["step"] >= 6, run)
        kill_job(run)
        pids = [int(path.read_text()) for path in tmp_path.glob("first.rank*.pid")]
        assert len(pids) == 3
    step = json.loads(saved.read_text())["step"]
    assert step < 30, "the run must be killed before its epoch ends"
    so_far = received(tmp_path, "first", step)
    assert len(so_far) == sum(so_far.values()) == 3 * BATCH_SIZE * step
    assert not any(is_running(pid) for pid in pids)

    job = arguments(tmp_path, data, run="second", shards="windows", load=str(saved))
    with LAUNCH["windows"]("chunk_job.py", 2, job) as run:
        finish(run)
    logs = logs_of(tmp_path, "second")
    assert list(logs) == ["rank0of2", "rank1of2"]
    assert len({len(steps) for steps in logs.values()}) == 1
    assert so_far + received(tmp_path, "second") == Counter(range(NUM_ROWS))


@pytest.mark.slow
def test_contiguous_shards_of_a_killed_run_go_on_with_as_many_ranks(
    data: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "first.json"
    job = arguments(tmp_path, data, run="first", shards="contiguous", pause=0.05)
    with torchrun("chunk_job.py", 3, job) as run:
        wait_for(lambda: saved.exists() and json.loads(saved.read_text())["step"] >= 6, run)
        kill_job(run)
    step = json.loads(saved.read_text())["step"]
    job = arguments(tmp_path, data, run="second", shards="contiguous", load=str(saved))
    with torchrun("chunk_job.py", 3, job) as run:
        finish(run)
    everything = received(tmp_path, "first", step) + received(tmp_path, "second")
    assert everything == Counter(range(3 * 33 * BATCH_SIZE))
