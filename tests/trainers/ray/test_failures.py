"""Workers that are killed, nodes that are lost, and runs that resume on fewer and more workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray_jobs
from ray.cluster_utils import Cluster

NUM_SAMPLES = 90


def config_of(folder: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), "num_samples": NUM_SAMPLES, **more}


def counts_in(folder: Path) -> set[int]:
    """Return how often samples were learned, over all samples and epochs."""
    counts = json.loads((folder / "counts.json").read_text())
    assert [len(epoch) for epoch in counts] == [NUM_SAMPLES] * ray_jobs.NUM_EPOCHS
    return {count for epoch in counts for count in epoch}


def wait_for(path: Path, thread: threading.Thread) -> None:
    end = time.monotonic() + 240
    while not path.exists():
        assert thread.is_alive(), "the run has ended"
        assert time.monotonic() < end, f"{path.name} does not come"
        time.sleep(0.05)


@pytest.mark.usefixtures("cluster")
def test_killed_workers_cost_no_sample(tmp_path: Path) -> None:
    # Step 4 has a checkpoint, so that kill comes between the report and the next batch; the other
    # one comes after a step that is not in a checkpoint.
    config = config_of(tmp_path, kills=[[4, 1], [15, 0]])
    ray_jobs.fit(ray_jobs.learn, config, tmp_path, 2, max_failures=2)
    assert counts_in(tmp_path) == {1}
    (_, first), (_, second), (_, third) = ray_jobs.attempts(tmp_path)
    # Ray takes up reports with a delay, so a run may go back to an earlier one.
    assert first == 0
    assert second in (0, 1, 3, 5)
    assert third in (second, *range(1, 17, 2))


@pytest.mark.usefixtures("cluster")
def test_more_failures_than_allowed_end_the_run(tmp_path: Path) -> None:
    config = config_of(tmp_path, kills=[[1, 1], [3, 0]])
    with pytest.raises(Exception, match=r"(?i)fail|died|error"):
        ray_jobs.fit(ray_jobs.learn, config, tmp_path, 2, max_failures=1)
    assert len(ray_jobs.attempts(tmp_path)) == 2
    assert not (tmp_path / "counts.json").exists()


def test_a_lost_node_costs_no_sample(
    cluster: Cluster, add_node: Callable[[], Any], tmp_path: Path
) -> None:
    node = add_node()
    config = config_of(tmp_path, waits={1: 9, 2: 5})
    # There is a seat at the head, and one at each other node.
    scaling: dict[str, Any] = {"resources_per_worker": {"CPU": 1, "seat": 1}, "num_workers": 2}
    if ray_jobs.IS_V2:
        # V1 is not elastic: it waits for another node.
        scaling |= {"elastic_resize_monitor_interval_s": 1.0, "num_workers": (1, 2)}
    run = threading.Thread(
        target=lambda: ray_jobs.fit(ray_jobs.learn, config, tmp_path, max_failures=5, **scaling),
        daemon=True,
    )
    run.start()
    wait_for(tmp_path / "waits-2", run)
    # It may have begun with one worker, until Ray knew of the node.
    (tmp_path / "waits-1").unlink(missing_ok=True)
    cluster.remove_node(node, allow_graceful=False)
    if ray_jobs.IS_V2:
        wait_for(tmp_path / "waits-1", run)
    (tmp_path / "last-phase").touch()
    add_node()
    run.join(timeout=300)
    assert not run.is_alive()
    assert counts_in(tmp_path) == {1}
    sizes = [size for size, _ in ray_jobs.attempts(tmp_path)]
    assert sizes[-3:] == [2, 1, 2] if ray_jobs.IS_V2 else sizes == [2, 2]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 2)])
@pytest.mark.usefixtures("cluster")
def test_a_checkpoint_resumes_on_other_numbers_of_workers(
    before: int, after: int, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    # Steps of two batches: the checkpoint is taken between two steps.
    config = config_of(tmp_path / "first", stop_at=3, grad_acc_steps=2)
    if not ray_jobs.IS_V2:
        before = min(before, 2)
    result = ray_jobs.fit(ray_jobs.learn, config, tmp_path / "first", before)
    assert not (tmp_path / "first" / "counts.json").exists()
    config = config_of(tmp_path / "second", checkpoint=result.checkpoint)
    ray_jobs.fit(ray_jobs.learn, config, tmp_path / "second", after)
    assert ray_jobs.attempts(tmp_path / "second")[0] == [after, 4]
    assert counts_in(tmp_path / "second") == {1}
