"""Real JAX processes: each knows its rank, and frameworks are asked only when they are named."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunk_job import BATCH_SIZE
from forked import forked_python, forked_run
from processes import finish, free_port, is_free, is_running, python
from zarr_data import write_anndata

# Not imported here: once jax is, forking is a warning, and other tests fork.
if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

NUM_ROWS = 2 * 20 * BATCH_SIZE + 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_anndata(tmp_path_factory.mktemp("data") / "a.zarr", NUM_ROWS)


@pytest.mark.parametrize("shards", [pytest.param("contiguous", marks=pytest.mark.slow), "windows"])
def test_two_jax_processes_have_disjoint_rows_that_cover_all(
    shards: str, data: Path, tmp_path: Path
) -> None:
    # The slow one has processes that import jax themselves.
    forked = partial(forked_python, server="jax", preload=["zarr", "scipy.sparse"])
    start: Any = python if shards == "contiguous" else forked
    port = free_port()
    job = {"framework": "jax", "data": str(data), "folder": str(tmp_path), "run": "run"}
    job |= {"shards": shards, "load": None, "pause": 0, "port": port, "world_size": 2}
    with ExitStack() as stack:
        started = [
            stack.enter_context(start("chunk_job.py", json.dumps({**job, "rank": rank})))
            for rank in range(2)
        ]
        for run in started:
            finish(run)
    batches = []
    for rank in range(2):
        log = (tmp_path / f"run.rank{rank}of2.jsonl").read_text().splitlines()
        batches.append([json.loads(line)[1] for line in log])
    rows = [sorted(row for batch in of_rank for row in batch) for of_rank in batches]
    if shards == "contiguous":
        size = 20 * BATCH_SIZE
        assert rows == [[*range(size)], [*range(size, 2 * size)]]
    else:
        assert Counter(rows[0]) + Counter(rows[1]) == Counter(range(NUM_ROWS))
    assert len(batches[0]) == len(batches[1])
    assert is_free(port)
    pids = [int(path.read_text()) for path in tmp_path.glob("run.rank*.pid")]
    assert sorted(pids) == sorted(run.pid for run in started)
    assert not any(is_running(pid) for pid in pids)


def in_fresh_interpreter(code: str) -> str:
    """Run some code on its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("framework", "remedy"),
    [("torch", "torch.distributed.init_process_group"), ("jax", "jax.distributed.initialize")],
)
def test_an_uninitialised_framework_is_an_error_that_names_the_call(
    framework: str, remedy: str
) -> None:
    code = (
        "from feedline.chunks import DistributedSampler, RandomSampler\n"
        "from feedline.errors import FeedlineError\n"
        "try:\n"
        f"    DistributedSampler(RandomSampler(2, 6, 4), dist_info={framework!r})\n"
        "except FeedlineError as error:\n"
        "    print(error)\n"
    )
    told = forked_run("-c", code, server=framework).stdout
    assert f"dist_info={framework!r} needs {framework}.distributed to be initialized" in told
    assert f"call {remedy}" in told


@pytest.mark.parametrize(
    ("asked", "other"), [pytest.param("torch", "jax", marks=pytest.mark.slow), ("jax", "torch")]
)
def test_asking_one_framework_imports_no_other(asked: str, other: str) -> None:
    imported = in_fresh_interpreter(
        "import sys\n"
        "import feedline.chunks\n"
        "def imported():\n"
        "    return sorted({'torch', 'jax'} & set(sys.modules))\n"
        "print(imported())\n"
        "try:\n"
        "    feedline.chunks.DistributedSampler(\n"
        f"        feedline.chunks.RandomSampler(2, 6, 4), dist_info={asked!r})\n"
        "except feedline.errors.FeedlineError:\n"
        "    print(imported())\n"
    )
    assert imported.splitlines() == ["[]", f"[{asked!r}]"]
    assert other not in imported
