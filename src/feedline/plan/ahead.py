"""Blocks computed before they are asked for, while they follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from feedline.plan.batches import Block

# The entries that are computed ahead, a quarter of a mebibyte.
_MOST_ENTRIES = 2**15


class _Latest(NamedTuple):
    """The rank that asked last, the batch it will ask for next, and what was computed for it."""

    rank: int
    next: int
    num_batches: int
    num_entries: int
    #: What was computed, if that is more than what was asked for.
    block: Block | None


class BlocksAhead:
    """Blocks of a rank that are cheaper together, computed ahead while they follow each other.

    At first what is asked for is computed, then each time twice as many batches as before; so
    little is in vain if nothing more is asked for.

    Args:
        compute: Returns batches `[start, stop)` of a rank.
        num_batches: The number of batches.

    Examples:
        >>> from feedline.plan import Mixture, SamplePlan
        >>> plan = SamplePlan(order=Mixture(sizes=[50, 50], weights=[1, 2]))
        >>> segment = plan.segment(world_size=1, batch_size=2)
        >>> ahead = BlocksAhead(segment.deal.block, segment.num_batches)
        >>> blocks = [ahead.block(0, start, start + 2) for start in (0, 2, 4)]
        >>> [block.indices.tolist() == segment.block(0, *edges).indices.tolist()
        ...  for block, edges in zip(blocks, ((0, 2), (2, 4), (4, 6)))]
        [True, True, True]
    """

    def __init__(self, compute: Callable[[int, int, int], Block], num_batches: int) -> None:
        self._compute, self._num_batches = compute, num_batches
        # Replaced as a whole, because threads may share a deal.
        self._latest = _Latest(-1, 0, 0, 0, None)

    def block(self, rank: int, start: int, stop: int) -> Block:
        """Return batches `[start, stop)` of a rank."""
        latest = self._latest
        known = latest.block
        if (
            known is None
            or latest.rank != rank
            or not known.first <= start <= stop <= known.first + len(known)
        ):
            end = stop
            if (latest.rank, latest.next) == (rank, start):
                times = 2 if 2 * latest.num_entries <= _MOST_ENTRIES else 1
                more = times * latest.num_batches if latest.num_entries <= _MOST_ENTRIES else 0
                end = min(max(stop, start + more), self._num_batches)
            known = self._compute(rank, start, end)
            is_more = end > stop
            size = len(known.indices)
            self._latest = _Latest(rank, stop, end - start, size, known if is_more else None)
            if not is_more:
                return known
        else:
            self._latest = latest._replace(next=stop)
        return _copied(known.part(start, stop))


def _copied(block: Block) -> Block:
    """Return a block of its own, because who asks for it may write to it."""
    is_real = block.is_real
    return Block(
        first=block.first,
        indices=block.indices.copy(),
        bounds=block.bounds,
        is_real=None if is_real is None or is_real.all() else is_real.copy(),
        buckets=None if block.buckets is None else block.buckets.copy(),
    )
