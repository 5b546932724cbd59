"""Layouts: sequences of labels with exact counts, in which any place can be looked up.

A label stands for a bucket or a source. A layout of the counts `n_0, n_1, …` is a sequence in which
label i comes exactly `n_i` times. `locate` returns the label at a position and its ordinal, that
is, its number among the entries of its label; `positions_of` is the inverse.

There may be millions of labels, so what concerns all of them is one array, and a block keeps only
the labels that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.plan.many_permutations import permute_each
from feedline.plan.permutation import MAX_SIZE, Permutation
from feedline.plan.seeds import derive_key, derive_keys

Integers = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)
# Up to here the offset of each label has a key of its own, as in the first order. Above that the
# keys alone would take seconds, so all offsets come from one key.
_MOST_KEYS = 2**16
# Products of two numbers below this fit 64 bits.
_HALF = 2**31
_NUM_GUESSES = 8
FEW_LABELS = 16
# Blocks with fewer positions than this are cheaper together.
FEW_IN_BLOCK = 2048


class Layout(Protocol):
    """A sequence of labels with exact counts."""

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the label at each position, and its ordinal."""

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        """Return the positions of these ordinals of a label; `ordinals` must ascend."""

    def counts_before(self, position: int) -> Integers:
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

    def __init__(
        self, counts: Sequence[int] | Integers, sequence: Sequence[int] | Integers
    ) -> None:
        self.counts = np.asarray(counts, dtype=np.int64)
        self._sequence = np.asarray(sequence, dtype=np.int64)
        self._edges = edges_of(self.counts[self._sequence])
        self._starts = np.empty(len(self.counts), dtype=np.int64)
        self._starts[self._sequence] = self._edges[:-1]

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        rank = np.searchsorted(self._edges, positions, side="right") - 1
        return self._sequence[rank], positions - self._edges[rank]

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        return ordinals + int(self._starts[label])

    def counts_before(self, position: int) -> Integers:
        return np.minimum(np.maximum(position - self._starts, 0), self.counts)

    def cut(self, position: int) -> tuple[list[Integers], list[int]]:
        return [_NONE] * len(self.counts), self.counts_before(position).tolist()


class Arrangement(NamedTuple):
    """One block: its positions, its labels, the ordinals they start with, and their edges.

    Its slots are the entries of one label after another: those of label i from edge i on.
    """

    number: int
    start: int
    end: int
    labels: Integers
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
        self,
        counts: Sequence[int] | Integers,
        *,
        key: int,
        block_length: int,
        in_order: bool = True,
    ) -> None:
        self.counts = np.asarray(counts, dtype=np.int64)
        self.total = int(self.counts.sum())
        self.num_blocks = max(1, -(-self.total // block_length))
        self.key = key
        self.in_order = in_order
        # numpy sorts 16-bit keys by radix, several times faster than wider ones.
        self._label_type = np.uint16 if len(counts) <= 2**16 else np.int64
        self._small_label = np.uint8 if len(counts) <= FEW_LABELS else np.int64
        self._offsets = _offsets(len(counts), key, self.num_blocks)
        # b * n_i may exceed 64 bits; b * (n_i // num_blocks) does not, nor does what is left of it,
        # unless there are very many blocks: then numpy calls Python's own integers.
        kind = np.int64 if self.num_blocks < _HALF else object
        counted: NDArray[Any] = self.counts.astype(kind, copy=False)
        self._whole = counted // self.num_blocks
        self._rest = counted - self._whole * self.num_blocks
        self._known: tuple[tuple[int, Integers], ...] = ()
        self._latest: Arrangement | None = None
        self._permuted: tuple[int, Permutation | None] = (0, None)
        self._in_turn: tuple[int, Integers, Integers] | None = None

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        labels, ordinals = self.locate_small(positions)
        return labels.astype(np.int64, copy=False), ordinals

    def locate_small(self, positions: Integers) -> tuple[NDArray[Any], Integers]:
        """Return the same, with labels in bytes if there are few."""
        is_sorted = len(positions) < 2 or bool(np.all(positions[1:] > positions[:-1]))
        by_position = None if is_sorted else np.argsort(positions, kind="stable")
        ascending = positions if by_position is None else positions[by_position]
        if is_sorted and self._is_scattered(positions):
            return self._locate_scattered(positions)
        if is_sorted and len(positions):
            block = self.block_at(int(positions[0]))
            if positions[-1] < block.end:
                return self._locate_in(block, positions, is_strict=True)
        labels = np.empty(len(positions), dtype=self._small_label)
        ordinals = np.empty(len(positions), dtype=np.int64)
        first = 0
        while first < len(ascending):
            block = self.block_at(int(ascending[first]))
            stop = int(np.searchsorted(ascending, block.end))
            if stop == first:
                raise IndexError(f"position {ascending[first]} is not in [0, {self.total})")
            part = slice(first, stop) if by_position is None else by_position[first:stop]
            labels[part], ordinals[part] = self._locate_in(
                block, ascending[first:stop], is_strict=is_sorted
            )
            first = stop
        return labels, ordinals

    def positions_of(self, label: int, ordinals: Integers) -> Integers:
        offset, total = int(self._offsets[label]), int(self.counts[label])
        parts = [_NONE]
        first = 0
        while first < len(ordinals):
            # The last block that starts with at most this ordinal of the label.
            number = -(-((int(ordinals[first]) + 1) * self.num_blocks - offset) // total) - 1
            block = self._block(number)
            place = int(np.searchsorted(block.labels, label))
            start, (low, high) = block.ordinals[place], block.edges[place : place + 2]
            stop = int(np.searchsorted(ordinals, start + high - low))
            in_block = ordinals[first:stop] - start
            if self.in_order:
                places = np.flatnonzero(self._arranged(block)[0] == label)[in_block]
            else:
                places = self.permutation(block).inverse(in_block + low)
            parts.append(places + block.start)
            first = stop
        return np.concatenate(parts)

    def counts_before(self, position: int) -> Integers:
        if position >= self.total:
            return self.counts.copy()
        block = self.block_at(position)
        labels, _ = self._locate_in(block, np.arange(block.start, position))
        counts = self._ordinals_at(block.number).copy()
        np.add.at(counts, labels, 1)
        return counts

    def cut(self, position: int) -> tuple[list[Integers], list[int]]:
        if self.in_order or position >= self.total:
            return [_NONE] * len(self.counts), self.counts_before(position).tolist()
        block = self.block_at(position)
        labels, ordinals = self._locate_in(block, np.arange(position, block.end))
        by_label = np.argsort(labels, kind="stable")
        edges = np.searchsorted(labels[by_label], np.arange(1, len(self.counts)))
        pending = np.split(ordinals[by_label], edges)
        return pending, self._ordinals_at(block.number + 1).tolist()

    def _locate_in(
        self, block: Arrangement, positions: Integers, *, is_strict: bool = False
    ) -> tuple[NDArray[Any], Integers]:
        """Return the same for ascending positions in a block; strictly, if none comes twice."""
        places = positions - block.start
        if self.in_order:
            labels, ordinals = self._arranged(block)
            return labels[places], ordinals[places]
        permutation = self.permutation(block)
        if is_strict and len(places) and places[-1] - places[0] == len(places) - 1:
            slots = permutation.run(int(places[0]), int(places[-1]) + 1)
        else:
            slots = permutation.words(places)
        inner = block.edges[1:-1]
        which: NDArray[Any] = (
            num_reached(slots, inner.tolist())
            if len(inner) < FEW_LABELS
            else np.searchsorted(inner, slots, side="right")
        )
        ordinals = (block.ordinals - block.edges[:-1]).take(which)
        ordinals += slots
        if len(block.labels) < len(self.counts):
            which = block.labels.astype(self._small_label).take(which)
        return which, ordinals

    def _is_scattered(self, positions: Integers) -> bool:
        """Whether ascending positions are in many blocks, with few in each."""
        if self.in_order or len(self.counts) > FEW_LABELS or len(positions) < 2:
            return False
        num_blocks = int(positions[-1] - positions[0]) * self.num_blocks // self.total
        return 1 < num_blocks <= len(positions) <= FEW_IN_BLOCK * num_blocks

    def _locate_scattered(self, positions: Integers) -> tuple[NDArray[Any], Integers]:
        """Return the same for ascending positions in many blocks: all blocks go together."""
        first, last = (self.block_at(int(end)).number for end in (positions[0], positions[-1]))
        numbers = np.arange(first, last + 1)
        ordinals = self.ordinals_of(np.arange(first, last + 2)[:, None])
        starts, sizes = ordinals.sum(axis=1), np.diff(ordinals, axis=0)
        counts = np.diff(positions.searchsorted(starts))
        rows = np.repeat(np.arange(len(numbers)), counts)
        places = positions - starts.take(rows)
        keys = [self.key] * len(numbers)
        slots = permute_each(np.diff(starts), keys, numbers, counts, places)
        ends = np.cumsum(sizes, axis=1)
        labels = num_reached(slots, (np.repeat(end, counts) for end in ends.T[:-1]))
        shifts = ordinals[:-1] - ends + sizes
        slots += shifts.ravel().take(rows * len(self.counts) + labels)
        return labels, slots

    def _arranged(self, block: Arrangement) -> tuple[Integers, Integers]:
        """Return the labels and ordinals of a whole block, ordinals in order of position."""
        latest = self._in_turn
        if latest is None or latest[0] != block.number:
            sizes = np.diff(block.edges)
            slots = np.arange(block.end - block.start)
            labels = np.repeat(block.labels, sizes)[self.permutation(block).forward(slots)]
            by_label = np.argsort(labels.astype(self._label_type), kind="stable")
            ordinals = np.empty(len(slots), dtype=np.int64)
            ordinals[by_label] = slots + np.repeat(block.ordinals - block.edges[:-1], sizes)
            self._in_turn = latest = (block.number, labels, ordinals)
        return latest[1], latest[2]

    def permutation(self, block: Arrangement) -> Permutation:
        number, permutation = self._permuted
        if number != block.number or permutation is None:
            permutation = Permutation(max(1, block.end - block.start), self.key, block.number)
            self._permuted = block.number, permutation
        return permutation

    def block_at(self, position: int) -> Arrangement:
        """Return the last block that starts at or before a position."""
        latest = self._latest
        if latest is not None and latest.start <= position < latest.end:
            return latest
        if latest is not None and latest.end <= position < min(
            self.total, 2 * latest.end - latest.start
        ):
            # Positions mostly ascend.
            following = self._block(latest.number + 1)
            if following.start <= position < following.end:
                self._latest = following
                return following
        # Block b starts within len(counts) of b * total / num_blocks, and mostly much nearer.
        slack, num_blocks, total = len(self.counts), self.num_blocks, self.total
        low = max(0, (position - slack) * num_blocks // total)
        high = min(num_blocks, (position + slack) * num_blocks // total + 2)
        guess = position * num_blocks // total
        for attempt in count():
            if high - low <= 1:
                break
            guess = min(max(guess, low + 1), high - 1)
            start = int(self._ordinals_at(guess).sum())
            low, high = (guess, high) if start <= position else (low, guess)
            if attempt < _NUM_GUESSES:
                guess += (position - start) * num_blocks // total
            else:
                guess = (low + high) // 2
        found = self._latest = self._block(low)
        return found

    def _block(self, number: int) -> Arrangement:
        before, after = self._ordinals_at(number), self._ordinals_at(number + 1)
        sizes = after - before
        labels = np.flatnonzero(sizes)
        edges = edges_of(sizes[labels])
        start = int(before.sum())
        end = start + int(edges[-1])
        return Arrangement(number, start, end, labels, before[labels], edges)

    def _ordinals_at(self, number: int) -> Integers:
        """Return how many of each label come before block `number`."""
        for known, found in self._known:
            if known == number:
                return found
        ordinals = self.ordinals_of(number)
        # A block is asked for with the next one, and the next one after it.
        self._known = (*self._known[-1:], (number, ordinals))
        return ordinals

    def ordinals_of(self, numbers: int | Integers) -> Integers:
        """Return how many of each label come before blocks of these numbers."""
        parts = (self._rest * numbers + self._offsets) // self.num_blocks
        parts += self._whole * numbers
        ordinals: Integers = parts.astype(np.int64, copy=False)
        return ordinals


def num_reached(values: NDArray[Any], bounds: Iterable[Any]) -> NDArray[np.uint8]:
    """Return how many of the bounds each value reaches; for a few, that beats a search."""
    reached = np.zeros(values.shape, dtype=np.uint8)
    for bound in bounds:
        reached += (values >= bound).view(np.uint8)
    return reached


def edges_of(sizes: Integers) -> Integers:
    """Return where parts of these sizes begin when they lie end to end, and the end.

    Examples:
        >>> edges_of(np.array([2, 0, 3])).tolist()
        [0, 2, 2, 5]
    """
    edges = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.add.accumulate(sizes, out=edges[1:])
    return edges


def _offsets(num_labels: int, key: int, num_blocks: int) -> Integers:
    """Return the keyed offset of each label, below `num_blocks`."""
    if num_labels > _MOST_KEYS:
        spread = Permutation(MAX_SIZE, derive_key(key, "offsets"))
        offsets: Integers = spread.forward(np.arange(num_labels)) % num_blocks
        return offsets
    keys = derive_keys(key, "offset", 0, num_labels)
    return np.array([own % num_blocks for own in keys], dtype=np.int64)
