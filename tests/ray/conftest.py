"""A Ray cluster of several node processes, for all tests in this folder; `make test-ray`."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
# Ray reads these when it is imported, and so do the processes of the cluster: it tells nobody, and
# the token is nowhere else.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 2**28}


@pytest.fixture(scope="session")
def cluster(_nothing_is_left: None) -> Iterator[Any]:
    """Start a head node and another one, connect to them, and leave nothing of them behind."""
    import ray
    from ray.cluster_utils import Cluster

    # The names of sockets are in it, and must be short: that of pytest is too long.
    given = os.environ.get("FEEDLINE_RAY_FOLDER")
    folder = Path(given or tempfile.mkdtemp(prefix="feedline-ray-", dir="/tmp"))
    (folder / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("FEEDLINE_CACHE", str(folder / "cache"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        started = Cluster()
        try:
            started.add_node(**NODE)
            started.add_node(**NODE)
            patch.setenv("RAY_ADDRESS", started.address)
            ray.init(address=started.address, log_to_driver=False)
            yield started
        finally:
            ray.shutdown()
            started.shutdown()
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def ray_data(cluster: Any) -> Any:
    """Ray Data on the cluster, which reports no progress."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data
