"""Orders: maps from the positions of an epoch to the indices of samples.

An `Order` is a frozen description. `order.at(epoch)` prepares it for one epoch and returns an
`EpochOrder`, which maps any positions to indices and finds the positions of any index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.lazy import lazy
from feedline.plan.draws import Draws, draws_at
from feedline.plan.frozen import described, digest_array, store, store_integers
from feedline.plan.permutation import MAX_SIZE, Permutation
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.words import one_line

Indices = NDArray[np.int64]


class EpochOrder(Protocol):
    """One epoch's order: what is at a position, and where an index is."""

    num_positions: int

    def indices(self, positions: Indices) -> Indices:
        """Return the index at each position."""

    def find(self, index: int) -> Indices:
        """Return every position at which `index` comes, in ascending order."""


class Order(ABC):
    """A map from (epoch, position) to index."""

    num_samples: int

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def num_indices(self) -> int:
        """Indices are in `[0, num_indices)`; by default an order has all samples."""
        return self.num_samples

    @abstractmethod
    def at(self, epoch: int) -> EpochOrder:
        """Return the order of one epoch."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything that decides the order, as JSON values."""

    @property
    def is_selection(self) -> bool:
        """Whether it selects samples, so that it may exclude some of the data."""
        return False

    @property
    def is_changed(self) -> bool:
        """Whether it was changed while running; the description does not include that."""
        return False

    @property
    def main_seed(self) -> Seed:
        """The seed that it was given; 0 if it has none."""
        seed: Seed = getattr(self, "seed", 0)
        return seed

    @property
    def seeds_used(self) -> frozenset[Any]:
        """The seeds that decide it, each with the kind of order that it is for."""
        return frozenset()

    def renumbered(self, number: int) -> Order:
        """Return it with other seeds, as the order of this number among several alike."""
        return self

    def num_positions(self, epoch: int = 0) -> int:
        """Return the number of positions in `epoch`."""
        return self.at(epoch).num_positions

    def indices(self, epoch: int, positions: ArrayLike) -> Indices:
        """Return the index at each position of `epoch`.

        Examples:
            >>> Sequential(num_samples=5).indices(0, [4, 0]).tolist()
            [4, 0]
        """
        prepared = self.at(check_integer("epoch", epoch, 0))
        return prepared.indices(check_index_list("positions", positions, prepared.num_positions))


class SeededOrder(Order):
    """A dataclass with a seed, and maybe with `shuffle`, without which the seed decides nothing."""

    seed: Seed

    @property
    def seeds_used(self) -> frozenset[Any]:
        return frozenset([(type(self), self.seed)] if getattr(self, "shuffle", True) else [])

    def renumbered(self, number: int) -> Order:
        itself: Any = self
        renumbered: Order = replace(itself, seed=derive_key(self.seed, "renumbered", 0, number))
        return renumbered


@dataclass(frozen=True, kw_only=True)
class Sequential(Order):
    """The order 0, 1, 2, …, the same in every epoch.

    Args:
        num_samples: The number of samples.
    """

    num_samples: int

    def __post_init__(self) -> None:
        store_integers(self, "num_samples", low=1, high=MAX_SIZE)

    def at(self, epoch: int) -> EpochOrder:
        return PermutedEpoch(self.num_samples)

    def describe(self) -> dict[str, Any]:
        return described(self, kind="sequential")


@one_line
@dataclass(frozen=True, kw_only=True)
class Shuffled(SeededOrder):
    """Every index once per epoch, in an order that depends on (seed, epoch).

    Args:
        num_samples: The number of samples.
        seed: Any integer or string.

    Examples:
        >>> order = Shuffled(num_samples=6, seed=3)
        >>> sorted(order.indices(0, range(6)).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    num_samples: int
    seed: Seed = 0

    def __post_init__(self) -> None:
        store_integers(self, "num_samples", low=1, high=MAX_SIZE)
        store(self, seed=check_seed(self.seed))

    def at(self, epoch: int) -> EpochOrder:
        key = derive_key(self.seed, "order", epoch)
        return PermutedEpoch(self.num_samples, Permutation(self.num_samples, key))

    def describe(self) -> dict[str, Any]:
        return described(self, kind="shuffled")


@one_line
@dataclass(frozen=True, eq=False)
class Subset(Order):
    """Part of a dataset: `order` walks over `selected`, a range or a list of indices.

    Without `order` the selection keeps its order. A list costs one array of 8 bytes per entry.

    Args:
        selected: The indices that are walked over: a range or a list.
        order: In which order; by default as they stand.

    Examples:
        >>> half = Subset(range(50, 100), order=Shuffled(num_samples=50))
        >>> sorted(half.indices(0, range(50)).tolist()) == list(range(50, 100))
        True
    """

    selected: range | ArrayLike
    order: Order | None = None

    def __post_init__(self) -> None:
        selected = check_members("selected", self.selected)
        store(self, selected=selected)
        if len(selected) == 0:
            raise InvalidValueError("selected is empty but must contain at least one index")
        order = Sequential(num_samples=len(selected)) if self.order is None else self.order
        check_inner_order(order)
        if order.num_indices != len(selected):
            raise InvalidValueError(
                f"order.num_indices={order.num_indices} must equal len(selected)={len(selected)}"
            )
        store(self, order=order)

    @lazy
    def num_indices(self) -> int:
        return end_of(self.selected)

    @property
    def is_selection(self) -> bool:
        return True

    def at(self, epoch: int) -> EpochOrder:
        assert self.order is not None
        return SelectedEpoch(self.order.at(epoch), self.selected)

    @property
    def main_seed(self) -> Seed:
        assert self.order is not None
        return self.order.main_seed

    @property
    def seeds_used(self) -> frozenset[Any]:
        return frozenset() if self.order is None else self.order.seeds_used

    def renumbered(self, number: int) -> Order:
        return self if self.order is None else Subset(self.selected, self.order.renumbered(number))

    def describe(self) -> dict[str, Any]:
        return described(self, kind="subset", selected=self._described)

    @lazy
    def _described(self) -> Any:
        return describe_members(self.selected)


def check_index_list(name: str, values: Any, end: int = MAX_SIZE) -> Indices:
    """Return `values` as a flat int64 array of integers in `[0, end)`, or raise."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"{name} must be a list of integers ({error})") from None
    if array.ndim != 1:
        raise InvalidValueError(f"{name} has {array.ndim} dimensions but must have 1")
    if array.size and array.dtype.kind not in "iu" and not _holds_integers(array):
        raise InvalidValueError(f"{name} holds {array.dtype} but must hold integers")
    if array.size and (array.min() < 0 or array.max() >= end):
        raise InvalidValueError(
            f"{name}: from {array.min()} to {array.max()}, but must be in [0, {end})"
        )
    return array.astype(np.int64, copy=False)


def check_members(name: str, values: Any) -> range | Indices:
    """Return `values` as a range or a list of indices, or raise."""
    if not isinstance(values, range):
        return check_index_list(name, values)
    # Truth, and not length: the length of a long range does not fit a C integer.
    if values and (min(values[0], values[-1]) < 0 or max(values[0], values[-1]) >= MAX_SIZE):
        raise InvalidValueError(
            f"{name}={values} must be in [0, {MAX_SIZE}), without negative indices"
        )
    return values


def end_of(members: Any) -> int:
    """Return one more than the largest of some members."""
    if isinstance(members, range):
        return max(members[0], members[-1]) + 1
    return int(members.max()) + 1


def describe_members(members: Any) -> Any:
    """Return members as JSON values: the ends of a range, or the digest of a list."""
    if isinstance(members, range):
        return [members.start, members.stop, members.step]
    return digest_array(members)


def _holds_integers(array: NDArray[Any]) -> bool:
    """Whether an array of objects holds integers, as one of very large integers does."""
    return array.dtype == object and all(isinstance(value, int) for value in array)


def check_inner_order(order: Any) -> None:
    """Raise unless `order` is an order that can be inside another one."""
    if not isinstance(order, Order):
        raise InvalidValueError(f"order={order!r:.80} must be an Order, such as Shuffled")
    if order.is_changed:
        raise InvalidValueError(
            f"order={type(order).__name__} has weights that were changed while running; only "
            "SamplePlan(order=Mixture(...)) supports that; change the weights there"
        )


class DeferredEpoch:
    """An order that is prepared at its first use, apart from its length."""

    def __init__(self, num_positions: int, prepare: Callable[[], EpochOrder]) -> None:
        self.num_positions = num_positions
        self._prepare = prepare

    @lazy
    def _order(self) -> EpochOrder:
        return self._prepare()

    def indices(self, positions: Indices) -> Indices:
        return self._order.indices(positions)

    def draws(self, positions: Indices) -> Draws:
        return draws_at(self._order, positions)

    def find(self, index: int) -> Indices:
        return self._order.find(index)


class PermutedEpoch:
    """Positions are permuted, or equal the indices."""

    def __init__(self, num_positions: int, permutation: Permutation | None = None) -> None:
        self.num_positions = num_positions
        self._permutation = permutation

    def indices(self, positions: Indices) -> Indices:
        return positions if self._permutation is None else self._permutation.forward(positions)

    def draws(self, positions: Indices) -> Draws:
        return Draws.once(len(positions))

    def find(self, index: int) -> Indices:
        one = np.array([index], dtype=np.int64)
        return one if self._permutation is None else self._permutation.inverse(one)


class SelectedEpoch:
    """An order whose indices are entries of a list or a range."""

    def __init__(self, order: EpochOrder, selected: Any) -> None:
        self._order = order
        self._selected = selected
        self.num_positions = order.num_positions

    def indices(self, positions: Indices) -> Indices:
        entries = self._order.indices(positions)
        if isinstance(self._selected, range):
            if self._selected.step == 1:
                return entries + self._selected.start
            return self._selected.start + entries * self._selected.step
        chosen: Indices = self._selected[entries]
        return chosen

    def draws(self, positions: Indices) -> Draws:
        draws = draws_at(self._order, positions)
        if isinstance(self._selected, range):
            return draws
        # A list may name a sample several times, and each time is a draw of its own.
        entries = self._order.indices(positions)
        return Draws(draws.sources, draws.numbers * len(self._selected) + entries)

    def find(self, index: int) -> Indices:
        if isinstance(self._selected, range):
            entries = [self._selected.index(index)] if index in self._selected else []
        else:
            entries = np.flatnonzero(self._selected == index).tolist()
        places = [self._order.find(entry) for entry in entries]
        return np.sort(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)
