"""Adapters of frameworks and trainers, and the logs of runs, found by name.

This is the only lower module that names them. The adapter of a framework is imported only after the
user has imported the framework, and that of logs when a log folder is given.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from feedline.errors import InvalidValueError

# A framework's adapter stands under the module that shows that the framework is in use.
_ADAPTERS = {
    "torch.distributed": "feedline.torch.peers",
    "jax": "feedline.jax.peers",
    "ray.train": "feedline.trainers.ray",
    "logs of runs": "feedline.runs.run_log",
    "trainer accelerate": "feedline.trainers.accelerate",
    "trainer ray": "feedline.trainers.ray",
}


def adapters_in_use() -> list[ModuleType]:
    """Return the adapter of each framework that was imported.

    It has `find(process_group)`, which returns the processes that the framework has joined, or
    None; and it may have `prepare(loader, signals)`, which lets workers of the framework's loaders
    ignore signals, and returns what to start them in, or None for a loader that is not its own.
    """
    return [import_module(_ADAPTERS[name]) for name in _ADAPTERS if name in sys.modules]


def recorder_for(log: Any, loader: Any) -> Any:
    """Return what records every batch: for a folder, the log of a run in it."""
    if isinstance(log, str | os.PathLike):
        return import_module(_ADAPTERS["logs of runs"]).RunLog(log, loader)
    if log is not None and not (hasattr(log, "record") and hasattr(log, "event")):
        raise InvalidValueError(
            f"log={log!r:.80} must be a folder or a recorder, such as feedline.runs.ConsumptionLog"
        )
    return log


def trainer(name: str) -> ModuleType:
    """Return what fits loaders into a trainer, which the user has imported."""
    return import_module(_ADAPTERS[f"trainer {name}"])


def torch_worker() -> tuple[int, int]:
    """Return the number of this worker of torch's DataLoader and the number of workers.

    A worker has imported torch, so nothing is imported here. Outside workers it is (0, 0).
    """
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    return (0, 0) if info is None else (info.id, info.num_workers)
