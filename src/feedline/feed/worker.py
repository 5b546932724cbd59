"""Whether this process is a worker of torch's DataLoader."""

from __future__ import annotations

import sys


def torch_worker() -> tuple[int, int]:
    """Return the number of this worker of torch's DataLoader and how many there are.

    A worker has imported torch, so nothing is imported here. Outside of workers it is (0, 0).
    """
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    return (0, 0) if info is None else (info.id, info.num_workers)
