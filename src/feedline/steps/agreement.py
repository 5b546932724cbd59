"""Decisions that all ranks take together, with one collective of one number per step.

A collective of one number is the cheapest. So each rank packs its message into one number, with the
most urgent part in the highest bits: the maximum over all ranks is then the most urgent message,
and names its rank.
"""

from __future__ import annotations

import logging
import signal
from typing import NamedTuple

from feedline.errors import DesyncError
from feedline.feed import Guard
from feedline.steps.deadline import Deadline
from feedline.steps.signal_handler import DistributedSignalHandler
from feedline.steps.walk import DataWalk

logger = logging.getLogger(__name__)

_STEP_BITS, _SIGNAL_BITS, _RANK_BITS = 22, 7, 16
_ASKED = 1 << _STEP_BITS
_DEADLINE = _ASKED << 1
_SIGNAL = _DEADLINE << 1
_SIGNAL_RANK = _SIGNAL << _SIGNAL_BITS
_DIVERGED_RANK = _SIGNAL_RANK << _RANK_BITS
_MAX_RANK = 2**_RANK_BITS - 1


class Verdict(NamedTuple):
    """What the ranks agreed on: a signal and the rank that got it, a deadline, or a request to
    stop."""

    signal: int = 0
    signal_rank: int = 0
    is_deadline: bool = False
    is_asked: bool = False

    @property
    def is_stop(self) -> bool:
        """Whether the run stops after this step."""
        return bool(self.signal or self.is_deadline or self.is_asked)

    @property
    def reason(self) -> str | None:
        """The reason of the stop, as text."""
        if self.signal:
            return f"rank {self.signal_rank} got {signal.Signals(self.signal).name}"
        if self.is_deadline:
            return "the deadline is near"
        return "a rank requested a stop" if self.is_asked else None


_NOTHING = Verdict()


class Agreement:
    """Compares the messages of the ranks, once per step.

    Args:
        handler: The signals that this rank got, and its peers.
        deadline: The time by which this rank must stop.
    """

    def __init__(self, handler: DistributedSignalHandler, deadline: Deadline) -> None:
        self._handler = handler
        self._deadline = deadline
        self._is_compared = False
        #: The step that the ranks have agreed on.
        self.step = -1
        #: Whether this rank asks all of them to stop.
        self.is_asked = False
        #: What the ranks agreed on at the latest step.
        self.verdict = _NOTHING

    def reset(self) -> None:
        """Forget what was agreed on."""
        self.verdict, self.step = _NOTHING, -1

    def compare_once(self, **limits: int | None) -> None:
        """Raise `DesyncError` on every rank unless all ranks have the same limits."""
        if not self._is_compared:
            self._is_compared = True
            Guard().compare(self._handler.peers, lambda: limits)

    def at(self, step: int, walk: DataWalk) -> Verdict:
        """Return what the ranks agree on at the step that is out; the first call communicates.

        Outside of steps, return what they agreed on before.
        """
        if walk.group is None or self.step == step:
            return self.verdict
        self.step = step
        return self._reach(step, walk, is_between=False)

    def stops_before(self, step: int, walk: DataWalk, was_checkpoint: bool) -> bool:
        """Return whether the run stops before the step that is out.

        Right after a checkpoint, ranks communicate now instead of later in the step. If a signal
        came while it was saved, the run stops with that checkpoint, not with another one a step
        later.
        """
        return (self.at(step, walk) if was_checkpoint else self.verdict).is_stop

    def between(self, step: int, walk: DataWalk) -> Verdict:
        """Return what the ranks agree on before a step; all of them must call it together."""
        if self.verdict.is_stop or not self._handler.signals:
            return self.verdict
        return self._reach(step, walk, is_between=True)

    def _reach(self, step: int, walk: DataWalk, *, is_between: bool) -> Verdict:
        """Return the most urgent message of any rank, or raise `DesyncError` if ranks differ."""
        peers, got = self._handler.peers, int(self._handler.received or 0)
        is_last_batch = walk.is_last_group and not is_between
        has_diverged = walk.has_diverged and not is_between
        who = min(peers.rank + 1, _MAX_RANK)
        place = _place_of(step, walk.epoch, is_last_batch, is_between)
        told = peers.maximum(
            (_DIVERGED_RANK * who if has_diverged else 0)
            | (_SIGNAL_RANK * who | _SIGNAL * got if got else 0)
            | (_DEADLINE if self._deadline.is_near() else 0)
            | (_ASKED if self.is_asked else 0)
            | place
        )
        if told == place:
            # Nobody asks for anything, as at nearly every step.
            self.verdict = _NOTHING
            return self.verdict
        if told // _DIVERGED_RANK:
            raise DesyncError(
                f"rank {told // _DIVERGED_RANK - 1} has received other samples than its plan by "
                f"step {step}; take batches only from the scheduler, not from its loader"
            )
        if told % _ASKED != place:
            at_end = ", the last of its epoch" if is_last_batch else ""
            raise DesyncError(
                f"rank {peers.rank} is {'before' if is_between else 'at'} step {step}{at_end}, but "
                "others are not; load the same checkpoint on every rank, use equally many batches "
                "on all ranks, take every step on every rank, and read sigterm_received outside "
                "of steps on all ranks or none"
            )
        self.verdict = Verdict(
            signal=told // _SIGNAL % 2**_SIGNAL_BITS,
            signal_rank=max(told // _SIGNAL_RANK % 2**_RANK_BITS - 1, 0),
            is_deadline=bool(told & _DEADLINE),
            is_asked=bool(told & _ASKED),
        )
        if self.verdict.is_stop:
            logger.info("stopping at step %d: %s", step, self.verdict.reason)
        return self.verdict


def _place_of(step: int, epoch: int, is_last_batch: bool, is_between: bool) -> int:
    """Return a number that shows a rank that it is at another step: ranks behind at even steps,
    ranks ahead at odd ones."""
    low = (8 * step + 4 * is_between + 2 * (epoch % 2) + is_last_batch) % _ASKED
    return low if step % 2 == 0 else _ASKED - 1 - low
