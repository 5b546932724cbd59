"""The plan of a loader that reads a store: a full or windowed shuffle, or the user's plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.feed.gathering import chunking_of
from feedline.plan import Order, Plan, SamplePlan, Sequential, Shuffled, WindowPlan
from feedline.plan.seeds import Seed
from feedline.store import Store
from feedline.words import several

TAILS = ("drop", "pad", "even", "exact")
_CHUNKS = re.compile(r"(\d+) chunks?")


def plan_for_store(
    store: Store,
    *,
    shuffle: bool,
    sampler: Plan | Order | None,
    window: int | str | None,
    seed: Seed | None,
    tail: str | None,
    drop_last: bool,
) -> Plan:
    """Return the order of the samples, from the arguments of a loader.

    Examples:
        >>> import numpy as np
        >>> from feedline.store import MemoryMatrix, MatrixSamples
        >>> store = MatrixSamples(MemoryMatrix(np.zeros((100, 2))), chunk_rows=10)
        >>> options = {"sampler": None, "seed": 7, "tail": None, "drop_last": False}
        >>> plan_for_store(store, shuffle=True, window="4 chunks", **options).preload
        4
    """
    if sampler is not None:
        given = {"shuffle": shuffle or None, "window": window, "seed": seed}
        return plan_given(sampler, store.num_samples, tail=tail, drop_last=drop_last, given=given)
    tail = tail_named(tail, drop_last)
    seed = 0 if seed is None else seed
    if window is None:
        order = Shuffled if shuffle else Sequential
        options = {"seed": seed} if shuffle else {}
        return SamplePlan(order=order(num_samples=store.num_samples, **options), tail=tail)
    if not shuffle:
        raise InvalidValueError(
            f"window={window!r:.80} shuffles within a window, so it needs shuffle=True"
        )
    preload = _num_chunks(window, store)
    return WindowPlan(chunks=chunking_of(store), preload=preload, tail=tail, seed=seed)


def plan_given(
    sampler: Any, num_samples: int, *, tail: str | None, drop_last: bool, given: Mapping[str, Any]
) -> Plan:
    """Return the plan that a user gave as a sampler; an order becomes a plan with this tail.

    It must be a plan for this number of samples, unless it selects some of them.
    """
    for name, value in given.items():
        if value is not None:
            raise InvalidValueError(
                f"{name}={value!r:.80} cannot be used when sampler is a plan: the plan decides it"
            )
    if isinstance(sampler, Order):
        plan: Plan = SamplePlan(order=sampler, tail=tail_named(tail, drop_last))
        return check_fitting(plan, num_samples)
    if not isinstance(sampler, Plan):
        raise InvalidValueError(
            f"sampler={sampler!r:.80} must be a plan or an order, such as "
            "feedline.SamplePlan(order=feedline.Shuffled(num_samples=1000))"
        )
    if tail is not None or drop_last:
        named = f"tail={tail!r}" if tail is not None else "drop_last=True"
        raise InvalidValueError(
            f"{named} cannot be used when sampler is a plan; pass it to the plan, as tail=..."
        )
    return check_fitting(sampler, num_samples)


def check_fitting(plan: Plan, num_samples: int, what: str = "plan") -> Plan:
    """Return a plan, or raise if it is for another number of samples than the data has.

    A plan for fewer samples would skip the others silently.

    Args:
        plan: The plan.
        num_samples: The number of samples of the data.
        what: What the plan was given as.
    """
    fits = plan.num_indices == num_samples or (plan.is_selection and plan.num_indices < num_samples)
    if not fits:
        remedy = f"make it for {num_samples:,}"
        if plan.num_indices < num_samples:
            remedy += f", or select some with feedline.Subset(range({plan.num_indices}))"
        raise InvalidValueError(
            f"the {what} is for {several(plan.num_indices, 'sample')} but the data has "
            f"{num_samples:,}; {remedy}"
        )
    return plan


def tail_named(tail: str | None, drop_last: bool) -> str:
    """Return the tail policy; the default delivers every sample, and repeats some only if ranks
    would be empty."""
    if tail is None:
        return "drop" if drop_last else "even"
    if drop_last and tail != "drop":
        raise InvalidValueError(f"drop_last=True means tail='drop', but tail={tail!r:.80}")
    return check_choice("tail", tail, TAILS)


def _num_chunks(window: int | str, store: Store) -> int:
    """Return the number of chunks in a window; a number of samples is rounded up to whole
    chunks."""
    num_chunks = len(store.chunk_sizes)
    if isinstance(window, str):
        found = _CHUNKS.fullmatch(window.strip())
        if found is None or int(found[1]) < 1:
            raise InvalidValueError(
                f"window={window!r:.80} must be a number of samples, such as 100_000, or of "
                "chunks, such as '8 chunks'"
            )
        return min(int(found[1]), num_chunks)
    # The last chunk is often short; the median chunk is like most.
    chunk_size = max(1, int(np.median(store.chunk_sizes)))
    return min(num_chunks, -(-check_integer("window", window, 1) // chunk_size))
