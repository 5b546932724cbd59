"""The mixture order of the system that `MixtureSampler` continues, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.compat.torch_order import check_torch_seed, generator_of, random_order
from feedline.errors import CursorFormatError, InvalidValueError, check_integer
from feedline.plan import Block, Deal, Place, Plan, Remaining
from feedline.plan.apportion import check_temperature, check_weights
from feedline.plan.frozen import store
from feedline.plan.shares import Share
from feedline.words import one_line

Indices = NDArray[np.int64]


@one_line
@dataclass(frozen=True, kw_only=True)
class TorchMixturePlan(Plan):
    """Each rank draws from its own part of every source, so the world size is fixed in an epoch."""

    sizes: Sequence[int]
    weights: Sequence[float]
    temperature: float = 1.0
    shuffle: bool = True
    drop_last: bool = True
    seed: int = 0
    override: tuple[tuple[float, ...], float] | None = None

    def __post_init__(self) -> None:
        sizes = enumerate(self.sizes)
        store(self, sizes=tuple(check_integer(f"sizes[{i}]", size, 0) for i, size in sizes))
        store(
            self,
            weights=check_weights(self.weights, len(self.sizes)),
            temperature=check_temperature(self.temperature),
            seed=check_torch_seed(self.seed),
        )

    @property
    def num_indices(self) -> int:
        return sum(self.sizes)

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float]:
        return self.override or (tuple(self.weights), self.temperature)

    def reweighted(
        self, weights: Sequence[float], temperature: float, *, epoch: int, position: int
    ) -> TorchMixturePlan:
        """Return this plan with other weights from the start of the epoch."""
        checked = check_weights(weights, len(self.sizes))
        return replace(self, override=(checked, check_temperature(temperature)))

    @property
    def changes(self) -> tuple[Mapping[str, Any], ...]:
        if self.override is None:
            return ()
        return ({"weights": list(self.override[0]), "temperature": self.override[1]},)

    def with_changes(self, changes: tuple[Mapping[str, Any], ...]) -> TorchMixturePlan:
        plan = replace(self, override=None)
        for change in changes:
            if set(change) != {"weights", "temperature"}:
                raise CursorFormatError(f"the cursor's change {dict(change)} is not of this order")
            plan = plan.reweighted(**change, epoch=0, position=0)
        return plan

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch mixture",
            "sizes": list(self.sizes),
            "weights": list(self.weights),
            "temperature": self.temperature,
            "shuffle": bool(self.shuffle),
            "drop_last": bool(self.drop_last),
            "seed": self.seed,
        }

    def begin(self, epoch: int) -> Remaining:
        return _Rest(self, epoch, None, 0)

    def counts(self, world_size: int) -> list[int]:
        """Return how many samples of each source a rank draws in an epoch."""
        rank_sizes = self.rank_sizes(world_size)
        total = sum(rank_sizes)
        probabilities = _probabilities(*self.weights_now)
        counts = [round(p * total) for p in probabilities]
        by_weight = sorted(range(len(counts)), key=lambda i: -probabilities[i])
        turn = 0
        while sum(counts) != total:
            counts[by_weight[turn % len(counts)]] += 1 if sum(counts) < total else -1
            turn += 1
        for source, size in enumerate(self.sizes):
            if size and counts[source] > 0 and not rank_sizes[source]:
                raise InvalidValueError(
                    f"sizes[{source}]={size} must be at least world_size={world_size} with "
                    "drop_last=True; use drop_last=False, or order='feedline'"
                )
        # An empty source draws nothing, for any target.
        return [max(0, n) if size else 0 for n, size in zip(counts, self.sizes, strict=True)]

    def rank_sizes(self, world_size: int) -> list[int]:
        """Return how many samples of each source belong to one rank."""
        if self.drop_last:
            return [size // world_size for size in self.sizes]
        return [-(-size // world_size) for size in self.sizes]

    def rank_list(self, epoch: int, rank: int, world_size: int) -> Indices:
        """Return everything that one rank draws in an epoch."""
        generator = generator_of(self.seed, epoch)
        starts = [0, *accumulate(self.sizes)]
        parts = []
        counts, rank_sizes = self.counts(world_size), self.rank_sizes(world_size)
        for source, (count, rank_size) in enumerate(zip(counts, rank_sizes, strict=True)):
            if count == 0:
                continue
            size = self.sizes[source]
            order = random_order(size, generator) if self.shuffle else np.arange(size)
            own = np.resize(order, rank_size * world_size)[rank::world_size]
            parts.append(np.resize(own, count) + starts[source])
        drawn = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return drawn[random_order(len(drawn), generator)] if self.shuffle else drawn


def _probabilities(weights: Sequence[float], temperature: float) -> list[float]:
    if temperature != 1.0:
        logs = [math.log(max(weight, 1e-12)) / temperature for weight in weights]
        largest = max(logs)
        weights = [math.exp(log - largest) for log in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


@dataclass(frozen=True)
class _Rest:
    """What is left when every rank has drawn `num_done` samples on `world_size` ranks."""

    plan: TorchMixturePlan
    epoch: int
    world_size: int | None
    num_done: int

    @property
    def num_left(self) -> int:
        if self.world_size is None:
            return sum(self.plan.sizes)
        return (sum(self.plan.counts(self.world_size)) - self.num_done) * self.world_size

    def deal(self, world_size: int, batch_size: int) -> Deal:
        if self.num_done and world_size != self.world_size:
            raise InvalidValueError(
                f"world_size={world_size} must be {self.world_size}, as before in this epoch: a "
                "mixture with order='torch' cannot change its ranks within an epoch; change the "
                "ranks between epochs, or use order='feedline'"
            )
        return _Deal(self, world_size, batch_size)


class _Deal:
    """The lists of all ranks, each made when it is first asked for."""

    num_dropped = 0
    num_padded = 0

    def __init__(self, rest: _Rest, world_size: int, batch_size: int) -> None:
        self._rest = rest
        self._world_size = world_size
        per_rank = sum(rest.plan.counts(world_size)) - rest.num_done
        self._share = Share(
            num_positions=per_rank, world_size=1, batch_size=batch_size, tail="pad_ranks"
        )
        self.num_batches = self._share.num_batches
        self._list_of = lru_cache(maxsize=2)(
            lambda rank: rest.plan.rank_list(rest.epoch, rank, world_size)
        )

    def block(self, rank: int, start: int, stop: int) -> Block:
        first, end = self._share.span(0, start, stop)
        drawn = self._list_of(rank)[self._rest.num_done + first : self._rest.num_done + end]
        return Block(first=start, indices=drawn, bounds=self._share.bounds(0, start, stop))

    def num_real(self, start: int, stop: int) -> int:
        return self._world_size * self._share.num_real_of_all(start, stop)

    def after(self, num_batches: int) -> Remaining:
        consumed = self._share.num_consumed(num_batches)
        return replace(
            self._rest, world_size=self._world_size, num_done=self._rest.num_done + consumed
        )

    def find(self, index: int) -> list[Place]:
        return [
            self._share.place(0, entry - self._rest.num_done, is_real=True)._replace(rank=rank)
            for rank in range(self._world_size)
            for entry in np.flatnonzero(self._list_of(rank) == index).tolist()
            if entry >= self._rest.num_done
        ]
