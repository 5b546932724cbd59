"""What all ranks decide together, with one collective for each step."""

from __future__ import annotations

import signal
from typing import NamedTuple

from feedline.errors import DesyncError
from feedline.steps.peers import Peers

__all__ = ["Agreement", "Verdict"]


class Verdict(NamedTuple):
    """What the ranks agreed on: a signal and who got it, a deadline, or a request to stop."""

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
        """Why it stops, in words."""
        if self.signal:
            return f"rank {self.signal_rank} got {signal.Signals(self.signal).name}"
        if self.is_deadline:
            return "the deadline is near"
        return "a rank asked to stop" if self.is_asked else None


class Agreement:
    """Compares flags of all ranks. What each of them says fits into one list of integers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def reach(
        self, step: int, *, signal: int, is_deadline: bool, is_asked: bool, has_diverged: bool
    ) -> Verdict:
        """Return what is true on any rank, or raise `DesyncError` if they are not together."""
        rank = self._peers.rank
        mine = [
            (rank + 1) * 256 + signal if signal else 0,
            int(is_deadline),
            int(is_asked),
            rank + 1 if has_diverged else 0,
            step,
            -step,
        ]
        told, is_late, was_asked, diverged, last, first = self._peers.maximum(mine)
        if last != -first:
            raise DesyncError(
                f"rank {rank} is at step {step}, but others are at steps from {-first} to {last}; "
                "every rank must take every step"
            )
        if diverged:
            raise DesyncError(
                f"rank {diverged - 1} has received other samples than its plan says, by step "
                f"{step}; look for what takes batches out of its loader beside the scheduler"
            )
        return Verdict(told % 256, max(told // 256 - 1, 0), bool(is_late), bool(was_asked))
