"""A cluster of Ray for the tests of a session, with nodes that can be lost."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
# The paths of its sockets must be short.
TEMPORARY = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
# Ray reads this when it is imported. The nodes and workers of the cluster have it too.
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_TMPDIR=TEMPORARY,
    # How long an elastic run waits for the seat of a node that was lost, before it goes on without.
    RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="20",
    RAY_USAGE_STATS_ENABLED="0",
    OMP_NUM_THREADS="1",
    PYTHONPATH=os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
)

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402


def pytest_sessionfinish() -> None:
    """Remove what Ray has written, also where the guide and the example have started it."""
    shutil.rmtree(TEMPORARY, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster whose head has room for two workers and a trainer."""
    folder = Path(TEMPORARY) / "ray"
    # Ray notes the address there before it makes the folder.
    folder.mkdir(exist_ok=True)
    head = {
        "num_cpus": 3,
        "resources": {"seat": 1},
        "object_store_memory": 2**27,
        "temp_dir": str(folder),
        "include_dashboard": False,
    }
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(made.address, logging_level="ERROR", log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def add_node(cluster: Cluster) -> Iterator[Callable[[], object]]:
    """Adds a node with one processor, which is removed at the end of the test."""
    added = []

    def add() -> object:
        node = cluster.add_node(
            num_cpus=1, resources={"seat": 1}, object_store_memory=2**27, wait=True
        )
        added.append(node)
        return node

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)
