"""Windows: shuffling that keeps reads together.

Chunks are permuted, every `preload` of them form a window, and samples are permuted inside it. So
any run of positions touches few chunks. Ranks get runs of positions rather than every n-th one
(`window_deal.py`), so each rank reads its own windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError
from feedline.plan.chunking import Chunking, Slots
from feedline.plan.deals import Remaining
from feedline.plan.draws import Draws
from feedline.plan.frozen import described, store, store_integers
from feedline.plan.group_deal import GroupRest
from feedline.plan.orders import Indices, Order, SeededOrder
from feedline.plan.permutation import MAX_SIZE, KeepLast, Permutation, permute_numbered
from feedline.plan.samples import OrderPlan
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.plan.segment import Segment
from feedline.plan.shares import check_tail
from feedline.plan.versions import of_kind
from feedline.plan.window_deal import WindowRest
from feedline.words import one_line

# Below this many chunks, comparing with each is faster than a search.
_FEW_CHUNKS = 4
_LONG_RUN = 256
_LONG_WINDOW = 512


@one_line
@dataclass(frozen=True, kw_only=True)
class WindowOrder(SeededOrder):
    """An order in which a run of positions touches few chunks.

    With `keep_last`, the last chunk, which may be short, also comes last in every epoch, so that
    all windows before it are full. With `limit`, an epoch ends after that many positions.

    Args:
        chunks: How samples are cut into chunks.
        preload: How many chunks make a window, which is shuffled as one.
        shuffle: Whether chunks and samples come in a new order in every epoch.
        seed: Any integer or string.
        keep_last: Whether the last chunk stays last.
        limit: The number of positions of an epoch, if not all.

    Examples:
        >>> from feedline.plan import EqualChunks
        >>> order = WindowOrder(chunks=EqualChunks(num_samples=100, chunk_size=10), preload=2)
        >>> len(set((order.indices(0, range(20)) // 10).tolist()))
        2
    """

    chunks: Chunking
    preload: int = 1
    shuffle: bool = True
    seed: Seed = 0
    keep_last: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.chunks, Chunking):
            raise InvalidValueError(
                f"chunks={self.chunks!r:.80} must be EqualChunks or UnequalChunks"
            )
        store_integers(self, "preload", low=1, high=MAX_SIZE)
        store(self, seed=check_seed(self.seed))
        if self.limit is not None:
            store_integers(self, "limit", low=1, high=self.chunks.num_samples)

    @property
    def num_indices(self) -> int:
        return self.chunks.num_samples

    def at(self, epoch: int) -> WindowEpoch:
        return WindowEpoch(self, epoch)

    def describe(self) -> dict[str, Any]:
        unset = [name for name in ("keep_last", "limit") if not getattr(self, name)]
        return described(self, *unset, **of_kind("windows", has_changed=self.shuffle))


@one_line
@dataclass(frozen=True, kw_only=True)
class WindowPlan(OrderPlan):
    """Chunk-aware batches: in a round every rank reads its own window.

    Args:
        chunks: The chunks of the data, `EqualChunks` or `UnequalChunks`.
        preload: The number of chunks in a window; more shuffle better and need more memory.
        shuffle: Without it, chunks and samples come in order.
        tail: The tail policy; see `Share`.
        seed: Any integer or string.

    Examples:
        >>> from feedline.plan import EqualChunks
        >>> plan = WindowPlan(chunks=EqualChunks(num_samples=1000, chunk_size=10), preload=4)
        >>> segment = plan.segment(world_size=2, batch_size=8)
        >>> len(plan.reads(segment, rank=0, start=0, stop=5))
        4
    """

    chunks: Chunking = field()
    preload: int = 1
    shuffle: bool = True
    tail: str = "drop"
    seed: Seed = 0
    order: WindowOrder = field(init=False, repr=False, compare=False)
    kind = "window plan"

    def __post_init__(self) -> None:
        order = WindowOrder(
            chunks=self.chunks, preload=self.preload, shuffle=self.shuffle, seed=self.seed
        )
        store(self, preload=order.preload, seed=order.seed, order=order)
        check_tail(self.tail)

    def begin(self, epoch: int) -> Remaining:
        return WindowRest(self.order.at(epoch), self.tail)

    def reads(self, segment: Segment, rank: int, start: int, stop: int) -> Indices:
        """Return the chunks that `rank` reads for batches `[start, stop)`, by first use."""
        chunks, _ = self.chunks.rows_of(segment.block(rank, start, stop).indices)
        distinct, first_use = np.unique(chunks, return_index=True)
        return distinct[np.argsort(first_use)]


@one_line
@dataclass(frozen=True, kw_only=True)
class RoundsPlan(OrderPlan):
    """Any order that is made of windows, dealt as `WindowPlan` deals its own: in rounds.

    Args:
        order: An order that is made of windows.
        tail: What happens to the last positions, which do not fill a batch; see `Share`.

    Examples:
        >>> from feedline.plan import EqualChunks
        >>> chunks = EqualChunks(num_samples=100, chunk_size=10)
        >>> plan = RoundsPlan(order=WindowOrder(chunks=chunks, keep_last=True), tail="even")
        >>> plan.segment(world_size=3, batch_size=5).num_batches
        7
    """

    order: Order
    tail: str = "drop"
    kind = "rounds"

    def __post_init__(self) -> None:
        if not isinstance(self.order, Order) or not hasattr(self.order.at(0), "window_starts"):
            raise InvalidValueError(
                f"order={self.order!r:.80} must be made of windows, such as WindowOrder"
            )
        check_tail(self.tail)
        chunks, preload = (getattr(self.order, name, None) for name in ("chunks", "preload"))
        store(self, chunks=chunks, preload=preload or 1)

    def begin(self, epoch: int) -> Remaining:
        order: Any = self.order.at(epoch)
        # Batches do not reach over the edge of a group, where the order is made of groups.
        rest = GroupRest if hasattr(order, "group_size") else WindowRest
        return rest(order, self.tail)


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
        # Long runs of positions in one window each are worth a permutation of their own.
        self._has_long_windows = self.num_positions >= _LONG_WINDOW * self.num_windows
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
        if self._has_long_windows:
            breaks = np.flatnonzero(positions[1:] - positions[:-1] != 1) + 1
            if len(positions) >= _LONG_RUN * len(breaks):
                return self._in_runs(positions, breaks)
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

    def _in_runs(self, positions: Indices, breaks: Indices) -> Indices:
        """Return the indices at positions that follow each other between `breaks`."""
        parts: list[Indices] = []
        edges = [0, *breaks.tolist(), len(positions)]
        for low, high in pairwise(edges):
            first, end = int(positions[low]), int(positions[high - 1]) + 1
            window = self.window_of(first)
            while first < end:
                start, stop = self.window_start(window), self.window_start(window + 1)
                parts.append(self._in_window(window, start, stop, first, min(end, stop)))
                first, window = max(first, min(end, stop)), window + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _in_window(self, window: int, start: int, stop: int, first: int, end: int) -> Indices:
        """Return the indices at positions `[first, end)` of the window that is `[start, stop)`."""
        assert self._permutation is not None
        places = np.arange(first - start, end - start, dtype=np.int64)
        if not len(places):
            return places
        places = Permutation(stop - start, self._key, window).forward(places)
        last = min((window + 1) * self._preload, self._chunks.num_chunks)
        slots = np.arange(window * self._preload, last, dtype=np.int64)
        edges = self._slots.starts(slots) - start
        shifts = self._chunks.starts(self._permutation.forward(slots)) - edges
        if len(slots) > _FEW_CHUNKS:
            places += shifts[np.searchsorted(edges, places, side="right") - 1]
            return places
        indices: Indices = places + shifts[0]
        for edge, step in zip(edges[1:].tolist(), np.diff(shifts).tolist(), strict=True):
            indices += (places >= edge) * np.int64(step)
        return indices

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
