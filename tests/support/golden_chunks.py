"""What the golden vectors hold about chunks: drawn orders, rounds, and the requests of samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.chunks import (
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from feedline.plan import EqualChunks, Order, Plan, RoundsPlan, UnequalChunks, WindowOrder
from feedline.plan.drawn import ClassDraws, DrawnOrder

__all__ = ["CHUNK_ORDERS", "CHUNK_PLANS", "NUM_ROWS", "SAMPLERS"]

NUM_ROWS = 203
LABELS = np.repeat(["b", "a", "c", "a"], [60, 50, 53, 40])


def _classes(num_drawn: int, seed: int | str) -> ClassDraws:
    return ClassDraws(
        num_samples=1000,
        run_starts=np.array([0, 100, 350, 700]),
        run_lengths=np.array([100, 250, 300, 8]),
        run_classes=np.array([1, 0, 2, 1]),
        weights=np.array([1.0, 3.0, 0.1]),
        num_drawn=num_drawn,
        chunk_size=8,
        group_size=24,
        window_size=48,
        seed=seed,
    )


def _windows(**options: Any) -> WindowOrder:
    return WindowOrder(chunks=EqualChunks(num_samples=1003, chunk_size=10), preload=4, **options)


CHUNK_ORDERS: dict[str, Order] = {
    "drawn": DrawnOrder(num_samples=1000, num_drawn=777, chunk_size=8, preload=4, seed=1),
    "drawn text seed": DrawnOrder(num_samples=50, num_drawn=500, chunk_size=50, seed="run"),
    "drawn short": DrawnOrder(num_samples=9, num_drawn=5, chunk_size=100, preload=3),
    "drawn huge": DrawnOrder(
        num_samples=10**12, num_drawn=10**13, chunk_size=999, preload=16, seed=-5
    ),
    "class draws": _classes(1000, seed=1),
    "class draws huge": _classes(10**12, seed="run"),
    "windows keep last": _windows(keep_last=True, seed=1),
    "windows limit": _windows(limit=401, seed=1),
    "windows keep last limit": _windows(keep_last=True, limit=1001),
    "windows in order limit": _windows(shuffle=False, limit=401),
    "windows unequal limit": WindowOrder(
        chunks=UnequalChunks([5, 0, 90, 33, 1, 47]), keep_last=True, limit=150, seed=2
    ),
    "windows huge keep last": WindowOrder(
        chunks=EqualChunks(num_samples=10**12, chunk_size=999), preload=16, keep_last=True
    ),
}

CHUNK_PLANS: dict[str, Plan] = {
    "rounds drop": RoundsPlan(order=_windows(keep_last=True, seed=1)),
    "rounds pad": RoundsPlan(order=_windows(limit=401), tail="pad"),
    "rounds even": RoundsPlan(order=_windows(keep_last=True, limit=202), tail="even"),
    "rounds drawn": RoundsPlan(
        order=DrawnOrder(num_samples=90, num_drawn=200, chunk_size=8, preload=2), tail="even"
    ),
    "rounds class draws": RoundsPlan(order=_classes(200, seed=3), tail="even"),
}


def _inner(**options: Any) -> RandomSampler:
    return RandomSampler(8, 3, 6, rng=7, **options)


def _class_sampler(**options: Any) -> ClassSampler:
    return ClassSampler(4, 6, 6, classes=LABELS, num_samples=150, rng=7, **options)


def _of_rank(inner: Sampler, shards: str, **options: Any) -> DistributedSampler:
    return DistributedSampler(inner, dist_info=lambda: (1, 3), shards=shards, **options)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(8, 3, 6),
    "random": _inner,
    "random text seed": lambda: RandomSampler(8, 3, 6, rng="run"),
    "random mask": lambda: _inner(mask=slice(11, 150), drop_last=True),
    "random num_samples": lambda: _inner(num_samples=100),
    "random replacement": lambda: _inner(replacement=True),
    "random replacement num_samples": lambda: _inner(
        replacement=True, num_samples=301, mask=slice(11, None)
    ),
    "classes": _class_sampler,
    "classes weights": lambda: _class_sampler(class_weights=[1, 0, 2.5], mask=slice(11, 190)),
    "contiguous": lambda: _of_rank(_inner(), "contiguous"),
    "contiguous unequal": lambda: _of_rank(
        _inner(mask=slice(11, None)), "contiguous", enforce_equal_batches=False
    ),
    "contiguous replacement": lambda: _of_rank(_inner(replacement=True), "contiguous"),
    "contiguous classes": lambda: _of_rank(_class_sampler(), "contiguous"),
    "windows": lambda: _of_rank(_inner(), "windows"),
    "windows mask": lambda: _of_rank(_inner(mask=slice(11, None), drop_last=True), "windows"),
    "windows replacement": lambda: _of_rank(_inner(replacement=True), "windows"),
    "windows classes": lambda: _of_rank(_class_sampler(), "windows"),
}
