"""A phase of a mixture in its place: which draw of which source comes at a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feedline.lazy import lazy
from feedline.plan.interleave import Layout
from feedline.plan.orders import Indices


class Carry(NamedTuple):
    """The draws of one source that are still to come: a few pending ones, then all from `next`."""

    pending: Indices
    next: int

    def draws(self, ordinals: Indices) -> Indices:
        if not len(self.pending):
            return ordinals + self.next
        later = ordinals - len(self.pending) + self.next
        early = self.pending[np.minimum(ordinals, len(self.pending) - 1)]
        return np.where(ordinals < len(self.pending), early, later)

    def ordinals_of(self, draws: Indices) -> Indices:
        """Return the ordinals, ascending, of those of these draws that are still to come."""
        early = np.flatnonzero(np.isin(self.pending, draws))
        return np.concatenate([early, draws[draws >= self.next] - self.next + len(self.pending)])

    def after(self, skipped: Indices, ordinal: int) -> Carry:
        """Return what is left when all ordinals below `ordinal`, less `skipped`, are used."""
        pending = np.concatenate([self.draws(skipped), self.pending[ordinal:]])
        return Carry(pending, self.next + max(0, ordinal - len(self.pending)))


@dataclass(frozen=True)
class LaidOut:
    """A phase in its place: positions `[start, start + length)` of the epoch."""

    start: int
    length: int
    counts: list[int]
    layout: Layout
    carries: list[Carry]

    @lazy
    def _next(self) -> Indices:
        return np.array([carry.next for carry in self.carries], dtype=np.int64)

    @lazy
    def _pending(self) -> list[int]:
        """The sources with draws that were skipped by an earlier phase."""
        return [source for source, carry in enumerate(self.carries) if len(carry.pending)]

    def draws(self, sources: Indices, ordinals: Indices) -> Indices:
        """Return the draw of each source that comes at its ordinal."""
        draws = ordinals + self._next.take(sources)
        for source in self._pending:
            chosen = np.flatnonzero(sources == source)
            draws[chosen] = self.carries[source].draws(ordinals[chosen])
        return draws

    def find(self, source: int, draws: Indices) -> Indices:
        """Return the positions of those of a source's draws, in ascending order, that come here."""
        ordinals = self.carries[source].ordinals_of(draws)
        ordinals = ordinals[ordinals < self.counts[source]]
        places = self.layout.positions_of(source, ordinals)
        return self.start + places[places < self.length]
