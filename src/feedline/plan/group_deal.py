"""What is left of an epoch of groups, and how it is dealt: no batch reaches over the edge of one.

A group is a run of positions that belong together, such as rows of one class, and batches divide
it. So batches are dealt whole, in rounds of one window per rank, as `window_deal.py` deals single
positions. Batch b of the epoch is positions `[b * batch_size, (b + 1) * batch_size)`.

What does not make a whole batch is left over: at the end of the epoch, and where an earlier segment
had another batch size. With `even`, the last steps deal that, and the batches that are too few for
all ranks, in pieces of one group each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_choice
from feedline.lazy import lazy
from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.draws import Draws, draws_at
from feedline.plan.orders import Indices
from feedline.plan.skipping import Span, Spans, intervals_without
from feedline.plan.window_deal import WindowDeal, WindowedOrder, WindowRest

_NONE = np.empty(0, dtype=np.int64)


class GroupedOrder(WindowedOrder, Protocol):
    """An epoch's order that is made of groups, and of windows of one size."""

    group_size: int
    window_size: int


class EqualWindows:
    """Positions cut into windows of one size; the last one holds what is left."""

    def __init__(self, num_positions: int, window_size: int) -> None:
        self.num_positions = num_positions
        self.window_size = window_size
        self.num_windows = -(-num_positions // window_size)

    def window_starts(self, windows: Indices) -> Indices:
        """Return where each window begins; window `num_windows` begins at the end."""
        inside = np.minimum(windows, self.num_windows - 1) * self.window_size
        return np.where(windows < self.num_windows, inside, self.num_positions)

    def window_start(self, window: int) -> int:
        """Return where one window begins."""
        return min(window * self.window_size, self.num_positions)

    def window_of(self, position: int) -> int:
        """Return the window that holds a position."""
        return position // self.window_size


class _Batches(EqualWindows):
    """The whole batches of an epoch, as an order of their own."""

    def indices(self, positions: Indices) -> Indices:
        return positions

    def find(self, index: int) -> Indices:
        return np.array([index], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GroupRest:
    """What is left: the intervals `[starts, starts + lengths)`, then all from `untouched` on."""

    order: GroupedOrder
    tail: str
    starts: Indices = field(default_factory=lambda: _NONE)
    lengths: Indices = field(default_factory=lambda: _NONE)
    untouched: int = 0

    def __post_init__(self) -> None:
        check_choice("tail", self.tail, ("drop", "even"))

    @property
    def num_left(self) -> int:
        return int(self.lengths.sum()) + self.order.num_positions - self.untouched

    def deal(self, world_size: int, batch_size: int) -> GroupDeal:
        return GroupDeal(self, world_size, batch_size)


class GroupDeal:
    """What is left, dealt in whole batches; with `even`, then in pieces of one group each."""

    def __init__(self, rest: GroupRest, world_size: int, batch_size: int) -> None:
        order = rest.order
        if order.group_size % batch_size:
            raise InvalidValueError(
                f"batch_size={batch_size} must divide {order.group_size}, the number of samples "
                "that one class is drawn for; use a batch size that does"
            )
        self._rest = rest
        self._world_size = world_size
        self._batch_size = batch_size
        whole, self._left_over = self._whole_batches()
        self._batches = WindowDeal(whole, world_size, 1)
        self._num_whole = self._batches.num_batches
        self.num_batches = self._num_whole
        spare = range(self._num_whole * world_size, whole.num_left)
        self._spare = self._batches.positions_at(np.array(spare, dtype=np.int64))
        num_spare = len(self._spare) * batch_size + sum(end - low for low, end in self._left_over)
        self.num_dropped, self.num_padded = num_spare, 0
        if rest.tail == "even" and num_spare:
            num_pieces = len(self._spare) + len(self._left_over)
            num_steps = -(-num_pieces // world_size)
            self.num_batches += num_steps
            self.num_dropped, self.num_padded = 0, max(0, num_steps * world_size - num_spare)

    def _whole_batches(self) -> tuple[WindowRest, list[Span]]:
        """Return what is left in whole batches, and the intervals that make none."""
        rest, size = self._rest, self._batch_size
        num_batches = rest.order.num_positions // size
        order = _Batches(num_batches, max(1, rest.order.window_size // size))
        starts, ends = rest.starts, rest.starts + rest.lengths
        low, high = -(-starts // size), ends // size
        left_over = [
            span
            for start, end, first, last in zip(
                *(part.tolist() for part in (starts, ends, low * size, high * size)), strict=True
            )
            for span in _ends_of(start, end, first, last)
        ]
        untouched = -(-rest.untouched // size)
        end = rest.order.num_positions
        left_over += _ends_of(rest.untouched, end, untouched * size, num_batches * size)
        is_whole = low < high
        whole = WindowRest(
            order=order,
            tail="drop",
            starts=low[is_whole],
            lengths=(high - low)[is_whole],
            untouched=min(untouched, num_batches),
        )
        return whole, left_over

    @lazy
    def _pieces(self) -> list[Span]:
        """The intervals of the last steps: entry t is for rank `t % world_size`."""
        size = self._batch_size
        spans = sorted(
            [*((b * size, (b + 1) * size) for b in self._spare.tolist()), *self._left_over]
        )
        num_slots = (self.num_batches - self._num_whole) * self._world_size
        num_more = min(num_slots, sum(end - low for low, end in spans)) - len(spans)
        # The piece whose parts are largest is cut once more.
        parts = [1] * len(spans)
        by_size: list[tuple[float, int]] = [
            (low - end, number) for number, (low, end) in enumerate(spans)
        ]
        heapify(by_size)
        for _ in range(num_more):
            number = by_size[0][1]
            parts[number] += 1
            low, end = spans[number]
            heapreplace(by_size, ((low - end) / parts[number], number))
        return [
            (low + (end - low) * part // count, low + (end - low) * (part + 1) // count)
            for (low, end), count in zip(spans, parts, strict=True)
            for part in range(count)
        ]

    def _last_positions(self, rank: int, step: int) -> tuple[Indices, bool]:
        """Return the positions of one of the last steps, and whether they are real."""
        slot = step * self._world_size + rank
        if slot < len(self._pieces):
            return np.arange(*self._pieces[slot], dtype=np.int64), True
        padding = (slot - len(self._pieces)) % self._rest.order.num_positions
        return np.array([padding], dtype=np.int64), False

    def block(self, rank: int, start: int, stop: int) -> Block:
        positions, bounds, marks = self._positions(rank, start, stop)
        return Block(
            first=start,
            indices=self._rest.order.indices(positions),
            bounds=bounds,
            is_real=None if marks.all() else marks,
        )

    def draws(self, rank: int, numbers: range) -> Draws:
        positions, bounds, _ = self._positions(rank, numbers[0], numbers[-1] + 1)
        return draws_at(self._rest.order, positions[every_nth(bounds, numbers.step)[1]])

    def _positions(
        self, rank: int, start: int, stop: int
    ) -> tuple[Indices, Indices, NDArray[np.bool_]]:
        """Return the positions of batches `[start, stop)`, their bounds, and which are real."""
        split = min(max(start, self._num_whole), stop)
        size, whole_end = self._batch_size, min(stop, self._num_whole)
        batches = self._batches.positions_of(rank, start, max(start, whole_end))
        parts = [(batches[:, None] * size + np.arange(size)).ravel()]
        lengths = [size] * len(batches)
        is_real = [np.ones(len(parts[0]), dtype=np.bool_)]
        for number in range(split, stop):
            positions, real = self._last_positions(rank, number - self._num_whole)
            parts.append(positions)
            lengths.append(len(positions))
            is_real.append(np.full(len(positions), real))
        bounds = np.cumsum([0, *lengths], dtype=np.int64)
        return np.concatenate(parts), bounds, np.concatenate(is_real)

    def num_real(self, start: int, stop: int) -> int:
        whole = min(stop, self._num_whole) - min(start, self._num_whole)
        first, end = (
            max(0, number - self._num_whole) * self._world_size for number in (start, stop)
        )
        last = sum(end - low for low, end in self._pieces[first:end]) if end > first else 0
        return whole * self._world_size * self._batch_size + last

    def after(self, num_batches: int) -> GroupRest:
        rest, size = self._rest, self._batch_size
        if num_batches > self._num_whole:
            first = (num_batches - self._num_whole) * self._world_size
            return self._rest_of(_NONE, _NONE, self._pieces[first:], rest.order.num_positions)
        whole = self._batches.after(num_batches)
        # What is left over at the end of the epoch comes after all that is untouched.
        untouched = max(whole.untouched * size, rest.untouched)
        spans = [span for span in self._left_over if span[0] < untouched]
        return self._rest_of(whole.starts * size, whole.lengths * size, spans, untouched)

    def without(self, num_batches: int, skips: Spans) -> GroupRest:
        """Return what is left after `num_batches`, without some batches that follow."""
        rest = self.after(num_batches)
        times = ((self.after(start), self.after(stop)) for start, stop in skips)
        return GroupRest(rest.order, rest.tail, *intervals_without(rest, times))

    def _rest_of(
        self, starts: Indices, lengths: Indices, spans: list[Span], untouched: int
    ) -> GroupRest:
        more = np.array(spans, dtype=np.int64).reshape(-1, 2)
        return GroupRest(
            order=self._rest.order,
            tail=self._rest.tail,
            starts=np.concatenate([starts, more[:, 0]]),
            lengths=np.concatenate([lengths, more[:, 1] - more[:, 0]]),
            untouched=untouched,
        )

    def find(self, index: int) -> list[Place]:
        positions = self._rest.order.find(index)
        whole = positions[
            positions < self._rest.order.num_positions // self._batch_size * self._batch_size
        ]
        found = []
        for position in whole.tolist():
            batch, slot = divmod(position, self._batch_size)
            ranks, numbers = self._batches.entries_of(np.array([batch], dtype=np.int64))
            found += [
                Place(number, rank, slot, True)
                for rank, number in zip(ranks.tolist(), numbers.tolist(), strict=True)
                if number < self._num_whole
            ]
        for step in range(self.num_batches - self._num_whole):
            for rank in range(self._world_size):
                mine, is_real = self._last_positions(rank, step)
                slots = np.flatnonzero(np.isin(mine, positions)).tolist()
                found += [Place(self._num_whole + step, rank, slot, is_real) for slot in slots]
        return found


def _ends_of(start: int, end: int, first: int, last: int) -> list[Span]:
    """Return what is left of `[start, end)` before `first` and from `last` on."""
    spans = [(start, end)] if first > last else [(start, first), (last, end)]
    return [span for span in spans if span[0] < span[1]]
