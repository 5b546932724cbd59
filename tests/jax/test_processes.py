"""Real JAX processes: who shares data over a mesh, and what is in the global arrays."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from feedline.runs import audit_logs
from forked import forked_python, forked_run
from processes import environment, finish, free_port, is_free

# Not imported here: once jax is, forking is a warning, and other tests fork.
if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

NUM_PROCESSES, NUM_SAMPLES, BATCH_SIZE = 4, 61, 4
#: The data rank of each of the four processes, by the name of the mesh.
RANKS = {
    "auto": [0, 1, 2, 3],
    "inside": [0, 1, 2, 3],
    "across": [0, 0, 1, 1],
    "all-share": [0, 0, 0, 0],
    "sequence": [0, 0, 1, 1],
    "interleaved": [0, 1, 2, 3],
    "alone": [0, 1, 2, 3],
}
Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each of four processes, with two devices each, was given."""
    folder, port = tmp_path_factory.mktemp("jax"), free_port()
    job = {"folder": str(folder), "port": port, "world_size": NUM_PROCESSES}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                forked_python("jax_loader_job.py", json.dumps({**job, "rank": rank}), server="jax")
            )
            for rank in range(NUM_PROCESSES)
        ]
        for run in started:
            finish(run)
    assert is_free(port)
    found = [(folder / f"rank{rank}.json").read_text() for rank in range(NUM_PROCESSES)]
    return [{**json.loads(text), "folder": str(folder)} for text in found]


@pytest.mark.parametrize("name", RANKS)
def test_processes_that_hold_the_same_rows_get_the_same_batches(name: str, told: Told) -> None:
    ranks = RANKS[name]
    size = max(ranks) + 1
    assert [one[name].get("ranks") for one in told] == [[rank, size] for rank in ranks], told
    by_rank: dict[int, Any] = {}
    for rank, one in zip(ranks, told, strict=True):
        assert by_rank.setdefault(rank, one[name]["ids"]) == one[name]["ids"]
    assert len({str(ids) for ids in by_rank.values()}) == size, "other ranks get other batches"
    assert all(one[name]["state"] == told[0][name]["state"] for one in told)


@pytest.mark.parametrize("name", RANKS)
def test_ranks_cover_every_sample_exactly_once(name: str, told: Told) -> None:
    firsts = [RANKS[name].index(rank) for rank in range(max(RANKS[name]) + 1)]
    real: Counter[int] = Counter()
    for first in firsts:
        for ids, marks in zip(told[first][name]["ids"], told[first][name]["is_real"], strict=True):
            assert len(ids) == BATCH_SIZE, "all batches have one shape"
            real.update(i for i, is_real in zip(ids, marks, strict=True) if is_real)
    assert real == Counter(range(NUM_SAMPLES))


@pytest.mark.parametrize("name", [name for name in RANKS if name != "alone"])
def test_global_arrays_have_the_rows_of_all_ranks(name: str, told: Told) -> None:
    firsts = [RANKS[name].index(rank) for rank in range(max(RANKS[name]) + 1)]
    for one in told:
        seen = one[name]
        for number, rows in enumerate(seen["rows"]):
            assert seen["tokens"][number] == [8 * row + 7 for row in rows]
            expected = [told[f][name]["ids"][number] for f in firsts]
            marks = [told[f][name]["is_real"][number] for f in firsts]
            assert Counter(zip(rows, seen["marks"][number], strict=True)) == Counter(
                pair for of in zip(expected, marks, strict=True) for pair in zip(*of, strict=True)
            )
            if name != "interleaved":
                assert rows == [i for ids in expected for i in ids], "the rows of rank 0 are first"


def test_a_mesh_where_processes_share_only_some_rows_is_refused(told: Told) -> None:
    for one in told:
        refused = one["overlapping"]["refused"]
        assert "hold some of the same rows of a batch, but not all" in refused
        assert "jax.make_mesh" in refused


@pytest.mark.parametrize("name", ["auto", "all-share"])
def test_processes_with_other_seeds_are_told_so(name: str, told: Told) -> None:
    """Also those that share all data, of which there is one rank only."""
    for one in told:
        assert "order.seed is" in one[f"desync, {name}"]["refused"]


def test_logs_of_all_processes_pass_the_audit(told: Told) -> None:
    result = audit_logs([told[0]["folder"] + "/auto"])
    assert result.ok
    assert [epoch.num_once for epoch in result.epochs] == [NUM_SAMPLES]


def test_a_folder_of_logs_is_refused_where_processes_share_data(told: Told) -> None:
    for one in told:
        assert "where processes share data" in one["logged, across"]["refused"]


def run_alone(code: str, **variables: str) -> str:
    """Run some code in a process of its own, and return what it printed."""
    env = {**environment(), "JAX_PLATFORMS": "cpu", **variables}
    done = forked_run("-c", code, server="jax", env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("sharding", ["'auto'", "None"])
def test_launched_processes_that_have_not_joined_are_refused(sharding: str) -> None:
    """They once got the same data, silently."""
    printed = run_alone(
        "from feedline.errors import InvalidValueError\n"
        "from feedline.jax import DataLoader\n"
        f"loader = DataLoader(range(40), 4, sharding={sharding})\n"
        "for use in (lambda: len(loader), lambda: next(iter(loader)), loader.state_dict):\n"
        "    try:\n"
        "        print(use())\n"
        "    except InvalidValueError as error:\n"
        "        print('refused', error)\n",
        WORLD_SIZE="2",
    )
    lines = printed.splitlines()
    assert all("WORLD_SIZE=2 means that 2 processes" in line for line in lines[:2]), lines
    assert "jax.distributed.initialize" in lines[0]


def test_torch_is_not_imported(tmp_path: Path) -> None:
    printed = run_alone(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "import feedline\n"
        "from feedline.jax import DataLoader\n"
        f"_ = feedline.pack({{'x': np.arange(20)}}, {str(tmp_path / 'data')!r})\n"
        f"np.arange(99, dtype='<u2').tofile({str(tmp_path / 'tokens.bin')!r})\n"
        f"store = feedline.open({str(tmp_path / 'data')!r})\n"
        f"tokens = feedline.open({str(tmp_path / 'tokens.bin')!r}, window=5)\n"
        "for data in (store, tokens, list(range(20))):\n"
        "    loader = DataLoader(data, 4, shuffle=True)\n"
        "    print(sum(1 for _ in loader), loader.state_dict()['epoch'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('torch')))\n"
    )
    assert printed.splitlines() == ["5 0", "5 0", "5 0", "['torch']"]
