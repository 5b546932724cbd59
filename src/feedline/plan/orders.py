"""Orders: maps from the positions of an epoch to the indices of samples.

An `Order` is a frozen description. `order.at(epoch)` prepares it for one epoch and returns an
`EpochOrder`, which maps any positions to indices and finds the positions of any index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan.fingerprint import digest_array
from feedline.plan.permutation import MAX_SIZE, Permutation
from feedline.plan.seeds import Seed, check_seed, derive_key

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

    def num_positions(self, epoch: int = 0) -> int:
        """Return the number of positions in `epoch`."""
        return self.at(epoch).num_positions

    def indices(self, epoch: int, positions: ArrayLike) -> Indices:
        """Return the index at each position of `epoch`.

        Examples:
            >>> Sequential(num_samples=5).indices(0, [4, 0]).tolist()
            [4, 0]
        """
        prepared = self.at(epoch)
        places = np.asarray(positions, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= prepared.num_positions):
            raise InvalidValueError(
                f"positions reach from {places.min()} to {places.max()} but must lie in "
                f"[0, {prepared.num_positions})"
            )
        return prepared.indices(places)


@dataclass(frozen=True, kw_only=True)
class Sequential(Order):
    """The order 0, 1, 2, …, the same in every epoch."""

    num_samples: int

    def __post_init__(self) -> None:
        check_num_samples(self.num_samples)

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
        check_num_samples(self.num_samples)
        check_seed(self.seed)

    @property
    def num_indices(self) -> int:
        return self.num_samples

    def at(self, epoch: int) -> EpochOrder:
        return PermutedEpoch(Permutation(self.num_samples, derive_key(self.seed, "order", epoch)))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "shuffled",
            "num_samples": self.num_samples,
            "seed": check_seed(self.seed),
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
        object.__setattr__(self, "orders", tuple(self.orders))
        if not self.orders:
            raise InvalidValueError("orders=() must hold at least one order")
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
        selected = self.selected
        if not isinstance(selected, range):
            selected = check_index_list("selected", selected)
        object.__setattr__(self, "selected", selected)
        if len(selected) == 0:
            raise InvalidValueError("selected is empty but must hold at least one index")
        if isinstance(selected, range) and min(selected[0], selected[-1]) < 0:
            raise InvalidValueError(f"selected={selected} must not hold negative indices")
        order = self.order or Sequential(num_samples=len(selected))
        if order.num_indices != len(selected):
            raise InvalidValueError(
                f"order.num_indices={order.num_indices} must equal len(selected)={len(selected)}"
            )
        object.__setattr__(self, "order", order)

    @cached_property
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

    @cached_property
    def _describe_selected(self) -> Any:
        if isinstance(self.selected, range):
            return [self.selected.start, self.selected.stop, self.selected.step]
        return digest_array(np.asarray(self.selected))


def check_num_samples(num_samples: Any) -> int:
    """Return `num_samples` as an int that an order can have, or raise."""
    return check_integer("num_samples", num_samples, 1, MAX_SIZE)


def check_index_list(name: str, values: Any) -> Indices:
    """Return `values` as a flat int64 array of indices, or raise."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidValueError(f"{name} has {array.ndim} dimensions but must have 1")
    if array.size and array.dtype.kind not in "iu":
        raise InvalidValueError(f"{name} holds {array.dtype} but must hold integers")
    if array.size and (array.min() < 0 or array.max() >= MAX_SIZE):
        raise InvalidValueError(
            f"{name} reaches from {array.min()} to {array.max()} but must lie in [0, {MAX_SIZE})"
        )
    return array.astype(np.int64, copy=False)


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
