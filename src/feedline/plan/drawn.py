"""Chunks drawn with replacement: runs of rows with random starts, shuffled in windows.

Draw d is a run of `chunk_size` rows whose first row is a keyed hash of d. `preload` draws form a
window. Nothing is held in memory, and any position can be computed.

Class draws cut the positions into groups, and each group has its own class, drawn by weight. A
group is made of runs that begin anywhere in the class, and is shuffled in itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.lazy import lazy
from feedline.plan.frozen import described, digest_array, store, store_integers
from feedline.plan.group_deal import EqualWindows
from feedline.plan.orders import Indices, Order, SeededOrder
from feedline.plan.permutation import MAX_SIZE, Permutation, permute_numbered
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.plan.versions import of_kind
from feedline.words import one_line

_HASH_SIZE = 2**62
_DRAWS_AT_ONCE = 2**16
# Weights become whole numbers of this size, so that drawing is the same on every platform.
_WEIGHT_TOTAL = 2**52


def uniform_below(bounds: Indices | int, numbers: Indices, key: int) -> Indices:
    """Return a keyed value in `[0, bound)` for each number, independent of all others.

    Examples:
        >>> bool((uniform_below(6, np.arange(100), key=1) < 6).all())
        True
    """
    # Below any bound that occurs, the remainder of 62 bits is uniform for all purposes.
    return Permutation(_HASH_SIZE, key).forward(numbers) % bounds


@one_line
@dataclass(frozen=True, kw_only=True)
class DrawnOrder(SeededOrder):
    """Runs of rows drawn with replacement, `num_drawn` rows in all.

    Args:
        num_samples: The number of rows to draw from.
        num_drawn: The number of positions in an epoch.
        chunk_size: The number of rows in a run; the last run may be shorter.
        preload: The number of runs that are shuffled together.
        seed: Any integer or string.

    Examples:
        >>> order = DrawnOrder(num_samples=1000, num_drawn=64, chunk_size=8, preload=2)
        >>> len(order.indices(0, range(64)))
        64
    """

    num_samples: int
    num_drawn: int
    chunk_size: int
    preload: int = 1
    seed: Seed = 0

    def __post_init__(self) -> None:
        store_integers(self, "num_samples", low=1, high=_HASH_SIZE)
        store_integers(self, "num_drawn", "chunk_size", "preload", low=1, high=MAX_SIZE)
        store(self, seed=check_seed(self.seed))
        if min(self.chunk_size, self.num_drawn) > self.num_samples:
            raise InvalidValueError(
                f"num_samples={self.num_samples} must be at least chunk_size={self.chunk_size}, or "
                f"at least num_drawn={self.num_drawn}; use smaller chunks or draw fewer rows"
            )

    def at(self, epoch: int) -> DrawnEpoch:
        return DrawnEpoch(self, epoch)

    def describe(self) -> dict[str, Any]:
        return described(self, **of_kind("drawn"))


class ShuffledWindows(EqualWindows):
    """Windows of one size, shuffled in themselves or in parts of them."""

    def shuffled(
        self, positions: Indices, key: int, size: int, *, inverse: bool = False
    ) -> Indices:
        """Return where each position is when parts of `size` positions are shuffled in themselves.

        `size` divides the window size; the last part holds what is left. With `inverse`, return the
        position that is shuffled to each place.
        """
        parts = positions // size
        starts = parts * size
        sizes = np.minimum(size, self.num_positions - starts)
        return starts + permute_numbered(sizes, key, parts, positions - starts, inverse=inverse)


class DrawnEpoch(ShuffledWindows):
    """One epoch of drawn runs."""

    def __init__(self, order: DrawnOrder, epoch: int) -> None:
        super().__init__(order.num_drawn, order.chunk_size * order.preload)
        self._order = order
        self._draw_key = derive_key(order.seed, "draws", epoch)
        self._window_key = derive_key(order.seed, "drawn window", epoch)

    def indices(self, positions: Indices) -> Indices:
        places = self.shuffled(positions, self._window_key, self.window_size)
        draws = places // self._order.chunk_size
        return self._starts(draws) + places - draws * self._order.chunk_size

    def _starts(self, draws: Indices) -> Indices:
        lengths = np.minimum(
            self._order.chunk_size, self.num_positions - draws * self._order.chunk_size
        )
        return uniform_below(self._order.num_samples - lengths + 1, draws, self._draw_key)

    def find(self, index: int) -> Indices:
        """Return every position at which `index` comes; this looks at all draws."""
        size = self._order.chunk_size
        num_draws = -(-self.num_positions // size)
        found = []
        for first in range(0, num_draws, _DRAWS_AT_ONCE):
            draws = np.arange(first, min(first + _DRAWS_AT_ONCE, num_draws), dtype=np.int64)
            starts = self._starts(draws)
            ends = np.minimum(starts + size, starts + self.num_positions - draws * size)
            hit = (starts <= index) & (index < ends)
            found.append(draws[hit] * size + index - starts[hit])
        places = np.concatenate(found)
        return np.sort(self.shuffled(places, self._window_key, self.window_size, inverse=True))


@one_line
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
        kind = of_kind("class draws")
        return described(self, *runs, runs=self._runs, weights=weights, **kind)

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


class ClassEpoch(ShuffledWindows):
    """One epoch of class draws."""

    def __init__(self, order: ClassDraws, epoch: int) -> None:
        super().__init__(order.num_drawn, order.window_size)
        self._order = order
        self.group_size = order.group_size
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
