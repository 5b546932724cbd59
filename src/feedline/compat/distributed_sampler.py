"""A distributed sampler under the names, states and orders of the systems that it replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from functools import partial
from typing import Any

from feedline.compat.torch_order import TorchShuffled
from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    check_choice,
    check_flag,
    check_integer,
)
from feedline.feed import Batching, Pass, Peers, Position
from feedline.feed.passes import SINGLE
from feedline.plan import Cursor, Order, SamplePlan, Sequential, Shuffled
from feedline.plan.seeds import check_seed
from feedline.torch.sampler import PlanSampler, SampleSampler, describe_dataset


class DocumentedState(PlanSampler[Any]):
    """A sampler whose state also contains its seed and its ranks, as documented.

    A state without a cursor, saved by another system, resumes at the start of its epoch; a subclass
    may know the position.
    """

    seed: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the state; save it on any rank, load it on any number of ranks."""
        return {
            **super().state_dict(),
            "seed": self.seed,
            "num_replicas": self.num_replicas,
            "rank": self.rank,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. An error leaves the sampler unchanged."""
        if not isinstance(state, Mapping) or "epoch" not in state:
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the key 'epoch'; pass what "
                "state_dict() returned"
            )
        if "cursor" in state:
            super().load_state_dict(state)
            return
        saved = state.get("seed", self.seed)
        if saved != self.seed:
            raise PlanMismatchError(
                f"the state belongs to another plan: seed was {saved!r:.80} and is "
                f"{self.seed!r:.80}. Use the seed of the saved state",
                {"seed": (saved, self.seed)},
            )
        self.position.go_to(self._cursor_of_documented(state))

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        """Return the cursor for a state that has only the keys that other systems save."""
        return self.position.cursor_at(check_integer("epoch", state["epoch"], 0), 0)


class _SkippingPosition(Position):
    """A position whose next pass can skip entries, in any epoch."""

    # A skip that no pass has begun with yet.
    _skip = 0

    def skip(self, num_entries: int) -> None:
        """Begin the next pass after `skip` entries."""
        self.go_to(self.cursor_at(self.epoch, num_entries))
        self._skip = num_entries

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`, or to the pending skip."""
        before = self.epoch
        super().set_epoch(epoch)
        if self._skip and self.epoch != before:
            self.skip(self._skip)

    def go_to(self, cursor: Cursor) -> None:
        """Make the next pass begin at a cursor, instead of a skip."""
        super().go_to(cursor)
        self._skip = 0

    def begin(self, batching: Batching = SINGLE, *, moves_on: bool = True) -> Pass:
        """Begin a pass, which uses up a skip."""
        self._skip = 0
        return super().begin(batching, moves_on=moves_on)


class SkippingSampler(DocumentedState, SampleSampler):
    """A sampler of indices that can skip some."""

    _position_class = _SkippingPosition
    position: _SkippingPosition

    def set_skip(self, skip: int) -> None:
        """Begin the next pass after `skip` samples of this rank, in any epoch."""
        self.position.skip(check_integer("skip", skip, 0, len(self)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. An error leaves the sampler unchanged."""
        skip = self.position._skip
        super().load_state_dict(state)
        if skip and "cursor" not in state:
            # A state of another system has no place in the epoch, so a skip is not replaced by it.
            self.set_skip(skip)


class DistributedSampler(SkippingSampler):
    """Every rank gets its own samples, in a new order in every epoch.

    It holds only a few integers in memory, and the state loads on any number of ranks.

    Args:
        dataset: Anything with a length.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        shuffle: Shuffle the samples.
        seed: Any integer or string.
        drop_last: Drop the samples that do not divide evenly over the ranks, the default here; else
            the first samples are repeated as padding, the default of `DataLoader`.
        order: `"feedline"`, or `"torch"` for the order of torch's own DistributedSampler.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
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
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise InvalidValueError(
                f"dataset={dataset!r:.80} must have a length; an iterable dataset needs no sampler"
            )
        check_choice("order", order, ("feedline", "torch"))
        self.dataset: Any = dataset
        self.shuffle = check_flag("shuffle", shuffle)
        self.seed = check_seed(seed)
        self.drop_last = check_flag("drop_last", drop_last)
        super().__init__(
            SamplePlan(
                order=_order(len(dataset), shuffle, seed, order),
                tail="drop" if drop_last else "pad",
            ),
            num_replicas=num_replicas,
            rank=rank,
            describe=partial(describe_dataset, dataset),
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )


def _order(num_samples: int, shuffle: bool, seed: int, order: str) -> Order:
    if not shuffle:
        return Sequential(num_samples=num_samples)
    if order == "torch":
        return TorchShuffled(num_samples=num_samples, seed=seed)
    return Shuffled(num_samples=num_samples, seed=seed)
