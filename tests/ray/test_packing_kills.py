"""Workers, nodes and drivers that are killed while they pack cost only what they were doing."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.packing import pack
from feedline.packing.engines.cluster import Cluster
from pack_data import partial_of, read_tree
from processes import python
from ray_workers import SECONDS, wait_for, workers_at

OPTIONS = {"shuffle": True, "split": 0.2, "chunk_samples": 500, "memory_budget": 2**20}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "a.npy"
    np.save(path, np.arange(320_000, dtype=np.int64).reshape(-1, 8))
    return path


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "out"
    pack(source, folder, **OPTIONS)
    return read_tree(folder)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    try:
        text = (partial_of(folder) / "journal.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def num_entries(folder: Path, kind: str) -> int:
    return sum(kind in entry for entry in journal_of(folder))


def has_chunks(folder: Path, count: int) -> bool:
    return num_entries(folder, "chunk") >= count


def has_first_chunks(folder: Path, count: int) -> bool:
    """Whether none of the first chunks is missing; tasks may finish in another order."""
    found = {entry["chunk"] for entry in journal_of(folder) if "chunk" in entry}
    return found.issuperset(range(count))


@contextmanager
def packing(source: Path, folder: Path) -> Iterator[Any]:
    """Pack on the cluster in a thread; its errors are raised at the end."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pack, source, folder, engine="ray", **OPTIONS)
        yield running
        running.result(timeout=SECONDS)


@pytest.mark.parametrize("task", ["deal_part", "write_chunks"])
def test_a_killed_worker_costs_its_own_task(
    cluster: Any, source: Path, whole: dict[str, bytes], tmp_path: Path, task: str
) -> None:
    with packing(source, tmp_path / "out"):
        for pid in wait_for(lambda: workers_at(task)):
            os.kill(pid, signal.SIGKILL)
    assert read_tree(tmp_path / "out") == whole


@pytest.mark.parametrize("kind", ["block", "chunk"])
def test_a_killed_node_costs_its_own_tasks(
    cluster: Any, source: Path, whole: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    node = cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=2**27)
    folder = tmp_path / "out"
    with packing(source, folder):
        wait_for(lambda: num_entries(folder, kind) >= 3)
        cluster.remove_node(node, allow_graceful=False)
    assert read_tree(folder) == whole


@contextmanager
def counted_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    submit = Cluster.submit

    def counting(self: Cluster, function: Any, *arguments: Any, **options: Any) -> Any:
        counts[function.__name__] += 1
        return submit(self, function, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "submit", counting)
        yield counts


def kill_driver(
    source: Any,
    folder: Path,
    engine: str,
    is_time: Callable[[], bool],
    options: dict[str, Any] = OPTIONS,
) -> None:
    """Kill a driver that is at a certain place; repeat where it is done before that is seen."""
    told = {"source": str(source), "folder": str(folder), "engine": engine, **options}
    before = copy_of(folder)
    while True:
        with python("pack_data.py", json.dumps(told)) as driver:
            wait_for(lambda: is_time() or driver.poll() is not None)
            driver.send_signal(signal.SIGKILL)
            if driver.wait() == -signal.SIGKILL:
                shutil.rmtree(before, ignore_errors=True)
                return
            assert driver.returncode == 0, driver.communicate()
        shutil.rmtree(folder)
        if before.exists():
            shutil.copytree(before, partial_of(folder))


def copy_of(folder: Path) -> Path:
    """Return a copy of what is partly packed, if anything is."""
    copy = folder.with_name("before")
    # The workers of a driver that was killed may still tidy up.
    wait_for(lambda: not any(map(workers_at, ("deal", "read", "measure", "write"))))
    if partial_of(folder).exists():
        shutil.copytree(partial_of(folder), copy)
    return copy


@pytest.mark.parametrize("kind", ["block", "chunk"])
def test_after_the_death_of_its_driver_the_same_call_resumes(
    cluster: Any,
    source: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    folder = tmp_path / "out"
    with counted_tasks(monkeypatch) as in_all:
        pack(source, tmp_path / "other", engine="ray", **OPTIONS)
    kill_driver(source, folder, "ray", lambda: num_entries(folder, kind) >= 6)
    num_blocks, num_chunks = num_entries(folder, "block"), num_entries(folder, "chunk")
    with counted_tasks(monkeypatch) as resumed:
        result = pack(source, folder, engine="ray", **OPTIONS)
    assert resumed["deal_part"] == in_all["deal_part"] - num_blocks
    assert result.num_resumed_chunks == num_chunks
    assert num_chunks if kind == "chunk" else num_blocks < in_all["deal_part"]
    assert read_tree(folder) == whole


def test_lines_packed_in_order_resume_at_the_first_missing_chunk(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "a.jsonl", tmp_path / "out"
    text = "x" * 900
    source.write_text("".join(f'{{"n": {n}, "t": "{text[n % 700 :]}"}}\n' for n in range(40_000)))
    options = {"memory_budget": 2**20, "chunk_bytes": 60_000}
    pack(source, tmp_path / "here", **options)
    with counted_tasks(monkeypatch) as in_all:
        pack(source, tmp_path / "other", engine="ray", **options)
    kill_driver(source, folder, "ray", partial(has_first_chunks, folder, 40), options)
    num_chunks = num_entries(folder, "chunk")
    with counted_tasks(monkeypatch) as resumed:
        result = pack(source, folder, engine="ray", **options)
    assert result.num_resumed_chunks == num_chunks
    assert 0 < resumed["read_sized_part"] < in_all["read_sized_part"]
    assert read_tree(folder) == read_tree(tmp_path / "here") == read_tree(tmp_path / "other")


@pytest.mark.parametrize("engines", [("local", "ray"), ("ray", "local", "ray")])
def test_another_engine_resumes_with_the_chunks_that_are_finished(
    cluster: Any, source: Path, whole: dict[str, bytes], tmp_path: Path, engines: tuple[str, ...]
) -> None:
    folder = tmp_path / "out"
    num_chunks = 0
    for engine in engines[:-1]:
        kill_driver(source, folder, engine, partial(has_chunks, folder, num_chunks + 1))
        num_chunks = num_entries(folder, "chunk")
    result = pack(source, folder, engine=engines[-1], **OPTIONS)
    assert result.num_resumed_chunks == num_chunks
    assert read_tree(folder) == whole


def test_records_that_the_driver_reads_resume_behind_finished_blocks(
    cluster: Any, tmp_path: Path
) -> None:
    folder, source = tmp_path / "out", "records:20000"
    kill_driver(source, folder, "ray", lambda: num_entries(folder, "block") >= 1)
    for engine, place in (("ray", folder), ("local", tmp_path / "here")):
        told = {"source": source, "folder": str(place), "engine": engine, **OPTIONS}
        with python("pack_data.py", json.dumps(told)) as job:
            assert job.wait() == 0, job.communicate()
    assert read_tree(folder) == read_tree(tmp_path / "here")
