"""Any plan as a torch sampler of indices or batches, resumable anywhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, TypeVar

from torch.utils.data import DistributedSampler

from feedline.feed import Pass, Peers, Position
from feedline.feed.delegation import asked_of
from feedline.feed.passes import SINGLE
from feedline.feed.shown import loader_shown, samples_shown
from feedline.plan import Block, Plan
from feedline.torch import stateful_loader
from feedline.torch.in_accelerate import check_undivided

Item = TypeVar("Item")


# Trainers know by torch's class that a sampler has divided the samples over the ranks.
class PlanSampler(DistributedSampler[Item]):
    """A sampler that computes its entries from a plan, so it can resume anywhere.

    An entry is what the sampler yields: a sample, or a batch. The state counts entries yielded. A
    plain torch DataLoader prefetches entries, so there the state counts what was prefetched;
    `feedline.torch.DataLoader` counts what was delivered.

    Like torch's samplers, it stays in its epoch until `set_epoch` is called.

    Args:
        plan: The order.
        batch_size: The number of samples in an entry.
        describe: Returns what else ranks must agree on.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.
    """

    #: How many entries are computed together at first.
    _num_first = 1
    _position_class: ClassVar[type[Position]] = Position
    # A StatefulDataLoader has loaded the end of an epoch: what its tail has dropped stays dropped.
    _has_nothing_left = False

    def __init__(
        self,
        plan: Plan,
        *,
        batch_size: int = 1,
        describe: Callable[[], Mapping[str, Any]] = dict,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        self.position = self._position_class(
            plan,
            batch_size=batch_size,
            describe=describe,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )

    def __repr__(self) -> str:
        return loader_shown(self, self.position, SINGLE)

    @abstractmethod
    def _entries_of(self, block: Block) -> list[Item]:
        """Return the entries of a block."""

    plan: Plan = asked_of("position", "plan")
    """The plan."""
    epoch: int = asked_of("position", "epoch")
    """The current epoch."""
    rank: int = asked_of("position.peers", "rank")
    """The rank of this process."""
    num_replicas: int = asked_of("position.peers", "world_size")
    """The number of ranks that share the data."""

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        self._has_nothing_left = self._has_nothing_left and epoch == self.epoch
        self.position.set_epoch(epoch)

    def __len__(self) -> int:
        """The number of entries in a whole epoch, the same on every rank."""
        return self.position.num_batches()

    def __iter__(self) -> Iterator[Item]:
        stateful_loader.check_pass(self)
        check_undivided(self, self.num_replicas)
        # A chain takes entries out of lists without running any Python for each.
        return chain.from_iterable(self._handed_out())

    def _handed_out(self) -> Iterator[Iterator[Item]]:
        # A generator: nothing happens before the first entry is asked for. torch's DataLoader
        # makes two iterators of its sampler at times and uses the second one.
        if self._has_nothing_left:
            self._has_nothing_left = False
            self.position.restart()
            return
        running = self.position.begin(moves_on=False)
        for entries in self.portions(running):
            yield running.hand_out(entries)

    def portions(self, running: Pass) -> Iterator[list[Item]]:
        """Yield the entries of a pass, a few at first and then many together."""
        for block in running.segment.blocks(running.rank, running.start, self._num_first):
            yield self._entries_of(block)

    def entries(self, running: Pass) -> Iterator[Item]:
        """Yield the entries of a pass; none of them counts as delivered."""
        return chain.from_iterable(self.portions(running))

    def batches(self, running: Pass) -> Iterator[Any]:
        """Yield the batches of a pass, its entries; none of them counts as delivered."""
        return self.entries(running)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; save it on any rank, load it on any number of ranks."""
        return stateful_loader.with_sizes(self.position.state_dict(), self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. An error leaves the sampler unchanged."""
        asked = self.epoch
        self.position.load_state_dict(state)
        self._has_nothing_left = stateful_loader.settle(self.position, state, asked)


class SampleSampler(PlanSampler[int]):
    """A sampler that yields one index at a time.

    Args:
        plan: What is yielded when.
        batch_size: The number of samples of an entry.
        describe: Returns what else ranks must agree on.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> from feedline.plan import SamplePlan, Sequential
        >>> list(SampleSampler(SamplePlan(order=Sequential(num_samples=5)), num_replicas=2, rank=1))
        [1, 3]
    """

    _num_first = 64

    def __repr__(self) -> str:
        return samples_shown(self, self.position, SINGLE)

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """The number of samples of each rank in an epoch."""
        return len(self)

    def _entries_of(self, block: Block) -> list[int]:
        entries: list[int] = block.indices.tolist()
        return entries

    def batches(self, running: Pass) -> Iterator[list[int]]:
        batching = running.batching
        size, entries = batching.num_entries, []
        for block in running.segment.blocks(running.rank, running.start, size):
            entries += self._entries_of(block)
            num_whole = len(entries) - len(entries) % size
            for first in range(0, num_whole, size):
                yield entries[first : first + size]
            entries = entries[num_whole:]
        if entries and not batching.drop_last:
            yield entries


class BatchPlanSampler(PlanSampler[list[int]]):
    """A sampler that yields whole batches of indices.

    Args:
        plan: What is yielded when.
        batch_size: The number of samples of a batch.
        describe: Returns what else ranks must agree on.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> from feedline.plan import SamplePlan, Sequential
        >>> plan = SamplePlan(order=Sequential(num_samples=5), tail="even")
        >>> list(BatchPlanSampler(plan, batch_size=2))
        [[0, 1], [2, 3], [4]]
    """

    def _entries_of(self, block: Block) -> list[list[int]]:
        edges = block.bounds.tolist()
        indices = block.indices.tolist()
        return [indices[edges[i] : edges[i + 1]] for i in range(len(block))]


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Return what ranks compare of a dataset: its fingerprint, if it has one."""
    found = getattr(dataset, "fingerprint", None)
    return {"dataset": found if isinstance(found, str) else None}
