"""A cluster of Ray on this machine, which the jobs of all stories share, since it starts slowly."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile

# Nobody else may use the cluster, nor does it depend on what the user has set up. Ray reads this
# when it is imported.
ACCESS = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ.update(ACCESS)

import ray  # noqa: E402

#: Three stories at once, each with three workers and a trainer.
NUM_CPUS = 12


def main() -> None:
    """Start a cluster, tell its address, and end it when the input ends."""
    # The paths of its sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        context = ray.init(
            num_cpus=NUM_CPUS,
            include_dashboard=False,
            logging_level="ERROR",
            object_store_memory=2**28,
            _temp_dir=folder,
        )
        print(json.dumps({"RAY_ADDRESS": context.address_info["address"], **ACCESS}), flush=True)
        sys.stdin.read()
        ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
