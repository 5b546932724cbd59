"""The data section of a config, as a plan: exactly one kind of data."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import InvalidValueError, StoreError
from feedline.feed.gathering import chunking_of
from feedline.plan import (
    Bucket,
    BucketPlan,
    Chunking,
    CostBatch,
    EqualChunks,
    Mixture,
    Order,
    Phase,
    Plan,
    SamplePlan,
    Sequential,
    Shuffled,
    WindowPlan,
)
from feedline.plan.permutation import MAX_SIZE
from feedline.plan.seeds import Seed
from feedline.runs.run_config_keys import Keys, named
from feedline.store import FolderStore
from feedline.store.npy_chunk import open_npy

# Each kind of data, and the keys that go with it.
DATA_KINDS: dict[str, tuple[str, ...]] = {
    "samples": (),
    "mixture": ("phases", "stop", "temperature", "epoch_size"),
    "buckets": ("mode",),
    "lengths": ("edges", "num_buckets", "token_budget", "mode"),
    "folder": ("preload",),
    "chunks": (),
}
_COMPANIONS = dict.fromkeys(key for keys in DATA_KINDS.values() for key in keys)
_ALL_KEYS = (*DATA_KINDS, *_COMPANIONS, "bytes_per_sample")


class SourceInfo(NamedTuple):
    """A named part of the data; its indices begin at `first_index`."""

    name: str
    num_samples: int
    first_index: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in a config other than `data`."""

    seed: Seed
    tail: str
    shuffle: bool
    batch_size: int | None
    folder: Path


@dataclass(frozen=True, kw_only=True)
class PlannedData:
    """The plan for some data, and facts about the data."""

    kind: str
    plan: Plan
    sources: tuple[SourceInfo, ...]
    store: FolderStore | None = None
    bytes_per_sample: int | None = None
    token_budget: int | None = None


def sources_from(sizes: Iterable[tuple[str, int]]) -> tuple[SourceInfo, ...]:
    """Return sources of these names and sizes, one after another.

    Examples:
        >>> sources_from([("web", 10), ("books", 5)])[1]
        SourceInfo(name='books', num_samples=5, first_index=10)
    """
    sources, first = [], 0
    for name, num_samples in sizes:
        sources.append(SourceInfo(name, num_samples, first))
        first += num_samples
    return tuple(sources)


def read_data(data: Any, settings: Settings) -> PlannedData:
    """Return the plan for the section `data` of a config."""
    every = Keys("data", data, _ALL_KEYS)
    kinds = [kind for kind in DATA_KINDS if kind in every]
    if len(kinds) != 1:
        given = " and ".join(f"data.{kind}" for kind in kinds) or "none"
        raise InvalidValueError(f"data must have one of {', '.join(DATA_KINDS)}; it has {given}")
    kind = kinds[0]
    keys = Keys("data", data, (kind, *DATA_KINDS[kind], "bytes_per_sample"))
    planned = _READERS[kind](keys, settings)
    num_bytes = keys.optional_integer("bytes_per_sample", 0)
    return planned if num_bytes is None else replace(planned, bytes_per_sample=num_bytes)


def _read_samples(keys: Keys, settings: Settings) -> PlannedData:
    num_samples = keys.integer("samples", 1, high=MAX_SIZE)
    order: Order = Sequential(num_samples=num_samples)
    if settings.shuffle:
        order = Shuffled(num_samples=num_samples, seed=settings.seed)
    plan = SamplePlan(order=order, tail=settings.tail)
    return PlannedData(kind="samples", plan=plan, sources=sources_from([("data", num_samples)]))


def _read_mixture(keys: Keys, settings: Settings) -> PlannedData:
    listed = keys.sections("mixture", ("name", "samples", "weight"))
    sources = _named_sources(listed)
    options: dict[str, Any] = {
        "weights": [source.weight("weight", 1.0) for source in listed],
        "phases": list(_phases_of(keys, tuple(source.name for source in sources))),
        "temperature": keys.positive("temperature", 1.0),
        "epoch_size": keys.optional_integer("epoch_size", 1),
        "strategy": "stop" if keys.flag("stop", False) else "repeat",
    }
    with named("data.mixture"):
        mixture = Mixture(
            sizes=[source.num_samples for source in sources],
            shuffle=settings.shuffle,
            seed=settings.seed,
            **options,
        )
    plan = SamplePlan(order=mixture, tail=settings.tail)
    return PlannedData(kind="mixture", plan=plan, sources=sources)


def _phases_of(keys: Keys, names: tuple[str, ...]) -> Iterable[Phase]:
    known = ("weights", "epoch", "position", "temperature")
    for phase in keys.sections("phases", known) if "phases" in keys else []:
        options: dict[str, Any] = {
            "weights": phase.weights("weights", names),
            "position": phase.integer("position", 0, 0),
            "epoch": phase.integer("epoch", 0, 0),
            "temperature": phase.positive("temperature", 1.0),
        }
        with named(phase.path):
            yield Phase(**options)


def _read_buckets(keys: Keys, settings: Settings) -> PlannedData:
    """Return the plan for buckets whose sizes are given."""
    listed = keys.sections("buckets", ("name", "samples", "batch_size"))
    sources = _named_sources(listed)
    sizes = [bucket.optional_integer("batch_size", 1, 2**31) for bucket in listed]
    options: dict[str, Any] = {}
    if any(size is not None for size in sizes):
        if settings.batch_size is None:
            raise InvalidValueError("batch_size is missing; add it to the config")
        together = settings.batch_size
        options["rule"] = CostBatch([_cost_of(together, size or together) for size in sizes])
    with named("data.buckets"):
        buckets = [Bucket(name, range(first, first + size)) for name, size, first in sources]
        plan = _bucket_plan(keys, settings, buckets=buckets, **options)
    return PlannedData(kind="buckets", plan=plan, sources=sources)


def _cost_of(batch_size: int, wanted: int) -> float:
    """Return the cost at which a bucket gets `wanted` samples when others get `batch_size`."""
    cost = batch_size / wanted
    if math.floor(batch_size / Fraction(cost)) < wanted:
        cost = math.nextafter(cost, 0)
    return cost


def _read_lengths(keys: Keys, settings: Settings) -> PlannedData:
    """Return the plan for buckets of samples whose lengths are in a file."""
    path = _path_of(keys, "lengths", settings.folder)
    budget = keys.optional_integer("token_budget", 1, 2**31)
    edges = keys.entries("edges") if "edges" in keys else None
    num_buckets = keys.optional_integer("num_buckets", 1)
    if edges is not None and not all(type(edge) is int for edge in edges):
        raise InvalidValueError("data.edges must be an increasing list of integers")
    lengths = _load_lengths(path)
    batch_by = "samples" if budget is None else "tokens"
    with named("data.lengths"):
        cut = BucketPlan.from_lengths(
            lengths, edges=edges, num_buckets=num_buckets, batch_by=batch_by
        )
        plan = _bucket_plan(keys, settings, buckets=cut.buckets, rule=cut.rule)
    sources = sources_from([(path.stem, len(lengths))])
    return PlannedData(kind="lengths", plan=plan, sources=sources, token_budget=budget)


def _load_lengths(path: Path) -> Any:
    if not path.exists():
        raise InvalidValueError(f"data.lengths: {path}: does not exist; use a .npy file of lengths")
    if path.is_dir():
        raise InvalidValueError(f"data.lengths: {path}: must be a .npy file with one array")
    try:
        return open_npy(path).arrays["data"]
    except StoreError as error:
        raise InvalidValueError(f"data.lengths: {error}") from None


def _bucket_plan(keys: Keys, settings: Settings, **options: Any) -> BucketPlan:
    mode, shuffle = keys.choice("mode", ("sequential", "interleaved")), settings.shuffle
    options |= {"mode": mode, "shuffle_buckets": shuffle, "shuffle_within": shuffle}
    return BucketPlan(tail=settings.tail, seed=settings.seed, **options)


def _read_folder(keys: Keys, settings: Settings) -> PlannedData:
    path = _path_of(keys, "folder", settings.folder)
    store = FolderStore(path)
    with named("data.folder"):
        plan = _window_plan(keys, settings, chunking_of(store))
        num_bytes = sum(column.row_bytes for column in store.columns.values())
    sources = sources_from([(path.resolve().name, store.num_samples)])
    return PlannedData(
        kind="folder", plan=plan, sources=sources, store=store, bytes_per_sample=num_bytes
    )


def _read_chunks(keys: Keys, settings: Settings) -> PlannedData:
    inner = Keys("data.chunks", keys.needed("chunks"), ("num_chunks", "chunk_size", "preload"))
    chunk_size = inner.integer("chunk_size", 1, high=MAX_SIZE)
    num_samples = inner.integer("num_chunks", 1, high=MAX_SIZE // chunk_size) * chunk_size
    chunks = EqualChunks(num_samples=num_samples, chunk_size=chunk_size)
    plan = _window_plan(inner, settings, chunks)
    return PlannedData(kind="chunks", plan=plan, sources=sources_from([("data", num_samples)]))


def _window_plan(keys: Keys, settings: Settings, chunks: Chunking) -> WindowPlan:
    return WindowPlan(
        chunks=chunks,
        preload=keys.integer("preload", 1, 1, high=MAX_SIZE),
        shuffle=settings.shuffle,
        tail=settings.tail,
        seed=settings.seed,
    )


def _named_sources(listed: list[Keys]) -> tuple[SourceInfo, ...]:
    """Return the sources in a list; their names must be unique."""
    sizes: dict[str, int] = {}
    for keys in listed:
        name, num_samples = keys.text("name"), keys.integer("samples", 0, high=MAX_SIZE)
        if name in sizes:
            raise InvalidValueError(f"{keys.at('name')}={name!r:.80} appears twice; rename one")
        sizes[name] = num_samples
    return sources_from(sizes.items())


def _path_of(keys: Keys, key: str, folder: Path) -> Path:
    """Return a path of the config, relative to the config's folder and inside it, or absolute."""
    given = Path(keys.text(key))
    if not given.is_absolute() and os.path.normpath(given).split(os.sep)[0] == os.pardir:
        raise InvalidValueError(
            f"{keys.at(key)}={str(given)!r} must not be outside {folder}; use an absolute path"
        )
    return folder / given


_READERS = {
    "samples": _read_samples,
    "mixture": _read_mixture,
    "buckets": _read_buckets,
    "lengths": _read_lengths,
    "folder": _read_folder,
    "chunks": _read_chunks,
}
