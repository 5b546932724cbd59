"""Runs of rows of one class each, drawn with replacement.

Positions are cut into groups, and each group has a class of its own, drawn by weight. A group is
made of runs of `chunk_size` rows that begin anywhere in the class, and is shuffled in itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.lazy import lazy
from feedline.plan.drawn import EqualWindows, uniform_below
from feedline.plan.fingerprint import digest_array
from feedline.plan.frozen import described
from feedline.plan.orders import Indices, Order
from feedline.plan.seeds import Seed, derive_key

# Weights become whole numbers of this size, so that drawing is the same on every platform.
_WEIGHT_TOTAL = 2**52


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassDraws(Order):
    """Rows drawn class by class; made by `feedline.chunks.ClassSampler`, which checks its fields.

    `run_starts`, `run_lengths` and `run_classes` describe runs of rows of one class, each at least
    `chunk_size` long.
    """

    num_samples: int
    run_starts: NDArray[np.int64]
    run_lengths: NDArray[np.int64]
    run_classes: NDArray[np.int64]
    weights: NDArray[np.float64]
    num_drawn: int
    chunk_size: int
    group_size: int
    window_size: int
    seed: Seed = 0

    def at(self, epoch: int) -> ClassEpoch:
        return ClassEpoch(self, epoch)

    def describe(self) -> dict[str, Any]:
        runs = ("run_starts", "run_lengths", "run_classes")
        weights = [float(weight) for weight in self.weights]
        return described(self, *runs, kind="class draws", runs=self._runs, weights=weights)

    @lazy
    def _runs(self) -> dict[str, Any]:
        return digest_array(np.concatenate([self.run_starts, self.run_lengths, self.run_classes]))

    @lazy
    def table(self) -> ClassTable:
        """Where the runs of each class are."""
        return ClassTable(self)


class ClassTable:
    """The runs sorted by class, with the number of places at which a chunk can begin."""

    def __init__(self, order: ClassDraws) -> None:
        by_class = np.argsort(order.run_classes, kind="stable")
        self.run_starts = order.run_starts[by_class]
        room = order.run_lengths[by_class] - order.chunk_size + 1
        self.edges = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
        codes = order.run_classes[by_class]
        self.classes = np.array(sorted(set(codes.tolist())), dtype=np.int64)
        #: Where the places of each class begin and end among all places.
        self.first = self.edges[np.searchsorted(codes, self.classes)]
        self.end = self.edges[np.searchsorted(codes, self.classes, side="right")]
        weights = order.weights[self.classes]
        shares = np.cumsum(weights / weights.sum())
        self.thresholds = np.floor(shares * _WEIGHT_TOTAL).astype(np.int64)
        self.thresholds[-1] = _WEIGHT_TOTAL

    def class_of(self, draws: Indices) -> Indices:
        """Return the class, by its place in `classes`, for values below the weights' total."""
        return np.searchsorted(self.thresholds, draws, side="right")

    def start_of(self, places: Indices) -> Indices:
        """Return the row at each place where a chunk can begin."""
        runs = np.searchsorted(self.edges, places, side="right") - 1
        return self.run_starts[runs] + places - self.edges[runs]


class ClassEpoch(EqualWindows):
    """One epoch of class draws."""

    def __init__(self, order: ClassDraws, epoch: int) -> None:
        super().__init__(order.num_drawn, order.window_size)
        self._order = order
        self._class_key = derive_key(order.seed, "class", epoch)
        self._draw_key = derive_key(order.seed, "class draw", epoch)
        self._group_key = derive_key(order.seed, "class group", epoch)

    def indices(self, positions: Indices) -> Indices:
        table, order = self._order.table, self._order
        groups = positions // order.group_size
        places = self.shuffled(positions, self._group_key, order.group_size)
        draws = places // order.chunk_size
        chosen = table.class_of(uniform_below(_WEIGHT_TOTAL, groups, self._class_key))
        room = table.end[chosen] - table.first[chosen]
        starts = table.start_of(table.first[chosen] + uniform_below(room, draws, self._draw_key))
        return starts + places - draws * order.chunk_size

    def find(self, index: int) -> Indices:
        """Return every position at which `index` comes; this computes the whole epoch."""
        positions = np.arange(self.num_positions, dtype=np.int64)
        return np.flatnonzero(self.indices(positions) == index)
