"""What a config says about its data, as a plan: exactly one kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from feedline.errors import InvalidValueError
from feedline.feed.gathering import chunking_of
from feedline.plan import (
    EqualChunks,
    Mixture,
    Order,
    Phase,
    SamplePlan,
    Sequential,
    Shuffled,
    WindowPlan,
)
from feedline.plan.permutation import MAX_SIZE
from feedline.runs.run_config_buckets import read_buckets, read_lengths
from feedline.runs.run_config_keys import Keys, named
from feedline.runs.run_config_parts import (
    PlannedData,
    Settings,
    SourceInfo,
    path_of,
    sources_of,
)
from feedline.store import FolderStore

__all__ = ["DATA_KINDS", "read_data"]

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
    return PlannedData(kind="samples", plan=plan, sources=(SourceInfo("data", num_samples, 0),))


def _read_mixture(keys: Keys, settings: Settings) -> PlannedData:
    listed = keys.sections("mixture", ("name", "samples", "weight"))
    sources = sources_of(listed)
    weights = [source.weight("weight", 1.0) for source in listed]
    phases = [_phase_of(phase, sources) for phase in _phase_sections(keys)]
    temperature = keys.positive("temperature", 1.0)
    epoch_size = keys.optional_integer("epoch_size", 1)
    is_stopping = keys.flag("stop", False)
    with named("data.mixture"):
        mixture = Mixture(
            sizes=[source.num_samples for source in sources],
            weights=weights,
            temperature=temperature,
            epoch_size=epoch_size,
            strategy="stop" if is_stopping else "repeat",
            phases=phases,
            shuffle=settings.shuffle,
            seed=settings.seed,
        )
    plan = SamplePlan(order=mixture, tail=settings.tail)
    return PlannedData(kind="mixture", plan=plan, sources=sources)


def _phase_sections(keys: Keys) -> list[Keys]:
    if "phases" not in keys:
        return []
    return keys.sections("phases", ("weights", "epoch", "position", "temperature"))


def _phase_of(keys: Keys, sources: tuple[SourceInfo, ...]) -> Phase:
    names = tuple(source.name for source in sources)
    given = keys.needed("weights")
    if isinstance(given, Mapping):
        by_name = Keys(keys.at("weights"), given, names)
        weights = [by_name.weight(name, 0.0) for name in names]
    else:
        weights = keys.weights("weights")
    position = keys.integer("position", 0, 0)
    epoch = keys.integer("epoch", 0, 0)
    temperature = keys.positive("temperature", 1.0)
    with named(keys.path):
        return Phase(weights=weights, epoch=epoch, position=position, temperature=temperature)


def _read_folder(keys: Keys, settings: Settings) -> PlannedData:
    path = path_of(keys, "folder", settings.folder)
    store = FolderStore(path)
    with named("data.folder"):
        plan = _window_plan(keys, settings, chunking_of(store))
        num_bytes = sum(column.row_bytes for column in store.columns.values())
    sources = (SourceInfo(path.resolve().name, store.num_samples, 0),)
    return PlannedData(
        kind="folder", plan=plan, sources=sources, store=store, bytes_per_sample=num_bytes
    )


def _read_chunks(keys: Keys, settings: Settings) -> PlannedData:
    inner = Keys("data.chunks", keys.needed("chunks"), ("num_chunks", "chunk_size", "preload"))
    chunk_size = inner.integer("chunk_size", 1, high=MAX_SIZE)
    num_chunks = inner.integer("num_chunks", 1, high=MAX_SIZE // chunk_size)
    chunks = EqualChunks(num_samples=num_chunks * chunk_size, chunk_size=chunk_size)
    plan = _window_plan(inner, settings, chunks)
    return PlannedData(
        kind="chunks", plan=plan, sources=(SourceInfo("data", chunks.num_samples, 0),)
    )


def _window_plan(keys: Keys, settings: Settings, chunks: Any) -> WindowPlan:
    return WindowPlan(
        chunks=chunks,
        preload=keys.integer("preload", 1, 1, high=MAX_SIZE),
        shuffle=settings.shuffle,
        tail=settings.tail,
        seed=settings.seed,
    )


_READERS = {
    "samples": _read_samples,
    "mixture": _read_mixture,
    "buckets": read_buckets,
    "lengths": read_lengths,
    "folder": _read_folder,
    "chunks": _read_chunks,
}
