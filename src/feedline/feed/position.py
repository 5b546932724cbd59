"""The position of one rank in a plan: it counts, saves, loads and ends epochs.

Everything that yields batches has a `Position` and keeps no other counters. A position
counts *entries*, which are batches of the plan: single samples for a sampler of indices, whole
batches for everything else. A loader that makes one batch of several entries says so by a
`Batching`.

The rules of epochs:

- `begin` starts a pass: at the loaded state; or at the start of the epoch; or, once the last batch
  of an epoch was delivered, at the start of the next one.
- A pass that is interrupted restarts.
- `set_epoch` with the current epoch does nothing.
- If what is left after a loaded state is too small for a batch, the pass is empty and its epoch
  ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedline.errors import CursorFormatError, InvalidValueError, check_integer
from feedline.feed.epoch_rules import cursor_without, is_finished, num_batches_of
from feedline.feed.guard import Guard
from feedline.feed.passes import SINGLE, Batching, Pass
from feedline.feed.peers import Peers, as_peers
from feedline.feed.shown import loader_shown
from feedline.plan import Cursor, PastSegment, Plan, Segment
from feedline.plan.skipping import has_ahead

Weights = tuple[Sequence[float], float]


class Position:
    """The position of one rank in a plan.

    Args:
        plan: The order. It may be set later, and may change within the same run: a state loaded
            earlier is compared when the next pass begins.
        batch_size: The number of samples in an entry.
        describe: Returns what else ranks must agree on.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> from feedline.feed.peers import Alone
        >>> from feedline.plan import SamplePlan, Sequential
        >>> plan = SamplePlan(order=Sequential(num_samples=10), tail="even")
        >>> position = Position(plan, batch_size=4, peers=Alone())
        >>> running = position.begin()
        >>> running.deliver()
        >>> position.num_batches_left(), position.num_batches()
        (3, 3)
        >>> resumed = Position(plan, batch_size=3, peers=Alone())
        >>> resumed.load_state_dict(position.state_dict())
        >>> resumed.num_batches_left(), resumed.num_batches()
        (2, 4)
    """

    def __init__(
        self,
        plan: Plan | None,
        *,
        batch_size: int,
        describe: Callable[[], Mapping[str, Any]] = dict,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        self._plan = plan
        self.batch_size = batch_size
        #: The ranks that share the data.
        self.peers = as_peers(
            peers, num_replicas=num_replicas, rank=rank, process_group=process_group
        )
        #: Compares the ranks before each pass.
        self.guard = Guard(desync_guard, desync_timeout)
        self._describe = describe
        self._epoch = 0
        self._loaded: Cursor | None = None
        self._resumed: Segment | None = None
        self._pass: Pass | None = None
        self._new_weights: Weights | None = None

    @property
    def plan(self) -> Plan:
        """The plan."""
        assert self._plan is not None
        return self._plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self._plan = plan
        self._resumed = None

    @property
    def known_plan(self) -> Plan | None:
        """The plan; None where it is not set yet."""
        return self._plan

    def __repr__(self) -> str:
        return loader_shown(self, self, SINGLE)

    # Epochs.

    @property
    def epoch(self) -> int:
        """The current epoch; it changes when the next pass begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self._epoch:
            self._go_to(epoch)

    def restart(self) -> None:
        """Go back to the start of the epoch."""
        self._go_to(self._epoch)

    def _go_to(self, epoch: int) -> None:
        self._leave_pass()
        self._epoch = epoch
        self._loaded = self._resumed = None

    def _leave_pass(self) -> None:
        if self._pass is not None:
            self._pass.is_stale = True
        self._pass = None

    def num_batches(self, batching: Batching = SINGLE) -> int:
        """Return the number of batches in a whole epoch, with the current ranks and batch size."""
        return num_batches_of(self._fresh(self._epoch), batching)

    def num_batches_left(self, batching: Batching = SINGLE) -> int:
        """Return the number of batches in the next pass."""
        if self.has_ended(batching):
            return num_batches_of(self._fresh(self._epoch + 1), batching)
        if self._loaded is None:
            return self.num_batches(batching)
        segment = self.next_segment()
        return batching.num_batches(segment.num_batches - segment.num_done)

    def has_ended(self, batching: Batching = SINGLE) -> bool:
        """Return whether the epoch has ended, so that the next pass begins the next epoch."""
        if self._pass is not None:
            return self._pass.has_ended
        if self._loaded is None:
            return False
        segment = self.next_segment()
        is_empty = not batching.num_batches(segment.num_batches - segment.num_done)
        # States of earlier releases do not say that they have ended.
        return self._loaded.has_ended or (is_empty and is_finished(segment, self._loaded))

    # Passes.

    def begin(self, batching: Batching = SINGLE, *, moves_on: bool = True) -> Pass:
        """Begin a pass, once all ranks agree on it.

        Args:
            batching: How entries make batches.
            moves_on: Whether the next epoch follows an epoch that has ended; else that epoch
                restarts, as in torch's samplers.
        """
        if moves_on and self.has_ended(batching):
            self._go_to(self._epoch + 1)
        segment = self.next_segment()
        if self._loaded is None:
            num_batches_of(segment, batching)
        if self._new_weights is not None:
            self._plan = self._reweighted(segment, segment.num_done)
            self._new_weights = None
            segment = replace(segment, plan=self._plan)
        running = Pass(segment, self.peers.rank, batching)
        self.guard.compare(self.peers, lambda: self._record(running))
        self._leave_pass()
        self._loaded = self._resumed = None
        self._pass = running
        return running

    @property
    def current(self) -> Pass | None:
        """The current or last pass, unless the position was moved since it began."""
        return self._pass

    def next_segment(self) -> Segment:
        """Return where the next pass begins, unless the epoch has ended."""
        if self._loaded is None:
            return self._fresh(self._epoch)
        sizes = self._sizes()
        known = self._resumed
        if known is None or (known.world_size, known.batch_size) != tuple(sizes.values()):
            self._resumed = self.plan.resume(self._loaded, **sizes)
            self._plan = self._resumed.plan
        assert self._resumed is not None
        return self._resumed

    def _fresh(self, epoch: int) -> Segment:
        return self.plan.segment(epoch=epoch, **self._sizes())

    def _sizes(self) -> dict[str, int]:
        return {"world_size": self.peers.world_size, "batch_size": self.batch_size}

    def _record(self, running: Pass) -> dict[str, Any]:
        """Return everything that ranks must agree on before a pass."""
        segment = running.segment
        return {
            "plan": segment.plan.fields,
            "world_size": segment.world_size,
            "batch_size": segment.batch_size * running.batching.num_entries,
            "largest_batch": segment.plan.largest_batch(segment.batch_size),
            "drop_last": running.batching.drop_last,
            "num_batches": segment.num_batches,
            "epoch": segment.epoch,
            "history": [past.to_json() for past in segment.history],
            "skipped": [list(span) for span in segment.skipped],
            "start": running.start,
            "changes": [dict(change) for change in segment.plan.changes],
            **self._describe(),
        }

    # Weights that change while running.

    @property
    def weights(self) -> Weights:
        """The weights of a mixture and their temperature, as given or as last changed."""
        weights = self._new_weights or self.plan.weights_now
        if weights is None:
            raise InvalidValueError("this plan has no weights; use a Mixture")
        return weights

    def reweight(self, weights: Sequence[float], temperature: float) -> None:
        """Use other weights from the next pass on; a running pass keeps its weights.

        The state contains the change: a resumed run uses the new weights at once.
        """
        self.plan.reweighted(weights, temperature, epoch=0, position=0)
        if self._pass is not None or self._loaded is not None:
            segment, num_done = self._place(SINGLE)
            if has_ahead(segment.deal, num_done):
                raise InvalidValueError(
                    f"weights={weights!r:.80} cannot be used before the batches that the run skips "
                    "ahead, because they decide which samples these are; change the weights when "
                    "these batches are behind the run"
                )
        self._new_weights = tuple(float(weight) for weight in weights), float(temperature)

    def _reweighted(self, segment: Segment, num_entries: int) -> Plan:
        """Return the plan with the new weights from this place on."""
        assert self._new_weights is not None
        total = segment.plan.begin(segment.epoch).num_left
        epoch, place = segment.epoch, total - segment.num_left_after(num_entries)
        if place >= total:
            epoch, place = epoch + 1, 0
        return segment.plan.reweighted(*self._new_weights, epoch=epoch, position=place)

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loop; it is the same on every rank."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches that the training loop received."""
        cursor = self._cursor_before(num_batches)
        return {"epoch": cursor.epoch, "cursor": cursor.to_json()}

    def _cursor_before(self, num_batches: int) -> Cursor:
        running = self._pass
        most = 0 if running is None else running.num_delivered
        num_batches = check_integer("num_batches", num_batches, 0, most)
        if running is not None:
            number = running.num_delivered - num_batches
            cursor = self._cursor(running.segment, running.entries_before(number))
            return replace(cursor, has_ended=number >= running.num_batches)
        if self._loaded is not None and self._new_weights is None:
            return self._loaded
        if self._new_weights is not None:
            segment = self.next_segment()
            return self._cursor(segment, segment.num_done)
        return self.cursor_at(self._epoch, 0)

    def _cursor(self, segment: Segment, num_entries: int) -> Cursor:
        cursor = segment.cursor(num_entries)
        if self._new_weights is None:
            return cursor
        return replace(cursor, changes=self._reweighted(segment, num_entries).changes)

    def cursor_at(self, epoch: int, num_entries: int) -> Cursor:
        """Return the cursor after `num_entries` entries of an epoch, with the current sizes."""
        history: tuple[PastSegment, ...] = ()
        if num_entries:
            history = (PastSegment(self.peers.world_size, self.batch_size, num_entries),)
        plan = self.plan
        return Cursor(fields=plan.fields, epoch=epoch, history=history, changes=plan.changes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, on any number of ranks; an error changes nothing."""
        if not isinstance(state, Mapping) or "cursor" not in state:
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the key 'cursor'; pass what "
                "state_dict() returned"
            )
        saved = state["cursor"]
        epoch = check_integer("epoch", state.get("epoch", 0), 0)
        if saved is None:
            # The state of a sampler that did not know its data yet.
            self._go_to(epoch)
            return
        cursor = Cursor.from_json(saved) if isinstance(saved, str) else Cursor.from_dict(saved)
        if cursor.epoch != state.get("epoch", cursor.epoch):
            raise CursorFormatError(
                f"epoch={state['epoch']!r:.80} must be {cursor.epoch}, the epoch of the cursor; "
                "the state is damaged; use an earlier checkpoint"
            )
        self.go_to(cursor)

    def go_to(self, cursor: Cursor) -> None:
        """Let the next pass begin at a cursor; an error changes nothing."""
        resumed = None if self._plan is None else self._plan.resume(cursor, **self._sizes())
        self._go_to(cursor.epoch)
        # Kept, so that the next pass need not compute it again.
        self._loaded, self._resumed = cursor, resumed
        if resumed is not None:
            self._plan = resumed.plan
        self._new_weights = None

    def state_without(
        self, num_batches: int, after: int = 0, batching: Batching = SINGLE
    ) -> dict[str, Any]:
        """Return the state of a run that skips batches which the training loop has not received.

        Args:
            num_batches: How many batches each rank skips.
            after: How many batches come before these.
            batching: How entries make batches.
        """
        if self._new_weights is not None:
            raise InvalidValueError(
                f"num_batches={num_batches!r:.80} cannot be skipped while new weights wait for the "
                "next pass, because they decide which samples these are; skip first, or begin the "
                "pass"
            )
        segment, num_done = self._place(batching)
        cursor = cursor_without(segment, num_done, num_batches, after, batching)
        return {"epoch": cursor.epoch, "cursor": cursor.to_json()}

    def skip_batches(self, num_batches: int, after: int = 0, batching: Batching = SINGLE) -> None:
        """Skip batches that follow: the next pass resumes here without them, on any ranks.

        Args:
            num_batches: How many batches each rank skips.
            after: How many batches come before these.
            batching: How entries make batches.
        """
        self.load_state_dict(self.state_without(num_batches, after, batching))

    def _place(self, batching: Batching) -> tuple[Segment, int]:
        """Return where the training loop is: a segment, and how many of its entries are behind."""
        if self.has_ended(batching):
            return self._fresh(self._epoch + 1), 0
        if self._pass is not None:
            return self._pass.segment, self._pass.entries_before(self._pass.num_delivered)
        segment = self.next_segment()
        return segment, segment.num_done

    @property
    def is_loaded(self) -> bool:
        """Whether the next pass begins at a state that was loaded."""
        return self._loaded is not None

    @property
    def loaded(self) -> Cursor | None:
        """The state that the next pass begins at, if one was loaded."""
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        # A copy, here or in another process, does not share the pass, but resumes from its
        # position.
        loaded = self._loaded if self._pass is None else self._cursor_before(0)
        return {**self.__dict__, "_pass": None, "_resumed": None, "_loaded": loaded}
