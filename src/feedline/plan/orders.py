"""Orders: maps from the positions of an epoch to the indices of samples.

An `Order` is a frozen description. `order.at(epoch)` prepares it for one epoch and returns an
`EpochOrder`, which maps any positions to indices and finds the positions of any index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, check_integer, check_sequence
from feedline.lazy import lazy
from feedline.plan.fingerprint import digest_array
from feedline.plan.frozen import store
from feedline.plan.permutation import MAX_SIZE, Permutation
from feedline.plan.seeds import Seed, check_seed, derive_key, describe_seed

__all__ = ["Concatenated", "EpochOrder", "Order", "Sequential", "Shuffled", "Subset"]

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

    @property
    @abstractmethod
    def num_indices(self) -> int:
        """Indices lie in `[0, num_indices)`."""

    @abstractmethod
    def at(self, epoch: int) -> EpochOrder:
        """Return the order of one epoch."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything that decides the order, as JSON values."""

    @property
    def is_changed(self) -> bool:
        """Whether it was changed while running, which its description leaves out."""
        return False

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


@dataclass(frozen=True, kw_only=True)
class Sequential(Order):
    """The order 0, 1, 2, …, the same in every epoch."""

    num_samples: int

    def __post_init__(self) -> None:
        store(self, num_samples=check_num_samples(self.num_samples))

    @property
    def num_indices(self) -> int:
        return self.num_samples

    def at(self, epoch: int) -> EpochOrder:
        return IdentityEpoch(self.num_samples)

    def describe(self) -> dict[str, Any]:
        return {"kind": "sequential", "num_samples": self.num_samples}


@dataclass(frozen=True, kw_only=True)
class Shuffled(Order):
    """Every index once per epoch, in an order that depends on (seed, epoch).

    Examples:
        >>> order = Shuffled(num_samples=6, seed=3)
        >>> sorted(order.indices(0, range(6)).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    num_samples: int
    seed: Seed = 0

    def __post_init__(self) -> None:
        store(self, num_samples=check_num_samples(self.num_samples), seed=check_seed(self.seed))

    @property
    def num_indices(self) -> int:
        return self.num_samples

    def at(self, epoch: int) -> EpochOrder:
        return PermutedEpoch(Permutation(self.num_samples, derive_key(self.seed, "order", epoch)))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "shuffled",
            "num_samples": self.num_samples,
            "seed": describe_seed(self.seed),
        }


@dataclass(frozen=True)
class Concatenated(Order):
    """One order after another; the indices of each follow those of the one before.

    Examples:
        >>> both = Concatenated((Sequential(num_samples=2), Sequential(num_samples=3)))
        >>> both.indices(0, range(5)).tolist()
        [0, 1, 2, 3, 4]
    """

    orders: Sequence[Order]

    def __post_init__(self) -> None:
        store(self, orders=check_sequence("orders", self.orders))
        if not self.orders:
            raise InvalidValueError("orders=() must hold at least one order")
        for order in self.orders:
            _check_inner_order(order)
        check_integer("the sum of num_samples", self.num_indices, 1, MAX_SIZE)

    @property
    def num_indices(self) -> int:
        return sum(order.num_indices for order in self.orders)

    def at(self, epoch: int) -> EpochOrder:
        return ChainedEpoch(
            [order.at(epoch) for order in self.orders], [o.num_indices for o in self.orders]
        )

    def describe(self) -> dict[str, Any]:
        return {"kind": "concatenated", "orders": [order.describe() for order in self.orders]}


@dataclass(frozen=True, eq=False)
class Subset(Order):
    """Part of a dataset: `order` walks over `selected`, a range or a list of indices.

    Without `order` the selection is taken as it stands. A list costs one array of 8 bytes an entry.

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
            raise InvalidValueError("selected is empty but must hold at least one index")
        order = Sequential(num_samples=len(selected)) if self.order is None else self.order
        _check_inner_order(order)
        if order.num_indices != len(selected):
            raise InvalidValueError(
                f"order.num_indices={order.num_indices} must equal len(selected)={len(selected)}"
            )
        store(self, order=order)

    @lazy
    def num_indices(self) -> int:
        assert self.selected is not None
        if isinstance(self.selected, range):
            return max(self.selected[0], self.selected[-1]) + 1
        return int(np.max(self.selected)) + 1

    def at(self, epoch: int) -> EpochOrder:
        assert self.order is not None
        return SelectedEpoch(self.order.at(epoch), self.selected)

    def describe(self) -> dict[str, Any]:
        assert self.order is not None
        return {
            "kind": "subset",
            "selected": self._describe_selected,
            "order": self.order.describe(),
        }

    @lazy
    def _describe_selected(self) -> Any:
        if isinstance(self.selected, range):
            return [self.selected.start, self.selected.stop, self.selected.step]
        return digest_array(np.asarray(self.selected))


def check_num_samples(num_samples: Any) -> int:
    """Return `num_samples` as an int that an order can have, or raise."""
    return check_integer("num_samples", num_samples, 1, MAX_SIZE)


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
            f"{name}: from {array.min()} to {array.max()}, but they must lie in [0, {end})"
        )
    return array.astype(np.int64, copy=False)


def check_members(name: str, values: Any) -> range | Indices:
    """Return `values` as a range or a list of indices, or raise."""
    if not isinstance(values, range):
        return check_index_list(name, values)
    # Truth, and not length: the length of a long range does not fit a C integer.
    if values and (min(values[0], values[-1]) < 0 or max(values[0], values[-1]) >= MAX_SIZE):
        raise InvalidValueError(
            f"{name}={values} must lie in [0, {MAX_SIZE}), without negative indices"
        )
    return values


def _holds_integers(array: NDArray[Any]) -> bool:
    """Whether an array of objects holds integers, as one of very large integers does."""
    return array.dtype == object and all(isinstance(value, int) for value in array)


def _check_inner_order(order: Any) -> None:
    if not isinstance(order, Order):
        raise InvalidValueError(f"order={order!r:.80} must be an Order, such as Shuffled")
    if order.is_changed:
        raise InvalidValueError(
            f"order={type(order).__name__} has weights that were changed while running; only "
            "SamplePlan(order=Mixture(...)) can carry that along, so change it there"
        )


class DeferredEpoch:
    """An order that is prepared when something is first asked of it, apart from its length."""

    def __init__(self, num_positions: int, prepare: Callable[[], EpochOrder]) -> None:
        self.num_positions = num_positions
        self._prepare = prepare

    @lazy
    def _order(self) -> EpochOrder:
        return self._prepare()

    def indices(self, positions: Indices) -> Indices:
        return self._order.indices(positions)

    def find(self, index: int) -> Indices:
        return self._order.find(index)


class IdentityEpoch:
    """Positions are indices."""

    def __init__(self, num_positions: int) -> None:
        self.num_positions = num_positions

    def indices(self, positions: Indices) -> Indices:
        return positions

    def find(self, index: int) -> Indices:
        return np.array([index], dtype=np.int64)


class PermutedEpoch:
    """Positions are permuted."""

    def __init__(self, permutation: Permutation) -> None:
        self.num_positions = permutation.n
        self._permutation = permutation

    def indices(self, positions: Indices) -> Indices:
        return self._permutation.forward(positions)

    def find(self, index: int) -> Indices:
        return self._permutation.inverse(np.array([index], dtype=np.int64))


class ChainedEpoch:
    """One order after another."""

    def __init__(self, links: list[EpochOrder], num_indices: list[int]) -> None:
        self._links = links
        self._starts = np.array([0, *accumulate(link.num_positions for link in links)])
        self._offsets = [0, *accumulate(num_indices)]
        self.num_positions = int(self._starts[-1])

    def indices(self, positions: Indices) -> Indices:
        which = np.searchsorted(self._starts, positions, side="right") - 1
        result = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(which):
            chosen = np.flatnonzero(which == number)
            local = self._links[number].indices(positions[chosen] - self._starts[number])
            result[chosen] = local + self._offsets[number]
        return result

    def find(self, index: int) -> Indices:
        number = int(np.searchsorted(self._offsets, index, side="right")) - 1
        start = int(self._starts[number])
        return self._links[number].find(index - self._offsets[number]) + start


class SelectedEpoch:
    """An order whose indices are entries of a list or a range."""

    def __init__(self, order: EpochOrder, selected: Any) -> None:
        self._order = order
        self._selected = selected
        self.num_positions = order.num_positions

    def indices(self, positions: Indices) -> Indices:
        entries = self._order.indices(positions)
        if isinstance(self._selected, range):
            return self._selected.start + entries * self._selected.step
        chosen: Indices = self._selected[entries]
        return chosen

    def find(self, index: int) -> Indices:
        if isinstance(self._selected, range):
            entries = [self._selected.index(index)] if index in self._selected else []
        else:
            entries = np.flatnonzero(self._selected == index).tolist()
        places = [self._order.find(entry) for entry in entries]
        return np.sort(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)
