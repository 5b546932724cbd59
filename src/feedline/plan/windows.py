"""Windows: shuffling that keeps reads together.

Chunks are permuted, every `preload` of them form a window, and samples are permuted inside it. So
any run of positions touches few chunks. Ranks get runs of positions rather than every n-th one
(`window_deal.py`), so each rank reads its own windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError, check_flag
from feedline.plan.chunking import Chunking
from feedline.plan.deals import Remaining
from feedline.plan.frozen import described, store, store_integers
from feedline.plan.group_deal import GroupRest
from feedline.plan.orders import Indices, Order, SeededOrder
from feedline.plan.permutation import MAX_SIZE
from feedline.plan.samples import OrderPlan
from feedline.plan.seeds import Seed, check_seed
from feedline.plan.segment import Segment
from feedline.plan.shares import check_tail
from feedline.plan.versions import of_kind
from feedline.plan.window_deal import WindowRest
from feedline.plan.window_epoch import WindowEpoch
from feedline.words import one_line


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
        store(self, shuffle=check_flag("shuffle", self.shuffle), seed=check_seed(self.seed))
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
        store(self, preload=order.preload, shuffle=order.shuffle, seed=order.seed, order=order)
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
