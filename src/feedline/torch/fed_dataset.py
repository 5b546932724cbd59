"""What our loader needs of a dataset that makes its own batches."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from torch.utils.data import IterableDataset

from feedline.torch.plan_sampler import Pass, PlanSampler

__all__ = ["FedDataset"]

Item = TypeVar("Item", covariant=True)


class FedDataset(IterableDataset[Item]):
    """An iterable dataset whose batches follow a plan.

    Worker w of n yields batches w, w + n, …, so that a loader, which takes from its workers in
    turn, gets them in the order of the plan.
    """

    #: Where the dataset is in its plan; one entry is one batch.
    batches: PlanSampler[Any]

    @abstractmethod
    def announce(self, running: Pass) -> None:
        """Tell workers about a pass that their loader has begun."""
