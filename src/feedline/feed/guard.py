"""The desync guard: ranks that disagree raise an error before the first batch instead of
hanging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict

from feedline.errors import DesyncError, InvalidValueError
from feedline.feed.adapters import torch_worker
from feedline.feed.peers import Peers
from feedline.plan.frozen import fingerprint_of, flatten_fields


class GroupOptions(TypedDict, total=False):
    """The source of the ranks, and how they are compared: shared arguments.

    Attributes:
        process_group: The group of ranks that get different data; by default all ranks.
        peers: The ranks, if no other argument gives them.
        desync_guard: Compare the ranks before each pass, if they come from a process group.
        desync_timeout: Seconds that the guard waits for the other ranks.
    """

    process_group: Any
    peers: Any
    desync_guard: bool
    desync_timeout: float


class RankOptions(GroupOptions, total=False):
    """The ranks, in addition to `GroupOptions`.

    Attributes:
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
    """

    num_replicas: int | None
    rank: int | None


@dataclass(frozen=True)
class Guard:
    """Compares the plans and positions of the ranks.

    Args:
        is_on: Whether the ranks are compared.
        timeout: Seconds that a rank waits for the others.
    """

    is_on: bool = True
    timeout: float = 60.0

    def __post_init__(self) -> None:
        is_number = isinstance(self.timeout, Real) and not isinstance(self.timeout, bool)
        if not is_number or not self.timeout > 0:
            raise InvalidValueError(
                f"desync_timeout={self.timeout!r:.80} must be a number of seconds above 0"
            )

    def compare(self, peers: Peers, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Raise `DesyncError` on every rank unless all ranks give the same description.

        While ranks agree, only a fingerprint is sent. Workers of torch's DataLoader do not take
        part: their parent is the rank.
        """
        if not self.is_on or torch_worker()[1]:
            return
        reached: Peers = getattr(peers, "reached", peers)
        if reached.world_size == 1:
            return
        record = dict(describe())
        if len(set(reached.gather(fingerprint_of(record), self.timeout))) == 1:
            return
        records = reached.gather(record, self.timeout)
        differences = _differences(records)
        raise DesyncError(_explain(differences, len(records)), differences)


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
        f"the {world_size} ranks do not agree: {'; '.join(parts)}. Use the same data, seed, batch "
        "size and checkpoint on every rank"
    )


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
