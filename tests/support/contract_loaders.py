"""Every loader of the project, as the contract suite makes it: one rank of some, in some batches.

A new loader joins the suite by an entry in `KINDS`. Samples are their own indices, so what a batch
holds can be read off it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from bucket_data import BucketData
from feedline.chunks import DistributedSampler as SharedChunks
from feedline.chunks import RandomSampler
from feedline.feed import ChunkLoader, Feed, Loader, chunking_of
from feedline.feed import DataLoader as NumpyLoader
from feedline.plan import (
    BucketPlan,
    Concatenated,
    Mixture,
    Plan,
    SamplePlan,
    Shuffled,
    Weighted,
    WindowPlan,
)
from feedline.runs import ConsumptionLog, LoggedLoader
from feedline.store import FolderStore, MemoryMatrix, pack
from feedline.torch import (
    BucketBatchSampler,
    DataLoader,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
    MixtureSampler,
    OnDevice,
    SequentialBucketSampler,
    to_device,
)
from feedline.torch import ChunkLoader as TorchChunkLoader
from loader_data import Ids
from object_server import S3Server
from store_formats import FORMATS, ids_in, open_format, write_formats

__all__ = ["DEVICE", "KINDS", "NUM_SAMPLES", "Kind", "make_data", "serve_data"]

NUM_SAMPLES = 61
#: The device of the loaders that have one: a GPU where there is one to test with.
DEVICE = os.environ.get("FEEDLINE_TEST_DEVICE", "cpu")


def make_data(folder: Path) -> Path:
    """Write the folder that some of the loaders read."""
    rows = np.arange(NUM_SAMPLES)[:, None] + np.zeros(3, dtype=np.int64)
    columns = {"x": rows[:, 0], "sequences/item": rows, "targets/item": rows}
    pack(columns, folder, chunk_samples=13)
    write_formats(_formats_of(folder), NUM_SAMPLES)
    return folder


def _formats_of(folder: Path) -> Path:
    """Where the stores of every kind lie."""
    return folder.parent / "formats"


def serve_data(folder: Path, server: S3Server) -> None:
    """Put the folder on a server, and note beside it where it is."""
    server.make_bucket("bucket")
    for path in folder.rglob("*"):
        if path.is_file():
            server.put("bucket", f"data/{path.relative_to(folder)}", path.read_bytes())
    (folder.parent / "served.json").write_text(json.dumps(server.options()))


Make = Callable[..., Loader[Any]]


@dataclass(frozen=True)
class Kind:
    """One kind of loader.

    Args:
        make: Called with the data's folder, world size, rank, batch size and one of `variants`.
        ids_of: The samples that a batch itself shows.
        variants: Arguments that must not change what comes: workers, threads.
        drops: Whether the tail of an epoch may be dropped.
        repeats: Whether a sample may come several times in an epoch, as in a mixture.
        is_slow: Whether it is left to the slow tests, because another one is much like it.
    """

    make: Make
    ids_of: Callable[[Any], Sequence[int]]
    variants: tuple[dict[str, Any], ...] = ({},)
    drops: bool = False
    repeats: bool = False
    is_slow: bool = False
    sizes: tuple[int, ...] = field(default=(1, 2, 4, 7, 32))


def _tensor(batch: Any) -> list[int]:
    return [int(value) for value in batch]


def _array(batch: Any) -> list[int]:
    return [int(value) for value in batch.arrays["x"]]


def _folder_item(batch: Any) -> list[int]:
    return [int(value) for value in batch[0]["item"][:, 0]]


def _rows(batch: Any) -> list[int]:
    return [int(value) for value in np.asarray(batch.X)[:, 0]]


def _feed(plan: Callable[[FolderStore], Plan]) -> Make:
    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Feed:
        store = FolderStore(folder).select(["x"])
        sizes = {"world_size": world_size, "rank": rank, "batch_size": batch_size}
        return Feed(store, plan(store), **sizes, **variant)

    return make


def _samples(tail: str) -> Callable[[FolderStore], Plan]:
    return lambda store: SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=5), tail=tail)


def _windows(store: FolderStore) -> Plan:
    return WindowPlan(chunks=chunking_of(store), preload=2, tail="even", seed=5)


def _buckets(store: FolderStore) -> Plan:
    groups = {0: range(0, 40), 1: range(40, NUM_SAMPLES)}
    return BucketPlan.from_groups(groups, mode="interleaved", tail="even", seed=5)


def _mixture(store: FolderStore) -> Plan:
    return SamplePlan(order=Mixture(sizes=[41, 20], weights=[1, 1], seed=5), tail="even")


def _own(**options: Any) -> Make:
    def make(
        folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
    ) -> DataLoader[Any]:
        ranks = {"num_replicas": world_size, "rank": rank}
        given = {"shuffle": True, "seed": 5, **options, **variant}
        return DataLoader(Ids(NUM_SAMPLES), batch_size, **ranks, **given)

    return make


def _sampled(make_sampler: Callable[[int, int], Any], **options: Any) -> Make:
    def make(
        folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
    ) -> DataLoader[Any]:
        sampler = make_sampler(world_size, rank)
        return DataLoader(Ids(NUM_SAMPLES), batch_size, sampler=sampler, **options, **variant)

    return make


def _bucketed(make_sampler: Callable[[int, int, int], Any]) -> Make:
    def make(
        folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
    ) -> DataLoader[Any]:
        sampler = make_sampler(world_size, rank, batch_size)
        return DataLoader(Ids(NUM_SAMPLES), batch_sampler=sampler, **variant)

    return make


def _lengths(world_size: int, rank: int, batch_size: int) -> BucketBatchSampler:
    lengths = [1 + index % 9 for index in range(NUM_SAMPLES)]
    ranks = {"num_replicas": world_size, "rank": rank}
    return BucketBatchSampler(lengths, batch_size=batch_size, num_buckets=3, seed=5, **ranks)


def _resolutions(world_size: int, rank: int, batch_size: int) -> SequentialBucketSampler:
    data = BucketData([40, NUM_SAMPLES - 40])
    ranks = {"num_replicas": world_size, "rank": rank}
    return SequentialBucketSampler(data, batch_size, drop_last=False, seed=5, **ranks)


def _folder(
    folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
) -> DataLoader[Any]:
    config = FolderConfig(batch_size=batch_size, seed=5, preload=2)
    dataset = LazyFolderDataset(folder, config, num_replicas=world_size, rank=rank)
    return DataLoader(dataset, **variant)


def _store(loader: Any, name: str, **options: Any) -> Make:
    """A loader over a store of one kind; its batches are dicts, of which it knows no columns."""

    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
        store = open_format(_formats_of(folder), name)
        ranks = {"num_replicas": world_size, "rank": rank}
        given = {"shuffle": True, "seed": 5, **options, **variant}
        return loader(store, batch_size, **ranks, **given)

    return make


def _in_processes(**options: Any) -> Make:
    """A loader on a device, whose processes have started before it is used."""

    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
        loader = _store(DataLoader, "safetensors", device=DEVICE, **options)(
            folder, world_size, rank, batch_size, num_threads=1, reader_processes=1, **variant
        )
        before = loader.state_dict()
        next(iter(loader))
        while loader._feeder._readers is not None and not loader._feeder._readers.are_ready:
            time.sleep(0.005)
        loader.load_state_dict(before)
        return loader

    return make


def _served(loader: Any, **options: Any) -> Make:
    """A loader over the same folder on a server, through a cache."""

    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
        access = json.loads((folder.parent / "served.json").read_text())
        cache = {"cache_folder": folder.parent / "cache", "cache_limit": 2**20}
        store = feedline.open("s3://bucket/data", columns=["x"], storage_options=access, **cache)
        ranks = {"num_replicas": world_size, "rank": rank}
        given = {"shuffle": True, "seed": 5, **options, **variant}
        return loader(store, batch_size, **ranks, **given)

    return make


def _planned(order: Callable[[], Any]) -> Make:
    """A loader over the user's own dataset, in an order of the user's own."""

    def make(
        folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
    ) -> DataLoader[Any]:
        ranks = {"num_replicas": world_size, "rank": rank}
        return DataLoader(Ids(NUM_SAMPLES), batch_size, sampler=order(), **ranks, **variant)

    return make


def _halves() -> Any:
    sizes = (41, NUM_SAMPLES - 41)
    return Concatenated([Shuffled(num_samples=size, seed=5) for size in sizes])


def _half(tensors: Any) -> Any:
    """A transform that makes other tensors of a batch; the first column still shows the ids."""
    return {name: values.clone() for name, values in tensors.items()}


def _noted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A transform of single samples, which adds a random number to each."""
    return {**sample, "drawn": rng.random()}


def _chunks(loader: Callable[..., Any]) -> Make:
    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
        store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
        inner = RandomSampler(4, 4, batch_size, rng=5)
        sampler = SharedChunks(inner, dist_info=lambda: (rank, world_size), shards="windows")
        return loader(store, sampler, **variant)

    return make


class _Nowhere(ConsumptionLog):
    """A log that is thrown away."""

    def __init__(self) -> None:
        pass

    def _append(self, content: bytes) -> None:
        assert content


def _logged(
    folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any
) -> LoggedLoader:
    return LoggedLoader(_own()(folder, world_size, rank, batch_size, **variant), _Nowhere())


def _moved(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> OnDevice:
    return to_device(_own()(folder, world_size, rank, batch_size, **variant), DEVICE)


_THREADS = ({}, {"num_threads": 0}, {"num_threads": 3})
_WORKERS = ({}, {"num_workers": 2, "prefetch_factor": 3})

KINDS: dict[str, Kind] = {
    "feed": Kind(_feed(_samples("even")), _array, _THREADS),
    "feed, dropping": Kind(_feed(_samples("drop")), _array, _THREADS, drops=True, sizes=(1, 2, 4)),
    "feed, windows": Kind(_feed(_windows), _array, _THREADS),
    "feed, buckets": Kind(_feed(_buckets), _array, _THREADS),
    "feed, mixture": Kind(_feed(_mixture), _array, _THREADS, repeats=True),
    "torch": Kind(_own(), _tensor, _WORKERS),
    "torch, dropping": Kind(_own(drop_last=True), _tensor, drops=True, sizes=(1, 2, 4, 7)),
    "torch, logged": Kind(_logged, _tensor),
    "torch, sampler": Kind(
        _sampled(lambda *at: DistributedSampler(Ids(61), *at)), _tensor, drops=True
    ),
    "torch, mixture": Kind(
        _sampled(lambda *at: MixtureSampler([0, 41, 61], [1, 1], *at, drop_last=False)),
        *(_tensor, _WORKERS),
        repeats=True,
    ),
    "torch, lengths": Kind(_bucketed(_lengths), _tensor, _WORKERS),
    "torch, resolutions": Kind(_bucketed(_resolutions), _tensor),
    "torch, folder": Kind(_folder, _folder_item, _WORKERS),
    "chunks": Kind(
        *(_chunks(ChunkLoader), _rows, ({}, {"num_ahead": 3}, {"num_ahead": 0})),
        sizes=(1, 2, 4, 8),
    ),
    "torch, chunks": Kind(
        _chunks(TorchChunkLoader), _rows, ({}, {"num_workers": 2}), sizes=(1, 2, 4, 8)
    ),
    "store, windows": Kind(_store(NumpyLoader, "safetensors", window="2 chunks"), ids_in, _THREADS),
    "torch, store, windows": Kind(
        _store(DataLoader, "safetensors", window=26, transform=_half), ids_in, _WORKERS
    ),
    "store, samples": Kind(
        _store(NumpyLoader, "safetensors", sample_transform=_noted), ids_in, _THREADS
    ),
    "torch, store, samples": Kind(
        _store(DataLoader, "safetensors", sample_transform=_noted),
        *(ids_in, (*_THREADS, *_WORKERS)),
    ),
    "device, samples": Kind(
        _store(DataLoader, "safetensors", sample_transform=_noted, transform=_half, device=DEVICE),
        *(ids_in, (*_THREADS, *_WORKERS)),
        is_slow=True,
    ),
    "torch, store, dropping": Kind(
        _store(DataLoader, "npy-folder", drop_last=True), ids_in, drops=True, sizes=(1, 2, 4)
    ),
    "device, slabs": Kind(
        _store(DataLoader, "safetensors", device=DEVICE),
        *(ids_in, (*_THREADS, {"memory_budget": 2**14, "device_budget": 2**15})),
    ),
    "device, windows": Kind(
        _store(DataLoader, "npy-folder", device=DEVICE, window="2 chunks"),
        *(ids_in, (*_THREADS, {"device_budget": 2**15, "memory_budget": 2**14})),
    ),
    "device, processes": Kind(_in_processes(window="2 chunks"), ids_in, is_slow=True),
    "device, lists": Kind(
        _store(DataLoader, "lists-folder", device=DEVICE), ids_in, _WORKERS, is_slow=True
    ),
    "device, moved": Kind(_moved, _tensor, _WORKERS),
    "device, workers": Kind(_own(device=DEVICE), _tensor, _WORKERS, is_slow=True),
    "device, folder": Kind(
        _folder, _folder_item, ({"device": DEVICE}, {"device": DEVICE, "device_budget": 2**14})
    ),
    "remote": Kind(_served(NumpyLoader, window="2 chunks"), ids_in, _THREADS),
    "torch, remote": Kind(_served(DataLoader, window="2 chunks"), ids_in, _WORKERS),
    "torch, concatenation": Kind(_planned(_halves), _tensor, _WORKERS),
    "torch, weighted": Kind(
        _planned(lambda: Weighted(1 + np.arange(NUM_SAMPLES) % 7, replacement=False, seed=5)),
        _tensor,
    ),
    "torch, drawn by weight": Kind(
        _planned(lambda: Weighted(1 + np.arange(NUM_SAMPLES) % 7, seed=5)), _tensor, repeats=True
    ),
    **{
        f"store, {name}": Kind(
            *(_store(NumpyLoader, name), ids_in, _THREADS), is_slow=name != "table.parquet"
        )
        for name in FORMATS
    },
    **{
        f"torch, store, {name}": Kind(
            *(_store(DataLoader, name), ids_in, _WORKERS), is_slow=name != "table.parquet"
        )
        for name in FORMATS
    },
}
