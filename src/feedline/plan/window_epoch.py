"""One epoch of windows: the map from a position to an index, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.lazy import lazy
from feedline.plan.chunk_lookup import Lookup, lookups_of
from feedline.plan.chunking import Slots
from feedline.plan.draws import Draws
from feedline.plan.interleave import edges_of
from feedline.plan.orders import Indices
from feedline.plan.permutation import (
    KeepLast,
    Permutation,
    numbered_permutations,
    permute_numbered,
)
from feedline.plan.seeds import derive_key

if TYPE_CHECKING:
    from feedline.plan.windows import WindowOrder

_LONG_RUN = 256
_LONG_WINDOW = 512
# Windows of so many chunks in all are prepared together, when their turn will come.
_FEW_SLOTS = 2**12
# The arrays of so many positions stay in the cache of one core.
_AT_ONCE = 2**14


class WindowEpoch:
    """One epoch of a window order."""

    def __init__(self, order: WindowOrder, epoch: int) -> None:
        self._chunks = order.chunks
        self._preload = order.preload
        self.num_positions = order.chunks.num_samples
        self.num_windows = -(-order.chunks.num_chunks // order.preload)
        self._key = derive_key(order.seed, "window", epoch)
        self._permutation: Permutation | KeepLast | None = None
        if order.shuffle:
            key = derive_key(order.seed, "chunk order", epoch)
            permute = KeepLast if order.keep_last else Permutation
            self._permutation = permute(order.chunks.num_chunks, key)
        self._slots: Slots = order.chunks.slots(self._permutation)
        self._latest: _Window | None = None
        # Long runs of positions in one window each are worth a permutation of their own.
        is_long = self.num_positions >= _LONG_WINDOW * self.num_windows
        self.has_pieces = is_long and self._permutation is not None
        #: About how many positions to ask for at once.
        self.num_ahead = (
            self.num_positions // self.num_windows * max(1, _FEW_SLOTS // order.preload)
        )
        if order.limit is not None:
            self.num_positions = order.limit
            self.num_windows = self.window_of(order.limit - 1) + 1

    def window_starts(self, windows: Indices) -> Indices:
        """Return where each window begins; window `num_windows` begins at the end."""
        # The last window may be short; its end is computed apart, because it could overflow.
        inside = np.minimum(windows, self.num_windows - 1) * self._preload
        slots = np.where(windows < self.num_windows, inside, self._chunks.num_chunks)
        return np.minimum(self._slots.starts(slots), self.num_positions)

    def window_start(self, window: int) -> int:
        """Return where one window begins."""
        if window >= self.num_windows:
            return self.num_positions
        return min(self._slots.start(window * self._preload), self.num_positions)

    def window_of(self, position: int) -> int:
        """Return the window that holds a position."""
        return self._slots.slot_of(position) // self._preload

    def indices(self, positions: Indices) -> Indices:
        if self._permutation is None or not len(positions):
            return positions
        if self.has_pieces:
            breaks = np.flatnonzero(positions[1:] - positions[:-1] != 1) + 1
            if len(positions) >= _LONG_RUN * len(breaks):
                lasts = np.concatenate([breaks, [len(positions)]]) - 1
                return self.indices_in(
                    positions[np.concatenate([[0], breaks])], positions[lasts] + 1
                )
        windows = self._slots.slots_of(positions) // self._preload
        starts = self.window_starts(windows)
        sizes = self.window_starts(windows + 1) - starts
        places = permute_numbered(sizes, self._key, windows, positions - starts)
        places += starts
        slots = self._slots.slots_of(places)
        rows = places - self._slots.starts(slots)
        return self._chunks.starts(self._permutation.forward(slots)) + rows

    def draws(self, positions: Indices) -> Draws:
        return Draws.once(len(positions))

    def indices_in(self, firsts: Indices, ends: Indices) -> Indices:
        """Return the indices at the positions `[first, end)` of each run; no run is empty."""
        if not self.has_pieces:
            return self.indices(np.concatenate([*map(np.arange, firsts, ends)]))
        result, at = np.empty(int((ends - firsts).sum()), dtype=np.int64), 0
        for piece in self._latest_or_new(firsts, ends):
            length = piece.end - piece.first
            piece.window.write(piece.first, piece.end, result[at : at + length])
            at += length
        return result

    def _latest_or_new(self, firsts: Indices, ends: Indices) -> list[Piece]:
        """Return the pieces of some runs; those of one run mostly come one after another."""
        latest = self._latest
        if latest is not None and len(firsts) == 1:
            first, end = int(firsts[0]), int(ends[0])
            if latest.start <= first and end <= latest.stop:
                return [Piece(latest, first, end)]
        pieces = self.pieces_in(firsts, ends)
        self._latest = pieces[-1].window
        return pieces

    def pieces_in(self, firsts: Indices, ends: Indices) -> list[Piece]:
        """Return the parts of windows that make up the positions `[first, end)` of each run."""
        # Firsts and lasts in one call each time, because few values cost as much as many.
        slots = self._slots.slots_of(np.concatenate([firsts, ends - 1]))
        low, high = (slots // self._preload).reshape(2, -1)
        # Every window between those of the first and the last position of a run; some are empty.
        counts = high - low + 1
        edges = edges_of(counts)
        numbers = np.repeat(low - edges[:-1], counts) + np.arange(edges[-1])
        starts, stops = self.window_starts(np.concatenate([numbers, numbers + 1])).reshape(2, -1)
        firsts = np.maximum(np.repeat(firsts, counts), starts)
        ends = np.minimum(np.repeat(ends, counts), stops)
        holds_any = np.flatnonzero(starts < stops)
        windows = self._windows(*(each[holds_any] for each in (numbers, starts, stops)))
        return [*map(Piece, windows, firsts[holds_any].tolist(), ends[holds_any].tolist())]

    def _windows(self, numbers: Indices, starts: Indices, stops: Indices) -> list[_Window]:
        """Return windows by their numbers, given where they begin and end."""
        assert self._permutation is not None
        first_slots = numbers * self._preload
        counts = np.minimum(self._preload, self._chunks.num_chunks - first_slots)
        cuts = edges_of(counts)
        slots = np.repeat(first_slots - cuts[:-1], counts) + np.arange(cuts[-1])
        edges = self._slots.starts(np.concatenate([slots, slots + 1])).reshape(2, -1)
        edges -= np.repeat(starts, counts)
        shifts = self._chunks.starts(self._permutation.forward(slots)) - edges[0]
        return [
            *map(
                _Window,
                starts.tolist(),
                stops.tolist(),
                numbered_permutations(stops - starts, self._key, numbers),
                lookups_of(edges[0], edges[1], shifts, cuts),
            )
        ]

    def find(self, index: int) -> Indices:
        one = np.array([index], dtype=np.int64)
        if self._permutation is None:
            return one[one < self.num_positions]
        chunk, row = self._chunks.rows_of(one)
        slot = self._permutation.inverse(chunk)
        window = slot // self._preload
        start = self.window_starts(window)
        size = int((self.window_starts(window + 1) - start)[0])
        place = self._slots.starts(slot) + row - start
        if window[0] >= self.num_windows or place[0] >= size:
            return one[:0]
        return start + Permutation(size, self._key, int(window[0])).inverse(place)


class _Window:
    """Positions `[start, stop)`: they are permuted, and then each is in one of the chunks."""

    def __init__(
        self, start: int, stop: int, permute: Callable[[], Permutation], lookup: Lookup
    ) -> None:
        self.start, self.stop = start, stop
        self._permute, self._lookup = permute, lookup
        # Places computed ahead, because a window is mostly read from front to back.
        self._ahead: tuple[int, NDArray[Any]] = (0, np.empty(0, dtype=np.uint16))

    @lazy
    def _permutation(self) -> Permutation:
        return self._permute()

    def write(self, first: int, end: int, out: Indices) -> None:
        """Write the indices at positions `[first, end)` to `out`."""
        low, high = first - self.start, end - self.start
        for part in range(low, high, _AT_ONCE):
            stop = min(part + _AT_ONCE, high)
            self._lookup.write(self._places(part, stop), out[part - low : stop - low])

    def _places(self, first: int, end: int) -> NDArray[Any]:
        """Return the places of positions `[first, end)`, counted from the window's start."""
        begun, places = self._ahead
        if not begun <= first < end <= begun + len(places):
            follows = first and first == begun + len(places)
            most = min(first + _AT_ONCE, self.stop - self.start) if follows else end
            begun, places = first, self._permutation.run(first, max(end, most))
            self._ahead = begun, places
        return places[first - begun : end - begun]


class Piece(NamedTuple):
    """Positions `[first, end)` of a window."""

    window: _Window
    first: int
    end: int
