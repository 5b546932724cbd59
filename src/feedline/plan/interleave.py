"""Layouts: sequences of labels with exact counts, in which any place can be looked up.

A label stands for a bucket or a source. A layout of the counts `n_0, n_1, …` is a sequence in which
label i comes exactly `n_i` times. `locate` returns the label at a position and its ordinal, that
is, its number among the entries of its label; `positions_of` is the inverse.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.plan.permutation import Permutation
from feedline.plan.seeds import derive_key

Integers = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)


class Layout(Protocol):
    """A sequence of labels with exact counts."""

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the label at each position, and its ordinal."""

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        """Return the positions of these ordinals of a label; `ordinals` must ascend."""

    def counts_before(self, position: int) -> list[int]:
        """Return the count of each label before `position`."""

    def cut(self, position: int) -> tuple[list[Integers], list[int]]:
        """Return the ordinals that are not before `position`, label by label.

        Each label has a short list of ordinals, and a number from which all are included.
        """


class Consecutive:
    """All of the first label, then all of the next, in the given sequence of labels.

    Examples:
        >>> layout = Consecutive([2, 1], sequence=[1, 0])
        >>> [part.tolist() for part in layout.locate(np.arange(3))]
        [[1, 0, 0], [0, 0, 1]]
    """

    def __init__(self, counts: Sequence[int], sequence: Sequence[int]) -> None:
        self._counts = list(counts)
        self._sequence = np.array(sequence, dtype=np.int64)
        self._starts = np.array([0, *accumulate(counts[label] for label in sequence)])
        self._rank_of = {label: rank for rank, label in enumerate(sequence)}

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        rank = np.searchsorted(self._starts, positions, side="right") - 1
        return self._sequence[rank], positions - self._starts[rank]

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        return ordinals + int(self._starts[self._rank_of[label]])

    def counts_before(self, position: int) -> list[int]:
        starts = [int(self._starts[self._rank_of[label]]) for label in range(len(self._counts))]
        return [
            min(max(position - start, 0), count)
            for start, count in zip(starts, self._counts, strict=True)
        ]

    def cut(self, position: int) -> tuple[list[Integers], list[int]]:
        return [_NONE] * len(self._counts), self.counts_before(position)


class _Arrangement(NamedTuple):
    """One block: its first position, the ordinals it starts with and how many of each it holds."""

    start: int
    number: int
    ordinals: Integers
    edges: Integers


class Interleave:
    """Labels shuffled inside blocks; every block holds its exact share of every label.

    Label i has `floor((b * n_i + o_i) / num_blocks)` of its ordinals before block b, where the
    keyed offset `o_i` keeps rare labels from always landing in the same block. Ordinals grow from
    block to block. Within a block they follow the positions if `in_order`, at a cost that is
    proportional to the block; otherwise they are shuffled, and any position costs the same.

    Examples:
        >>> layout = Interleave([3, 1], key=5, block_length=1024)
        >>> labels, ordinals = layout.locate(np.arange(4))
        >>> sorted(zip(labels.tolist(), ordinals.tolist()))
        [(0, 0), (0, 1), (0, 2), (1, 0)]
    """

    def __init__(
        self, counts: Sequence[int], *, key: int, block_length: int, in_order: bool = True
    ) -> None:
        self._counts = list(counts)
        self._total = sum(counts)
        self._num_blocks = max(1, -(-self._total // block_length))
        self._key = key
        self._in_order = in_order
        # numpy sorts 16-bit keys by radix, several times faster than wider ones.
        self._label_type = np.uint16 if len(counts) <= 2**16 else np.int64
        self._offsets = [
            derive_key(key, "offset", 0, label) % self._num_blocks for label in range(len(counts))
        ]
        self._latest: tuple[int, Integers, Integers] | None = None

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        labels = np.empty(len(positions), dtype=np.int64)
        ordinals = np.empty(len(positions), dtype=np.int64)
        is_sorted = len(positions) < 2 or bool(np.all(positions[1:] >= positions[:-1]))
        by_position = None if is_sorted else np.argsort(positions, kind="stable")
        ascending = positions if by_position is None else positions[by_position]
        first = 0
        while first < len(ascending):
            block = self._block_at(int(ascending[first]))
            stop = int(np.searchsorted(ascending, block.start + int(block.edges[-1])))
            if stop == first:
                raise IndexError(f"position {ascending[first]} is not in [0, {self._total})")
            part = slice(first, stop) if by_position is None else by_position[first:stop]
            labels[part], ordinals[part] = self._locate_in(block, ascending[first:stop])
            first = stop
        return labels, ordinals

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        offset, count = self._offsets[label], self._counts[label]
        parts = [_NONE]
        first = 0
        while first < len(ordinals):
            # The last block that starts with at most this ordinal of the label.
            number = -(-((int(ordinals[first]) + 1) * self._num_blocks - offset) // count) - 1
            block = self._block(number)
            start, (low, high) = block.ordinals[label], block.edges[label : label + 2]
            stop = int(np.searchsorted(ordinals, start + high - low))
            in_block = ordinals[first:stop] - start
            if self._in_order:
                places = np.flatnonzero(self._arranged(block)[0] == label)[in_block]
            else:
                places = self._permutation(block).inverse(in_block + low)
            parts.append(places + block.start)
            first = stop
        return np.concatenate(parts)

    def counts_before(self, position: int) -> list[int]:
        if position >= self._total:
            return list(self._counts)
        block = self._block_at(position)
        labels, _ = self._locate_in(block, np.arange(block.start, position))
        counts: list[int] = (
            block.ordinals + np.bincount(labels, minlength=len(self._counts))
        ).tolist()
        return counts

    def cut(self, position: int) -> tuple[list[Integers], list[int]]:
        if self._in_order or position >= self._total:
            return [_NONE] * len(self._counts), self.counts_before(position)
        block = self._block_at(position)
        rest = np.arange(position, block.start + int(block.edges[-1]))
        labels, ordinals = self._locate_in(block, rest)
        pending = [ordinals[labels == label] for label in range(len(self._counts))]
        return pending, self._ordinals_at(block.number + 1)

    def _locate_in(self, block: _Arrangement, positions: Integers) -> tuple[Integers, Integers]:
        places = positions - block.start
        if self._in_order:
            labels, ordinals = self._arranged(block)
            return labels[places], ordinals[places]
        slots = self._permutation(block).forward(places)
        labels = np.searchsorted(block.edges, slots, side="right") - 1
        return labels, slots - block.edges[labels] + block.ordinals[labels]

    def _arranged(self, block: _Arrangement) -> tuple[Integers, Integers]:
        """Return the labels and ordinals of a whole block, ordinals in order of position."""
        latest = self._latest
        if latest is None or latest[0] != block.number:
            in_turn = np.repeat(np.arange(len(self._counts)), np.diff(block.edges))
            slots = np.arange(len(in_turn))
            labels = in_turn[self._permutation(block).forward(slots)]
            by_label = np.argsort(labels.astype(self._label_type), kind="stable")
            ordinals = np.empty(len(slots), dtype=np.int64)
            ordinals[by_label] = slots + (block.ordinals - block.edges[:-1])[in_turn]
            self._latest = latest = (block.number, labels, ordinals)
        return latest[1], latest[2]

    def _permutation(self, block: _Arrangement) -> Permutation:
        return Permutation(max(1, int(block.edges[-1])), self._key, block.number)

    def _block_at(self, position: int) -> _Arrangement:
        # Block b starts within len(counts) of b * total / num_blocks.
        slack = len(self._counts)
        low = max(0, (position - slack) * self._num_blocks // self._total)
        high = min(self._num_blocks, (position + slack) * self._num_blocks // self._total + 2)
        candidates = range(low, high)
        after = bisect_right(candidates, position, key=lambda b: sum(self._ordinals_at(b)))
        return self._block(candidates[after - 1])

    def _block(self, number: int) -> _Arrangement:
        before, after = self._ordinals_at(number), self._ordinals_at(number + 1)
        sizes = [high - low for low, high in zip(before, after, strict=True)]
        return _Arrangement(
            sum(before), number, np.array(before), np.array([0, *accumulate(sizes)])
        )

    def _ordinals_at(self, number: int) -> list[int]:
        num_blocks = self._num_blocks
        return [
            (number * count + offset) // num_blocks
            for count, offset in zip(self._counts, self._offsets, strict=True)
        ]
