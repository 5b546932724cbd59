"""How many samples of a bucket make a batch on one rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from feedline.errors import InvalidValueError, check_integer

__all__ = ["BatchRule", "CostBatch", "FixedBatch", "TokenBatch"]


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
        object.__setattr__(self, "costs", tuple(float(cost) for cost in self.costs))
        for bucket, cost in enumerate(self.costs):
            if not math.isfinite(cost) or cost <= 0:
                raise InvalidValueError(f"costs[{bucket}]={cost} must be finite and above 0")

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return max(1, math.floor(batch_size / Fraction(self.costs[bucket])))

    def describe(self) -> dict[str, Any]:
        return {"kind": "cost", "costs": list(self.costs)}


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
        for bucket, length in enumerate(self.lengths):
            check_integer(f"lengths[{bucket}]", length, 1)
        object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))

    def batch_size(self, bucket: int, batch_size: int) -> int:
        length = self.lengths[bucket]
        if batch_size < length:
            raise InvalidValueError(
                f"batch_size={batch_size} tokens must be at least {length}, the length of bucket "
                f"{bucket}; raise the budget or leave out samples that long"
            )
        return batch_size // length

    def describe(self) -> dict[str, Any]:
        return {"kind": "tokens", "lengths": list(self.lengths)}
