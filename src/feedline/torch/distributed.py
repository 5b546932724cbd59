"""A distributed sampler that begins anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.plan import Block, Order, Plan, SamplePlan, Sequential, Shuffled
from feedline.torch.peers import Peers
from feedline.torch.plan_sampler import Pass, PlanSampler
from feedline.torch.torch_order import TorchShuffled

__all__ = ["DistributedSampler", "SampleSampler"]


class SampleSampler(PlanSampler[int]):
    """A sampler that yields one index at a time."""

    _num_first = 64
    # A skip that no pass has begun with yet.
    _skip = 0

    @property
    def num_samples(self) -> int:
        """The number of samples that each rank gets in this epoch."""
        return len(self)

    def set_skip(self, skip: int) -> None:
        """Begin the next pass after `skip` samples of this rank, whatever epoch it is then in."""
        skip = check_integer("skip", skip, 0, self._segment_at(None).num_batches)
        self._loaded = self._fresh_cursor(self._epoch, skip)
        self._resumed = self._pass = None
        self._skip = skip

    def set_epoch(self, epoch: int) -> None:
        before = self.epoch
        super().set_epoch(epoch)
        if self._skip and self.epoch != before:
            self.set_skip(self._skip)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if "cursor" in state:
            self._skip = 0
        elif self._skip:
            # A state of another system has no place in the epoch, so a skip is not replaced by it.
            self.set_skip(self._skip)

    def begin(self) -> Pass:
        self._skip = 0
        return super().begin()

    def batches(self, batch_size: int, drop_last: bool) -> Iterator[list[int]]:
        """Iterate over a pass in batches, as torch's BatchSampler does, but faster."""
        return self._batches(self._next_pass, batch_size, drop_last)

    def _batches(self, bound: Pass | None, batch_size: int, drop_last: bool) -> Iterator[list[int]]:
        running = self._take_pass(bound)
        handed_out = running.start
        entries: list[int] = []
        for block in running.segment.blocks(self.rank, running.start, batch_size):
            entries += self._entries_of(block)
            num_whole = len(entries) - len(entries) % batch_size
            for first in range(0, num_whole, batch_size):
                handed_out += batch_size
                running.block_end = handed_out
                yield entries[first : first + batch_size]
            entries = entries[num_whole:]
        if entries and not drop_last:
            running.block_end = handed_out + len(entries)
            yield entries

    def _entries_of(self, block: Block) -> list[int]:
        entries: list[int] = block.indices.tolist()
        return entries


class DistributedSampler(SampleSampler):
    """Every rank gets its own samples, in a new order in every epoch.

    Nothing is held in memory but a few integers, and the state loads on any number of ranks.

    Args:
        dataset: Anything with a length.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        shuffle: Whether samples are shuffled.
        seed: Any integer or string.
        drop_last: Drop the samples that do not divide evenly over ranks; otherwise the first ones
            are repeated to fill up.
        order: `"feedline"`, or `"torch"` for the order of torch's own DistributedSampler.
        process_group: The group of ranks that get different data, if not all.
        desync_guard: Compare the ranks before each epoch, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> sampler = DistributedSampler(range(10), num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler)
        [0, 2, 4, 6, 8]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        *,
        order: str = "feedline",
        process_group: Any | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise InvalidValueError(
                f"dataset={dataset!r:.80} must have a length; an iterable dataset needs no sampler"
            )
        check_choice("order", order, ("feedline", "torch"))
        super().__init__(
            peers=Peers(num_replicas, rank, process_group),
            entry_size=1,
            seed=seed,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.dataset = dataset
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._plan = SamplePlan(
            order=_order(len(dataset), shuffle, seed, order), tail="drop" if drop_last else "pad"
        )

    @property
    def plan(self) -> Plan:
        return self._plan


def _order(num_samples: int, shuffle: bool, seed: int, order: str) -> Order:
    if not shuffle:
        return Sequential(num_samples=num_samples)
    if order == "torch":
        return TorchShuffled(num_samples=num_samples, seed=seed)
    return Shuffled(num_samples=num_samples, seed=seed)
