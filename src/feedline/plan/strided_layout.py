"""Evenly spaced positions of an interleaved layout, as one rank of many has them.

A block of the layout holds thousands of a rank's positions on a few ranks, and a hundred on a
thousand ranks. A few blocks are looked up one after another. Many go together, a column for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.plan.feistel_columns import FeistelColumns
from feedline.plan.interleave import (
    FEW_IN_BLOCK,
    FEW_LABELS,
    Arrangement,
    Integers,
    Interleave,
    Layout,
    num_reached,
)
from feedline.plan.permutation import TABLE_LIMIT


class StridedLayout:
    """Looks up positions of a layout of few labels, which is not in order within its blocks.

    Examples:
        >>> layout = Interleave([3000, 1000], key=5, block_length=1024, in_order=False)
        >>> labels, ordinals = StridedLayout(layout).locate(7, 100, 30)
        >>> expected = layout.locate(np.arange(7, 3007, 100))
        >>> (labels.tolist(), ordinals.tolist()) == tuple(part.tolist() for part in expected)
        True
    """

    def __init__(self, layout: Interleave) -> None:
        self._layout = layout
        # Smaller blocks are shuffled by tables, and larger ones need wider lanes.
        size, slack = layout.total // layout.num_blocks, len(layout.counts)
        self._has_columns = TABLE_LIMIT + slack < size < 2**32 - slack
        # Ordinals are sums of slots and shifts, which may be negative: they wrap around.
        self._kind = np.uint32 if layout.total <= 2**32 else np.int64

    @classmethod
    def of(cls, layout: Layout) -> StridedLayout | None:
        """Return it for a layout that can be looked up like this."""
        if not isinstance(layout, Interleave) or layout.in_order:
            return None
        return cls(layout) if len(layout.counts) <= FEW_LABELS else None

    def locate(
        self, first: int, step: int, count: int, before: Integers | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the label and the ordinal of positions `first + i * step`, `count` of them.

        Ordinals are counted from `before` on, a number for each label.
        """
        layout = self._layout
        begun = np.zeros(len(layout.counts), dtype=np.int64) if before is None else before
        last = first + (count - 1) * step
        num_blocks = (last - first) * layout.num_blocks // layout.total
        if self._has_columns and 1 < num_blocks <= count <= FEW_IN_BLOCK * num_blocks:
            return self._locate_columns(first, step, count, begun)
        labels = np.empty(count, dtype=np.uint8)
        ordinals: NDArray[Any] = np.empty(count, dtype=self._kind)
        for block, part, slots in self.slots(first, step, count):
            which: NDArray[Any] = num_reached(slots, block.edges[1:-1].tolist())
            shifts = block.ordinals - block.edges[:-1] - begun.take(block.labels)
            # One cast of the places is cheaper than one in each of the next lines.
            places = which.astype(np.int64)
            own = shifts.astype(self._kind, copy=False).take(places)
            np.add(own, slots.astype(self._kind, copy=False), out=ordinals[part])
            if len(block.labels) < len(layout.counts):
                which = block.labels.astype(np.uint8).take(places)
            labels[part] = which
        return labels, ordinals

    def ordinals_around(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Return bounds of each label's ordinals at positions `[first, last]`: those of blocks."""
        low, high = self._blocks_around(first, last)
        lows, highs = self._layout.ordinals_of(np.array([[low], [high]])).tolist()
        return lows, highs

    def _blocks_around(self, first: int, last: int) -> tuple[int, int]:
        """Return bounds of the numbers of the blocks of positions `[first, last]`."""
        layout, slack = self._layout, len(self._layout.counts)
        # Block b starts within `slack` of b * total / num_blocks.
        low = max(0, (first - slack) * layout.num_blocks // layout.total)
        high = (last + slack) * layout.num_blocks // layout.total + 1
        return low, min(high, layout.num_blocks)

    def is_in(self, number: int, position: int) -> bool:
        """Whether the block of this number holds a position."""
        return self._layout.block_at(position).number == number

    def slots(
        self, first: int, step: int, count: int
    ) -> Iterator[tuple[Arrangement, slice, NDArray[Any]]]:
        """Yield each block of these positions, which of them are in it, and their slots there."""
        layout, done = self._layout, 0
        while done < count:
            start = first + done * step
            block = layout.block_at(start)
            part = slice(done, min(count, done - (start - block.end) // step))
            done = part.stop
            places = range(start - block.start, first + (done - 1) * step + 1 - block.start, step)
            permutation = layout.permutation(block)
            # Tables are made at once for what will come of a block, not only for what is asked.
            permutation.tables_for((block.end - start) // step)
            yield block, part, permutation.stride(places)

    def _locate_columns(
        self, first: int, step: int, count: int, begun: Integers
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        layout = self._layout
        last = first + (count - 1) * step
        low, high = self._blocks_around(first, last)
        before: Integers = layout.ordinals_of(np.arange(low, high + 1)[:, None])
        starts = before.sum(axis=1)
        here = starts.searchsorted([first, last], side="right")
        low, high = low + int(here[0]) - 1, low + int(here[1])
        before, starts = (each[here[0] - 1 : here[1] + 1] for each in (before, starts))
        sizes = np.diff(before, axis=0)
        # Which of the positions is the first in each block.
        reached = np.clip((starts - first + step - 1) // step, 0, count)
        counts = np.diff(reached)
        offsets = first + reached[:-1] * step - starts[:-1]
        columns = FeistelColumns(np.diff(starts), layout.key, range(low, high))
        slots = columns.strides(offsets, step, counts)
        ends = np.cumsum(sizes, axis=1)
        labels = num_reached(slots, ends.astype(np.uint32).T[:-1])
        shifts = (before[:-1] - begun - ends + sizes).astype(self._kind, copy=False)
        cells = np.add(labels, np.arange(len(counts)) * ends.shape[1], dtype=np.int64)
        ordinals = shifts.ravel().take(cells)
        ordinals += slots.astype(self._kind, copy=False)
        # numpy chooses from contiguous arrays several times faster.
        labels, ordinals = (np.ascontiguousarray(each.T) for each in (labels, ordinals))
        is_asked = np.arange(len(slots)) < counts[:, None]
        return labels[is_asked], ordinals[is_asked]
