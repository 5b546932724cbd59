"""What all samplers share: their place in a plan, and how it is saved, loaded and resumed."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.utils.data import Sampler

from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    check_integer,
)
from feedline.plan import Block, Cursor, PastSegment, Plan, Segment
from feedline.torch.guard import compare_ranks
from feedline.torch.peers import Peers

__all__ = ["Pass", "PlanSampler"]

Item = TypeVar("Item")


@dataclass
class Pass:
    """One walk through a segment: where it began and, by what is left in `live`, where it is."""

    segment: Segment
    start: int
    block_end: int
    live: Iterator[Any] = field(default_factory=lambda: iter(()))

    @property
    def reached(self) -> int:
        """The number of entries of the segment that were handed out."""
        return self.block_end - operator.length_hint(self.live)


class PlanSampler(Sampler[Item]):
    """A sampler that computes what it yields from a plan, and so can begin anywhere.

    An entry is what the sampler yields: a sample, or a batch. The state counts entries yielded. A
    plain torch DataLoader asks for entries ahead of the training loop, so there the state says what
    was asked for; `feedline.torch.DataLoader` says what was delivered.
    """

    #: How many entries are computed together at first.
    _num_first = 1

    def __init__(
        self,
        *,
        peers: Peers,
        entry_size: int,
        seed: int,
        desync_guard: bool,
        desync_timeout: float,
    ) -> None:
        if not isinstance(desync_timeout, int | float) or not desync_timeout > 0:
            raise InvalidValueError(
                f"desync_timeout={desync_timeout!r:.80} must be a number of seconds above 0"
            )
        self.seed = seed
        self._peers = peers
        self._entry_size = entry_size
        self._desync_guard = desync_guard
        self._desync_timeout = desync_timeout
        self._epoch = 0
        self._loaded: Cursor | None = None
        self._resumed: Segment | None = None
        self._pass: Pass | None = None
        self._next_pass: Pass | None = None
        #: What the loader that uses this sampler adds to the record that ranks compare.
        self.loader_record: dict[str, Any] = {}

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """The plan that decides what is yielded."""

    @abstractmethod
    def _entries_of(self, block: Block) -> list[Item]:
        """Return what is yielded for a block."""

    @property
    def epoch(self) -> int:
        """The epoch that this sampler is in."""
        return self._epoch

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._peers.rank

    @property
    def num_replicas(self) -> int:
        """The number of ranks that share the data."""
        return self._peers.world_size

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the sampler is in is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._loaded = self._resumed = self._pass = None

    def begin(self) -> Pass:
        """Begin a pass, at the loaded state or else at the start of the epoch."""
        segment = self._begin_segment()
        self._loaded = self._resumed = None
        self._pass = Pass(segment, segment.num_done, segment.num_done)
        return self._pass

    @contextmanager
    def bound_to(self, running: Pass) -> Iterator[None]:
        """Let the iterators that are made meanwhile belong to a pass that was begun."""
        self._next_pass = running
        try:
            yield
        finally:
            self._next_pass = None

    def is_in(self, running: Pass) -> bool:
        """Whether nothing has moved this sampler since a pass began."""
        return self._pass is running

    def _begin_segment(self) -> Segment:
        return self._segment_at(self._loaded)

    def __iter__(self) -> Iterator[Item]:
        return self._entries(self._next_pass)

    def _entries(self, bound: Pass | None) -> Iterator[Item]:
        # A generator: nothing happens before the first entry is asked for. torch's DataLoader
        # makes two iterators of its sampler at times and uses the second one.
        running = self._take_pass(bound)
        for block in running.segment.blocks(self.rank, running.start, self._num_first):
            running.live = iter(self._entries_of(block))
            running.block_end = block.first + len(block)
            yield from running.live

    def _take_pass(self, bound: Pass | None) -> Pass:
        """Return the pass that was begun, or begin one, after the ranks have been compared."""
        running = bound or self.begin()
        self._compare_ranks(running)
        return running

    def __len__(self) -> int:
        """The number of entries of the whole epoch, on every rank alike."""
        segment = self._current_segment()
        return sum(past.num_batches for past in segment.history) + segment.num_batches

    def state_dict(self) -> dict[str, Any]:
        """Return where this sampler is; save it on any rank, load it on any number of them."""
        return self._as_state(self._current_cursor())

    def state_after(self, running: Pass, num_entries: int) -> dict[str, Any]:
        """Return the state after `num_entries` entries of a pass, however many were asked for."""
        reached = min(running.start + num_entries, running.segment.num_batches)
        return self._as_state(self._cursor_of(running.segment, reached))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved. An error leaves the sampler as it was."""
        if not isinstance(state, Mapping) or "epoch" not in state:
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the key 'epoch'; pass what "
                "state_dict() returned"
            )
        if "cursor" in state:
            cursor = Cursor.from_dict(state["cursor"])
            if cursor.epoch != state["epoch"]:
                raise CursorFormatError(
                    f"epoch={state['epoch']!r:.80} must be that of the cursor, {cursor.epoch}; the "
                    "state is damaged, use an earlier checkpoint"
                )
        else:
            if state.get("seed", self.seed) != self.seed:
                raise PlanMismatchError(
                    f"the state belongs to another plan: seed was {state['seed']!r:.80} and is "
                    f"{self.seed!r:.80}. Use the seed that it was saved with",
                    {"seed": (state["seed"], self.seed)},
                )
            cursor = self._cursor_of_documented(state)
        segment = self._segment_at(cursor)
        self._accept(segment)
        self._epoch = cursor.epoch
        self._loaded = cursor
        self._resumed = segment
        self._pass = None

    def num_left(self) -> int:
        """Return how many entries the next pass has: those of the loaded state, or all."""
        segment = self._segment_at(self._loaded)
        return segment.num_batches - segment.num_done

    def _accept(self, segment: Segment) -> None:
        """Take over what a loaded state changed about the plan."""

    def _segment_at(self, cursor: Cursor | None) -> Segment:
        sizes = {"world_size": self._peers.world_size, "batch_size": self._entry_size}
        if cursor is None:
            return self.plan.segment(epoch=self._epoch, **sizes)
        resumed = self._resumed if cursor is self._loaded else None
        if resumed is not None and resumed.world_size == sizes["world_size"]:
            return resumed
        return self.plan.resume(cursor, **sizes)

    def _current_segment(self) -> Segment:
        running = self._pass
        if self._loaded is None and running is not None:
            return running.segment
        return self._segment_at(self._loaded)

    def _current_cursor(self) -> Cursor:
        if self._loaded is not None:
            return self._loaded
        if self._pass is not None:
            return self._cursor_of(self._pass.segment, self._pass.reached)
        return self._fresh_cursor(self._epoch, 0)

    def _cursor_of(self, segment: Segment, num_entries: int) -> Cursor:
        return segment.cursor(num_entries)

    def _fresh_cursor(self, epoch: int, num_entries: int) -> Cursor:
        """Return the cursor after `num_entries` entries of an epoch on the present ranks."""
        past = PastSegment(self._peers.world_size, self._entry_size, num_entries)
        return Cursor(
            fields=self.plan.fields,
            epoch=epoch,
            history=(past,) if num_entries else (),
            changes=self.plan.changes,
        )

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        """Return the cursor for a state that has only the keys that other systems save."""
        return self._fresh_cursor(check_integer("epoch", state["epoch"], 0), 0)

    def _as_state(self, cursor: Cursor) -> dict[str, Any]:
        return {
            "epoch": cursor.epoch,
            "seed": self.seed,
            "num_replicas": self.num_replicas,
            "rank": self.rank,
            "cursor": cursor.to_dict(),
        }

    def _dataset_fingerprint(self) -> str | None:
        """Return the fingerprint of the dataset, where it has one, for the desync guard."""
        found = getattr(getattr(self, "dataset", None), "fingerprint", None)
        return found if isinstance(found, str) else None

    def _compare_ranks(self, running: Pass) -> None:
        group = self._peers.group
        if group is None or not self._desync_guard:
            return
        compare_ranks(group, self._record(running), timeout=self._desync_timeout)

    def _record(self, running: Pass) -> dict[str, Any]:
        """Return everything that ranks must agree on before a pass."""
        return {
            "plan": running.segment.plan.fields,
            "dataset": self._dataset_fingerprint(),
            "world_size": running.segment.world_size,
            "batch_size": running.segment.batch_size,
            "num_batches": running.segment.num_batches,
            "epoch": running.segment.epoch,
            "history": [list(past) for past in running.segment.history],
            "start": running.start,
            "changes": [dict(change) for change in running.segment.plan.changes],
            **self.loader_record,
        }
