"""How many samples the batches of a step have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["count_samples"]


def count_samples(loader: Any, batches: list[Any], *, everywhere: bool = False) -> int | None:
    """Return the number of real samples in batches that a loader just delivered.

    A loader that knows which samples are padding says so; else a batch has as many as its first
    array or list is long. Those of all ranks only a loader with a plan knows.

    Examples:
        >>> count_samples(None, [{"x": [1, 2, 3]}, {"x": [4]}])
        4
    """
    count = getattr(loader, "num_real_samples", None)
    if callable(count):
        numbers = range(1, len(batches) + 1)
        return sum(int(count(-number, everywhere=everywhere)) for number in numbers)
    if everywhere:
        return None
    counts = [_length(batch) for batch in batches]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _length(batch: Any) -> int | None:
    is_real = getattr(batch, "is_real", None)
    if is_real is not None:
        return int(is_real.sum())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, Mapping):
        return _length(next(iter(batch.values()), None))
    if isinstance(batch, tuple | list):
        # A list of records has a sample in each; a list of arrays has them side by side.
        if batch and isinstance(batch[0], Mapping):
            return len(batch)
        if batch and not isinstance(batch[0], int | float | str | bytes):
            inner = _length(batch[0])
            return len(batch) if inner is None else inner
        return len(batch)
    return None
