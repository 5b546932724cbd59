"""Loaders over iterable datasets, and what comes from them."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import torch

from feedline.torch import DataLoader, IterableLoader


def make(data: Any, **options: Any) -> IterableLoader[Any]:
    loader = DataLoader(data, **{"batch_size": 3, **options})
    assert isinstance(loader, IterableLoader)
    return loader


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def batches(loader: Any, count: int | None = None) -> list[Any]:
    return [plain(batch) for batch in islice(loader, count)]


def saved(loader: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(loader.state_dict())))
