"""What is left of an epoch of windows, and how it is dealt: in rounds of one window per rank.

What is left is a list of intervals of the epoch's positions: the rests of runs that a resize
interrupted (`head`), then everything from `untouched` on. Laid end to end they are the *places* of
the next segment. Each rest is a piece, and so is each untouched window.

A round takes `world_size` pieces. Its ends are floored to multiples of `world_size` and it is cut
into `world_size` equal runs, one per rank. So all ranks have streams of the same length, and each
reads nearly its own piece; with unequal pieces a run reaches a little into its neighbour's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from feedline.lazy import lazy
from feedline.plan.batches import Block
from feedline.plan.interleave import edges_of
from feedline.plan.orders import EpochOrder, Indices
from feedline.plan.shares import Share, ShareDeal
from feedline.plan.skipping import Spans, intervals_without

_NONE = np.empty(0, dtype=np.int64)
# Rounds with fewer entries of a rank are cheaper to look up than to go through.
_SHORT_ROUND = 256
# Entries whose windows are prepared together.
_MOST_AHEAD = 2**18


class WindowedOrder(EpochOrder, Protocol):
    """An epoch's order that is made of windows."""

    num_windows: int

    def window_starts(self, windows: Indices) -> Indices:
        """Return where each window begins; window `num_windows` begins at the end."""

    def window_start(self, window: int) -> int:
        """Return where one window begins."""

    def window_of(self, position: int) -> int:
        """Return the window that holds a position."""


@dataclass(frozen=True, eq=False)
class WindowRest:
    """What is left: the intervals `[starts, starts + lengths)`, then all from `untouched` on."""

    order: WindowedOrder
    tail: str
    starts: Indices = field(default_factory=lambda: _NONE)
    lengths: Indices = field(default_factory=lambda: _NONE)
    untouched: int = 0

    @lazy
    def edges(self) -> Indices:
        """Where each interval begins as a place, and where the last one ends."""
        return edges_of(self.lengths)

    @lazy
    def shifts(self) -> Indices:
        """What makes a place in each interval a position."""
        return self.starts - self.edges[:-1]

    @property
    def num_left(self) -> int:
        return int(self.edges[-1]) + self.order.num_positions - self.untouched

    def deal(self, world_size: int, batch_size: int) -> WindowDeal:
        return WindowDeal(self, world_size, batch_size)


class _Round(NamedTuple):
    """A round: places `[low, high)`, dealt in equal runs."""

    number: int
    low: int
    high: int
    world_size: int

    @property
    def first(self) -> int:
        """The entry of every rank that it begins with."""
        return self.low // self.world_size

    @property
    def end(self) -> int:
        """The entry of every rank that the next round begins with."""
        return self.high // self.world_size

    def shift_of(self, rank: int) -> int:
        """Return what makes an entry of `rank` a place."""
        return self.low + rank * (self.end - self.first) - self.first


class _Ahead(NamedTuple):
    """The pieces that a rank has next: piece i is entries `[edges[i], edges[i + 1])`."""

    rank: int
    next: int
    edges: list[int]
    pieces: list[Any]


class WindowDeal(ShareDeal):
    """What is left, dealt in rounds of one piece per rank."""

    def __init__(self, rest: WindowRest, world_size: int, batch_size: int) -> None:
        super().__init__(rest.order, Share(rest.num_left, world_size, batch_size, rest.tail))
        self._rest = rest
        self._head_edges = rest.edges
        self._head_length = int(self._head_edges[-1])
        self._first_window = self._num_windows = 0
        if rest.untouched < rest.order.num_positions:
            self._first_window = rest.order.window_of(rest.untouched)
            self._num_windows = rest.order.num_windows - self._first_window
        num_pieces = len(rest.lengths) + self._num_windows
        self._num_rounds = -(-num_pieces // world_size)
        # Blocks mostly follow each other, so the next one begins in the round of the last.
        self._latest = _Round(0, 0, 0, world_size)
        self._ahead = _Ahead(-1, 0, [0], [])

    def block(self, rank: int, start: int, stop: int) -> Block:
        first, end = self.share.span(rank, start, stop)
        in_runs = getattr(self._order, "indices_in", None)
        if in_runs is None or self._head_length or not first < end <= self.share.num_whole:
            return super().block(rank, start, stop)
        if getattr(self._order, "has_pieces", False):
            indices = self._indices_in_pieces(rank, first, end)
        else:
            indices = in_runs(*self._runs_of(rank, first, end))
        return Block(first=start, indices=indices, bounds=self.share.bounds(rank, start, stop))

    def _indices_in_pieces(self, rank: int, first: int, end: int) -> Indices:
        """Return the indices of entries `[first, end)`, if there is no head."""
        ahead = self._ahead
        if ahead.rank != rank or not ahead.edges[0] <= first < end <= ahead.edges[-1]:
            ahead = self._pieces_from(rank, first, end)
        edges, pieces = ahead.edges, ahead.pieces
        indices = np.empty(end - first, dtype=np.int64)
        number = opening = bisect_right(edges, first) - 1
        at = first
        while at < end:
            piece, stop = pieces[number], min(end, edges[number + 1])
            shift = piece.first - edges[number]
            piece.window.write(at + shift, stop + shift, indices[at - first : stop - first])
            at, number = stop, number + 1
        # Those that are behind go with their tables.
        self._ahead = _Ahead(rank, end, edges[opening:], pieces[opening:])
        return indices

    def _pieces_from(self, rank: int, first: int, end: int) -> _Ahead:
        """Return the pieces of entries from `first` on, to `end` or beyond it.

        Preparing many takes hardly longer than preparing a few, so when blocks follow each other,
        those of later blocks are prepared too. Nothing is shuffled before it is asked for.
        """
        order: Any = self._order
        ahead = self._ahead
        if (rank, first) == (ahead.rank, ahead.next):
            end = max(end, min(first + min(order.num_ahead, _MOST_AHEAD), self.share.num_whole))
        pieces = order.pieces_in(*self._runs_of(rank, first, end))
        for begun in ahead.pieces[-1:]:
            if begun.window.start == pieces[0].window.start:
                pieces[0] = pieces[0]._replace(window=begun.window)
        lengths = np.array([piece.end - piece.first for piece in pieces])
        return _Ahead(rank, first, (edges_of(lengths) + first).tolist(), pieces)

    def _runs_of(self, rank: int, first: int, end: int) -> tuple[Indices, Indices]:
        """Return the runs of positions of entries `[first, end)`, if there is no head."""
        begun = self._latest
        if not begun.first <= first < end <= begun.end:
            low, high = self._round_of(first), self._round_of(end - 1)
            edges = self._round_edges(np.arange(low, high + 2))
            begun = self._latest = _Round(high, int(edges[-2]), int(edges[-1]), begun.world_size)
            if low < high:
                entries = edges // self.share.world_size
                shifts = edges[:-1] + rank * np.diff(entries) - entries[:-1] + self._rest.untouched
                firsts, ends = np.maximum(entries[:-1], first), np.minimum(entries[1:], end)
                holds_any = firsts < ends
                return (firsts + shifts)[holds_any], (ends + shifts)[holds_any]
        shift = begun.shift_of(rank) + self._rest.untouched
        return np.array([first + shift]), np.array([end + shift])

    def positions_of(self, rank: int, first: int, end: int) -> Indices:
        return self.positions_at(self._places_of(rank, first, end))

    def after(self, num_batches: int) -> WindowRest:
        share = self.share
        entry = num_batches * share.batch_size
        if entry > share.num_whole:
            return self._rest_from(share.num_positions)
        number = self._num_rounds if entry == share.num_whole else self._round_of(entry)
        low, high = self._round_edge(number), self._round_edge(number + 1)
        used = entry - low // share.world_size
        run = (high - low) // share.world_size
        if used == 0 or run == 0:
            return self._rest_from(low)
        # The rest of each run, and what is left of the head behind the round.
        num_head = int(high < self._head_length)
        starts = np.arange(share.world_size + num_head, dtype=np.int64)
        starts *= run
        starts += low + used
        ends = starts + (run - used)
        if num_head:
            starts[-1], ends[-1] = high, self._head_length
        return self._rest_of(starts, ends, max(high, self._head_length))

    def without(self, num_batches: int, skips: Spans) -> WindowRest:
        """Return what is left after `num_batches`, without some batches that follow."""
        rest = self.after(num_batches)
        times = ((self.after(start), self.after(stop)) for start, stop in skips)
        return WindowRest(rest.order, rest.tail, *intervals_without(rest, times))

    def entries_of(self, positions: Indices) -> tuple[Indices, Indices]:
        places = map(self._place_of, positions.tolist())
        found = [self._entry_of(place) for place in places if place is not None]
        ranks, entries = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return ranks, entries

    def _places_of(self, rank: int, first: int, end: int) -> Indices:
        """Return the places of real entries `[first, end)` of `rank`."""
        share = self.share
        in_rounds = min(end, share.num_whole)
        if first >= in_rounds:
            return np.arange(first, end, dtype=np.int64) * share.world_size + rank
        low, high = self._round_of(first), self._round_of(in_rounds - 1)
        edges = self._round_edges(np.arange(low, high + 2))
        first_entries = edges // share.world_size
        # Where the run of this rank begins in each round, beside the entry that it begins with.
        shifts = edges[:-1] + rank * np.diff(first_entries) - first_entries[:-1]
        places = np.arange(first, end, dtype=np.int64)
        if len(shifts) * _SHORT_ROUND > in_rounds - first:
            inside = places[: in_rounds - first]
            inside += shifts[np.searchsorted(first_entries, inside, side="right") - 1]
        else:
            cuts = np.clip(first_entries - first, 0, in_rounds - first).tolist()
            for shift, (start, stop) in zip(shifts.tolist(), pairwise(cuts), strict=True):
                places[start:stop] += shift
        left_over = places[in_rounds - first :]
        left_over *= share.world_size
        left_over += rank
        return places

    def _entry_of(self, place: int) -> tuple[int, int]:
        """Return the rank and the entry that get a place."""
        world_size = self.share.world_size
        if place >= self.share.num_whole * world_size:
            return place % world_size, place // world_size
        number = self._round_of(place // world_size)
        low, high = self._round_edge(number), self._round_edge(number + 1)
        rank, offset = divmod(place - low, (high - low) // world_size)
        return rank, low // world_size + offset

    def _round_of(self, entry: int) -> int:
        """Return the round in which every rank has its `entry`."""
        # Read once: another thread may replace it meanwhile.
        latest = self._latest
        if latest.first <= entry < latest.end:
            return latest.number
        # A round begins at the last multiple of world_size up to the start of its first piece.
        place = (entry + 1) * self.share.world_size - 1
        return min(self._piece_of(place) // self.share.world_size, self._num_rounds - 1)

    def _piece_of(self, place: int) -> int:
        """Return the last piece that begins at or before a place."""
        rest, num_head = self._rest, len(self._rest.lengths)
        if place < self._head_length or not self._num_windows:
            return int(np.searchsorted(self._head_edges[:-1], place, side="right")) - 1
        position = place - self._head_length + rest.untouched
        if position >= rest.order.num_positions:
            return num_head + self._num_windows - 1
        return num_head + rest.order.window_of(position) - self._first_window

    def _round_edge(self, number: int) -> int:
        """Return where one round begins."""
        rest, world_size = self._rest, self.share.world_size
        piece, num_head = min(number, self._num_rounds) * world_size, len(self._rest.lengths)
        if piece < num_head:
            start = int(self._head_edges[piece])
        else:
            start = self._head_length
            if self._num_windows:
                window = min(piece - num_head, self._num_windows) + self._first_window
                start += max(rest.order.window_start(window) - rest.untouched, 0)
        return start - start % world_size

    def _round_edges(self, numbers: Indices) -> Indices:
        """Return where each round begins, a multiple of `world_size`."""
        world_size = self.share.world_size
        pieces = np.minimum(numbers, self._num_rounds) * world_size
        starts = self._piece_starts(pieces)
        return starts - starts % world_size

    def _piece_starts(self, pieces: Indices) -> Indices:
        """Return the place at which each piece begins."""
        rest, num_head = self._rest, len(self._rest.lengths)
        in_head = self._head_edges[np.minimum(pieces, num_head)]
        if not self._num_windows:
            return in_head
        windows = np.clip(pieces - num_head, 0, self._num_windows) + self._first_window
        # The first untouched piece may begin inside its window.
        begun = np.maximum(rest.order.window_starts(windows), rest.untouched)
        return np.where(pieces < num_head, in_head, self._head_length + begun - rest.untouched)

    def positions_at(self, places: Indices) -> Indices:
        """Return the position of the epoch at each place; places must ascend."""
        rest = self._rest
        if not rest.untouched:
            return places
        positions = places + (rest.untouched - self._head_length)
        num_in_head = int(places.searchsorted(self._head_length)) if self._head_length else 0
        if num_in_head:
            in_head = places[:num_in_head]
            piece = self._head_edges.searchsorted(in_head, "right")
            piece -= 1
            np.add(in_head, rest.shifts.take(piece), out=positions[:num_in_head])
        return positions

    def _place_of(self, position: int) -> int | None:
        """Return the place of a position, or None if it was consumed before."""
        rest = self._rest
        if position >= rest.untouched:
            return self._head_length + position - rest.untouched
        offsets = position - rest.starts
        holding = np.flatnonzero((offsets >= 0) & (offsets < rest.lengths))
        if not len(holding):
            return None
        return int(self._head_edges[holding[0]] + offsets[holding[0]])

    def _rest_from(self, place: int) -> WindowRest:
        """Return what is left when only places from this one on are."""
        if place >= self._head_length:
            return self._rest_of(_NONE, _NONE, place)
        return self._rest_of(np.array([place]), np.array([self._head_length]), self._head_length)

    def _rest_of(self, starts: Indices, ends: Indices, untouched: int) -> WindowRest:
        """Return what is left when only places `[starts, ends)` and those from `untouched` are."""
        rest = self._rest
        # Cut the intervals where the head's pieces meet, so that each is one run of positions.
        edges = self._head_edges
        if len(edges) > 1 and len(starts):
            which = starts.searchsorted(edges, "right")
            which -= 1
            # Before the first interval, `which` is the last one, which starts later.
            cuts = edges[(edges > starts.take(which)) & (edges < ends.take(which))]
            if len(cuts):
                starts, ends = (np.concatenate([side, cuts]) for side in (starts, ends))
                starts.sort()
                ends.sort()
        return WindowRest(
            order=rest.order,
            tail=rest.tail,
            starts=self.positions_at(starts),
            lengths=ends - starts,
            untouched=rest.untouched + untouched - self._head_length,
        )
