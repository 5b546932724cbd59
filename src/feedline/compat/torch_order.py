"""The orders of the systems that Feedline continues, bit for bit.

They come from `torch.Generator` seeded with `seed + epoch` and `randperm`, so they cost time and
memory proportional to the dataset, and epoch 1 of seed 0 equals epoch 0 of seed 1. Use them only to
go on with a run that was started elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import EpochOrder, Order
from feedline.plan.frozen import store
from feedline.plan.orders import DeferredEpoch
from feedline.plan.permutation import MAX_SIZE

Indices = NDArray[np.int64]


def check_torch_seed(seed: Any) -> int:
    """Return `seed` if a torch generator can take it, or raise."""
    if isinstance(seed, str):
        raise InvalidValueError(f"seed={seed!r} must be an integer with order='torch'")
    return check_integer("seed", seed, -(2**63), 2**63 - 1)


def generator_of(seed: int, epoch: int) -> torch.Generator:
    """Return the generator of one epoch."""
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return generator


def random_order(size: int, generator: torch.Generator) -> Indices:
    """Return the next random permutation of a generator."""
    order: Indices = torch.randperm(size, generator=generator).numpy()
    return order


class ListedEpoch:
    """An epoch whose order is a list."""

    def __init__(self, listed: Indices) -> None:
        self.num_positions = len(listed)
        self._listed = listed

    def indices(self, positions: Indices) -> Indices:
        chosen: Indices = self._listed[positions]
        return chosen

    def find(self, index: int) -> Indices:
        return np.flatnonzero(self._listed == index)


@dataclass(frozen=True, kw_only=True)
class TorchShuffled(Order):
    """One `randperm` over the dataset, as torch's DistributedSampler draws it."""

    num_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        store(
            self,
            num_samples=check_integer("num_samples", self.num_samples, 1, MAX_SIZE),
            seed=check_torch_seed(self.seed),
        )

    @property
    def num_indices(self) -> int:
        return self.num_samples

    def at(self, epoch: int) -> EpochOrder:
        def draw() -> EpochOrder:
            return ListedEpoch(random_order(self.num_samples, generator_of(self.seed, epoch)))

        return DeferredEpoch(self.num_samples, draw)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch shuffled",
            "num_samples": self.num_samples,
            "seed": self.seed,
        }
