"""One order after another."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError, check_integer, check_sequence
from feedline.lazy import lazy
from feedline.plan.draws import Draws, draws_at
from feedline.plan.frozen import described, store
from feedline.plan.orders import EpochOrder, Indices, Order, check_inner_order
from feedline.plan.permutation import MAX_SIZE
from feedline.plan.seeds import Seed
from feedline.plan.versions import of_kind
from feedline.words import one_line


@one_line
@dataclass(frozen=True)
class Concatenated(Order):
    """One order after another; the indices of each follow those of the one before.

    An order with the seed of an earlier one is given another seed, so that they are not alike.

    Args:
        orders: The orders, one after another.

    Examples:
        >>> from feedline.plan import Sequential
        >>> both = Concatenated((Sequential(num_samples=2), Sequential(num_samples=3)))
        >>> both.indices(0, range(5)).tolist()
        [0, 1, 2, 3, 4]
    """

    orders: Sequence[Order]

    def __post_init__(self) -> None:
        store(self, orders=check_sequence("orders", self.orders))
        if not self.orders:
            raise InvalidValueError("orders=() must contain at least one order")
        for order in self.orders:
            check_inner_order(order)
        check_integer("the sum of num_samples", self.num_indices, 1, MAX_SIZE)

    @property
    def num_indices(self) -> int:
        return sum(order.num_indices for order in self.orders)

    @property
    def is_selection(self) -> bool:
        return any(order.is_selection for order in self.orders)

    def at(self, epoch: int) -> EpochOrder:
        return ChainedEpoch(
            [order.at(epoch) for order in self._links], [o.num_indices for o in self.orders]
        )

    @lazy
    def _links(self) -> list[Order]:
        links: list[Order] = []
        seen: set[Any] = set()
        for number, order in enumerate(self.orders):
            others = map(order.renumbered, count(number))
            link = next(link for link in chain([order], others) if seen.isdisjoint(link.seeds_used))
            links.append(link)
            seen |= link.seeds_used
        return links

    @property
    def main_seed(self) -> Seed:
        return self.orders[0].main_seed

    @property
    def seeds_used(self) -> frozenset[Any]:
        return frozenset[Any]().union(*(link.seeds_used for link in self._links))

    def renumbered(self, number: int) -> Order:
        return Concatenated([order.renumbered(number) for order in self.orders])

    def describe(self) -> dict[str, Any]:
        has_changed = any(map(operator.is_not, self._links, self.orders))
        return described(self, **of_kind("concatenated", has_changed=has_changed))


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

    def draws(self, positions: Indices) -> Draws:
        which = np.searchsorted(self._starts, positions, side="right") - 1
        draws = Draws(np.empty_like(positions), np.empty_like(positions))
        for number in np.unique(which):
            chosen = np.flatnonzero(which == number)
            found = draws_at(self._links[number], positions[chosen] - self._starts[number])
            draws.sources[chosen], draws.numbers[chosen] = found
        return draws

    def find(self, index: int) -> Indices:
        number = int(np.searchsorted(self._offsets, index, side="right")) - 1
        start = int(self._starts[number])
        return self._links[number].find(index - self._offsets[number]) + start
