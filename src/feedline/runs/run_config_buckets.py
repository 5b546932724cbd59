"""What a config says about buckets: by counts, or by the lengths of samples."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError
from feedline.plan import Bucket, BucketPlan, CostBatch
from feedline.runs.run_config_keys import Keys, named
from feedline.runs.run_config_parts import (
    PlannedData,
    Settings,
    SourceInfo,
    path_of,
    sources_of,
)

__all__ = ["read_buckets", "read_lengths"]

_MODES = ("sequential", "interleaved")


def read_buckets(keys: Keys, settings: Settings) -> PlannedData:
    """Return the plan for buckets whose sizes are given; nothing is listed."""
    listed = keys.sections("buckets", ("name", "samples", "batch_size"))
    sources = sources_of(listed)
    sizes = [bucket.optional_integer("batch_size", 1, 2**31) for bucket in listed]
    options: dict[str, Any] = {}
    if any(size is not None for size in sizes):
        if settings.batch_size is None:
            raise InvalidValueError("batch_size is missing; add it to the config")
        together = settings.batch_size
        options["rule"] = CostBatch([_cost_of(together, size or together) for size in sizes])
    with named("data.buckets"):
        buckets = [
            Bucket(name, range(first, first + num_samples)) for name, num_samples, first in sources
        ]
        plan = _bucket_plan(keys, settings, buckets=buckets, **options)
    return PlannedData(kind="buckets", plan=plan, sources=sources)


def _cost_of(batch_size: int, wanted: int) -> float:
    """Return the cost at which a bucket gets `wanted` samples where others get `batch_size`."""
    cost = batch_size / wanted
    if math.floor(batch_size / Fraction(cost)) < wanted:
        cost = math.nextafter(cost, 0)
    return cost


def read_lengths(keys: Keys, settings: Settings) -> PlannedData:
    """Return the plan for buckets of samples whose lengths are in a file."""
    path = path_of(keys, "lengths", settings.folder)
    budget = keys.optional_integer("token_budget", 1, 2**31)
    edges = keys.entries("edges") if "edges" in keys else None
    num_buckets = keys.optional_integer("num_buckets", 1)
    if edges is not None and not all(type(edge) is int for edge in edges):
        raise InvalidValueError("data.edges must be a list of integers that grows")
    lengths = _load_lengths(path)
    with named("data.lengths"):
        cut = BucketPlan.from_lengths(
            lengths,
            edges=edges,
            num_buckets=num_buckets,
            batch_by="samples" if budget is None else "tokens",
        )
        plan = _bucket_plan(keys, settings, buckets=cut.buckets, rule=cut.rule)
    sources = (SourceInfo(path.stem, len(lengths), 0),)
    return PlannedData(kind="lengths", plan=plan, sources=sources, token_budget=budget)


def _bucket_plan(keys: Keys, settings: Settings, **options: Any) -> BucketPlan:
    return BucketPlan(
        mode=keys.choice("mode", _MODES, "sequential"),
        shuffle_buckets=settings.shuffle,
        shuffle_within=settings.shuffle,
        tail=settings.tail,
        seed=settings.seed,
        **options,
    )


def _load_lengths(path: Path) -> Any:
    try:
        lengths = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InvalidValueError(
            f"data.lengths: {path}: there is no such file; give a .npy file of lengths"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise InvalidValueError(f"data.lengths: {path}: cannot be read ({error!s:.200})") from None
    if not isinstance(lengths, np.ndarray):
        raise InvalidValueError(f"data.lengths: {path}: must be a .npy file with one array")
    return lengths
