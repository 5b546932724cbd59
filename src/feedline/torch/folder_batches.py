"""Where a folder dataset is in its plan: which batch comes next, on every rank."""

from __future__ import annotations

import copy
from typing import Any

from feedline.feed import DataPlan, chunking_of
from feedline.plan import Batch, Block, FileSharesPlan, Plan, Segment, WindowPlan
from feedline.store import FolderStore
from feedline.torch.folder_config import FolderSettings
from feedline.torch.peers import Peers
from feedline.torch.plan_sampler import Pass, PlanSampler

__all__ = ["FolderBatches", "plan_for"]


def plan_for(store: FolderStore, settings: FolderSettings, shuffle: bool) -> DataPlan:
    """Return the plan that a sampling strategy means."""
    plan: Plan
    if settings.strategy == "balanced":
        plan = WindowPlan(
            chunks=chunking_of(store),
            preload=settings.preload,
            shuffle=shuffle,
            tail="even",
            seed=settings.seed,
        )
    else:
        plan = FileSharesPlan(
            sizes=store.manifest.samples,
            strategy=settings.strategy,
            shuffle=shuffle,
            seed=settings.seed,
            names=[entry["path"] for entry in store.manifest.entries],
        )
    return DataPlan(plan=plan, store=store)


class FolderBatches(PlanSampler[Batch]):
    """The batches of a folder; one entry is one batch."""

    def __init__(self, plan: DataPlan, *, peers: Peers, **options: Any) -> None:
        super().__init__(peers=peers, **options)
        self._plan = plan
        # The first question shows what cannot be, such as unequal ranks.
        self._segment_at(None)

    @property
    def plan(self) -> DataPlan:
        return self._plan

    @property
    def num_samples(self) -> int:
        """The number of samples that every rank gets, or at most gets."""
        inner = self._plan.plan
        if isinstance(inner, FileSharesPlan):
            return inner.target_samples(self.num_replicas)
        return -(-inner.num_indices // self.num_replicas)

    @property
    def bound_pass(self) -> Pass | None:
        """The pass that a loader has begun for the iterators that it is making, if any."""
        return self._next_pass

    def take_pass(self, bound: Pass | None) -> Pass:
        """Return the pass that was begun, or begin one, after the ranks have been compared."""
        return self._take_pass(bound)

    def compare_ranks(self, running: Pass) -> None:
        """Raise `DesyncError` unless all ranks are about to do the same."""
        self._compare_ranks(running)

    def forget_loaded(self) -> None:
        """Let the next pass begin at the start of the epoch: the loaded state has been used."""
        self._loaded = self._resumed = None

    def next_segment(self) -> Segment:
        """Return the segment in which the next pass begins."""
        return self._segment_at(self._loaded)

    def resolved(self) -> FolderBatches:
        """Return a copy for another process, which cannot look up its rank."""
        other = copy.copy(self)
        other._peers = Peers(self.num_replicas, self.rank)
        other._pass = other._next_pass = None
        return other

    def _entries_of(self, block: Block) -> list[Batch]:
        return list(block)
