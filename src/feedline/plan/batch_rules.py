"""How many samples of a bucket make a batch on one rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from feedline.errors import InvalidValueError, check_integer, check_positive, check_sequence
from feedline.plan.frozen import described, store


@runtime_checkable
class BatchRule(Protocol):
    """Turns the run's batch size into that of one bucket."""

    def batch_size(self, bucket: int, batch_size: int) -> int:
        """Return the number of samples of `bucket` in a batch."""

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the answer, as JSON values."""


@dataclass(frozen=True)
class FixedBatch:
    """The same number of samples in every bucket."""

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return batch_size

    def describe(self) -> dict[str, Any]:
        return {"kind": "fixed"}


@dataclass(frozen=True)
class CostBatch:
    """Fewer samples where each costs more: `batch_size / cost`, rounded down, at least one.

    `costs` holds what a sample of each bucket costs, as a multiple of the sample that `batch_size`
    speaks of.

    Examples:
        >>> CostBatch((1, 4)).batch_size(1, 32)
        8
    """

    costs: Sequence[float]

    def __post_init__(self) -> None:
        given = check_sequence("costs", self.costs)
        store(
            self, costs=tuple(check_positive(f"costs[{i}]", cost) for i, cost in enumerate(given))
        )

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return max(1, math.floor(batch_size / Fraction(self.costs[bucket])))

    def describe(self) -> dict[str, Any]:
        return described(self, kind="cost")


@dataclass(frozen=True)
class TokenBatch:
    """As many samples as fit a budget of tokens when all are padded to the bucket's length.

    Here the run's batch size is the budget.

    Examples:
        >>> TokenBatch((128, 512)).batch_size(1, 4096)
        8
    """

    lengths: Sequence[int]

    def __post_init__(self) -> None:
        given = check_sequence("lengths", self.lengths)
        checked = (check_integer(f"lengths[{i}]", size, 1) for i, size in enumerate(given))
        store(self, lengths=tuple(checked))

    def batch_size(self, bucket: int, batch_size: int) -> int:
        length = self.lengths[bucket]
        if batch_size < length:
            raise InvalidValueError(
                f"batch_size={batch_size} tokens must be at least {length}, the length of bucket "
                f"{bucket}; raise the budget or leave out samples that long"
            )
        return batch_size // length

    def describe(self) -> dict[str, Any]:
        return described(self, kind="tokens")


def check_rule(rule: Any, num_buckets: int) -> None:
    """Raise unless `rule` is a rule for `num_buckets` buckets."""
    if not isinstance(rule, BatchRule):
        raise InvalidValueError(f"rule={rule!r:.80} must be a BatchRule, such as FixedBatch()")
    known = getattr(rule, "costs", getattr(rule, "lengths", None))
    if known is not None and len(known) != num_buckets:
        raise InvalidValueError(
            f"rule has {len(known)} entries but must have one for each of the {num_buckets} buckets"
        )
