"""The desync guard: ranks that disagree are told so before the first batch, not by a hang."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from feedline.errors import DesyncError
from feedline.plan.fingerprint import fingerprint_of, flatten_fields

__all__ = ["compare_ranks"]

_gloo_groups: weakref.WeakKeyDictionary[Any, dict[float, Any]] = weakref.WeakKeyDictionary()


def compare_ranks(group: Any, record: Mapping[str, Any], *, timeout: float) -> None:
    """Raise `DesyncError` on every rank of `group` unless all of them bring the same record.

    Only a fingerprint travels as long as ranks agree. The guard talks over a gloo group of its own,
    with its own timeout, so it works beside any backend and never waits for long.
    """
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return
    try:
        guard_group = _gloo_group(group, timeout)
        prints = _gather(guard_group, world_size, fingerprint_of(record))
        if len(set(prints)) == 1:
            return
        records = _gather(guard_group, world_size, dict(record))
    except RuntimeError as error:
        raise DesyncError(
            f"rank {dist.get_rank(group)} waited {timeout} s for the other {world_size - 1} ranks "
            f"to begin the epoch, and not all did; look for an error on another rank ({error})"
        ) from error
    differences = _differences(records)
    raise DesyncError(_explain(differences, world_size), differences)


def _gloo_group(group: Any, timeout: float) -> Any:
    by_timeout = _gloo_groups.setdefault(group, {})
    if timeout not in by_timeout:
        by_timeout[timeout] = dist.new_group(
            ranks=dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=True,
        )
    return by_timeout[timeout]


def _gather(group: Any, world_size: int, value: Any) -> list[Any]:
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value, group=group)
    return values


def _differences(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return each field that differs, with its value on every rank."""
    flat = [flatten_fields(record) for record in records]
    names = {name: None for fields in flat for name in fields}
    columns = {name: [fields.get(name, "(absent)") for fields in flat] for name in names}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}


def _explain(differences: dict[str, list[Any]], world_size: int) -> str:
    parts = []
    for name, values in differences.items():
        by_value: dict[str, list[int]] = {}
        for rank, value in enumerate(values):
            by_value.setdefault(repr(value)[:80], []).append(rank)
        common = max(by_value.values(), key=len)
        usual = next(value for value, ranks in by_value.items() if ranks is common)
        odd = [f"{v} on rank {_listed(r)}" for v, r in by_value.items() if r is not common]
        parts.append(f"{name} is {', '.join(odd)} and {usual} on rank {_listed(common)}")
    return (
        f"the {world_size} ranks do not agree: {'; '.join(parts)}. Give every rank the same data, "
        "seed, batch size and checkpoint"
    )


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
