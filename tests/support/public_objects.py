"""An object of every public class, and some that are hard to show: long lists, names and paths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from anndata_data import make_anndata, write
from bucket_data import BucketData
from feedline import feed, packing, plan, report, runs, steps, store, torch
from feedline.chunks import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from feedline.chunks import Sampler as ChunkSampler
from feedline.packing import build_index
from zarr_data import write_anndata

__all__ = ["make_objects", "make_plans"]

NUM_SAMPLES = 1000
LONG = "long-name-" * 40


class OwnOrder(plan.Order):
    """An order of a user, without a `repr` of its own."""

    num_samples = 10

    def at(self, epoch: int) -> plan.EpochOrder:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {}


class OwnPlan(plan.Plan):
    """A plan of a user, without a `repr` of its own."""

    num_indices = 10

    def begin(self, epoch: int) -> plan.Remaining:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {}


class OwnStream:
    """An iterable dataset of a user, with a state."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class OwnChunkSampler(ChunkSampler):
    """A chunk sampler of a user, whose properties fail."""

    @property
    def batch_size(self) -> int:
        raise RuntimeError("not set up yet")

    shuffle = True

    def n_batches(self, n_obs: int) -> int:
        return 0

    def validate(self, n_obs: int) -> None:
        pass

    def _sample(self, n_obs: int) -> Iterator[Any]:
        return iter(())


class OwnLoader(feed.PlannedLoader):
    """A loader of a user, without a `repr` of its own."""

    def _batches(self, running: feed.Pass) -> Iterator[Any]:
        return iter(())


class OwnSampler(torch.PlanSampler[Any]):
    """A sampler of a user, without a `repr` of its own."""

    def _entries_of(self, block: plan.Block) -> list[Any]:
        return []


@dataclass(frozen=True)
class BadRule:
    """A rule whose `repr` fails."""

    def batch_size(self, bucket: int, batch_size: int) -> int:
        return batch_size

    def describe(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


def make_plans() -> list[Any]:
    """Return plans, orders and what they hand out."""
    shuffled = plan.Shuffled(num_samples=NUM_SAMPLES, seed=LONG)
    samples = plan.SamplePlan(order=shuffled, tail="even")
    lengths = np.arange(1, 5000)
    buckets = plan.BucketPlan.from_lengths(lengths, num_buckets=40)
    chunks = plan.UnequalChunks(np.arange(5000))
    windows = plan.WindowPlan(chunks=chunks, preload=4, seed=LONG)
    equal = plan.EqualChunks(num_samples=NUM_SAMPLES, chunk_size=10)
    mixture = plan.Mixture(
        sizes=[NUM_SAMPLES] * 50,
        weights=[1 / 3] * 50,
        phases=[plan.Phase(weights=[1.0] * 50, position=10)],
    )
    segment = samples.segment(world_size=2, batch_size=8)
    past = plan.PastSegment(2, 8, 7)
    replay = plan.Replay(plan=samples, world_size=3, batch_size=8, history=[past] * 1)
    rounds = plan.WindowOrder(chunks=equal, preload=2)
    return [
        *(shuffled, samples, buckets, buckets.buckets[0], chunks, windows, equal, mixture),
        *(mixture.phases[0], segment, segment.cursor(7), past, replay, rounds),
        plan.Bucket(key=LONG, members=range(10**9)),
        plan.BucketPlan(buckets=buckets.buckets, rule=BadRule()),
        plan.Concatenated([shuffled] * 100),
        plan.Sequential(num_samples=2**62),
        plan.Subset(np.arange(10**5)),
        plan.Subset(range(50), order=plan.Shuffled(num_samples=50)),
        plan.Weighted(np.ones(10**4), seed=LONG),
        segment.batch(0, 0),
        segment.draws(0, range(50)),
        next(iter(segment.blocks(0, 0, 64))),
        replay.find(3)[0],
        segment.find(3)[0],
        plan.CostBatch([1.5] * 100),
        plan.TokenBatch([100] * 100),
        plan.FixedBatch(),
        plan.DrawnOrder(num_samples=100, num_drawn=50, chunk_size=5, preload=2, seed=LONG),
        plan.FileSharesPlan(sizes=[10] * 900, strategy="exact", names=[LONG] * 900),
        plan.Permutation(10**12, key=3),
        plan.RoundsPlan(order=rounds),
        plan.Share(10, 2, 2, "drop"),
        OwnOrder(),
        OwnPlan(),
        plan.SamplePlan(order=plan.Concatenated([mixture, shuffled]), tail="pad"),
        plan.Cursor(fields={"kind": LONG}, history=[past] * 500, has_ended=True),
    ]


def make_objects(folder: Path) -> list[Any]:
    """Return objects of every public class, over data that is written to a folder."""
    deep = folder / ("deep-" * 20) / ("deeper-" * 20)
    items = np.arange(NUM_SAMPLES)
    columns = {"x": items, **{f"{LONG[:60]}{n}": items for n in range(30)}}
    packed = feedline.pack(columns, deep / "data", chunk_samples=100)
    data = store.FolderStore(deep / "data")
    rows = items[:, None] + np.zeros(3, dtype=np.int64)
    feedline.pack({"sequences/item": rows, "targets/item": rows}, folder / "lazy")
    np.arange(500, dtype=np.uint16).tofile(folder / "tokens.bin")
    return [
        *make_plans(),
        *(packed, feedline.verify(deep / "data"), build_index(deep / "data"), data),
        packing.pack_needs(10**12, 10**9),
        *make_stores(folder),
        *make_feeds(data),
        *make_chunk_samplers(folder),
        *make_steps(data),
        *make_runs(folder, data),
        *make_torch(folder, data),
        report.report_config(CONFIG),
    ]


CONFIG = runs.RunConfig.from_dict({"ranks": 4, "batch_size": 8, "data": {"samples": NUM_SAMPLES}})


def make_stores(folder: Path) -> list[Any]:
    """Return stores and what is found out about them."""
    cells = make_anndata(60)
    packed = store.pack_anndata([write(cells, folder / "a", "h5ad")], folder / "cells.zarr")
    matrix = store.MemoryMatrix(
        np.zeros((9, 2)), obs={LONG + str(n): np.zeros(9) for n in range(30)}
    )
    return [
        *(packed, matrix, store.MatrixSamples(matrix)),
        store.open_anndata(folder / "cells.zarr"),
        store.open_anndata(write_anndata(folder / "dense.zarr", 40, "dense")),
        store.TokenStore(folder / "tokens.bin", dtype="uint16", window=16),
        store.Column(LONG, "int64", (3, 4)),
        store.Lists.of([LONG, LONG]),
        store.Fault(folder / LONG[:200], LONG),
    ]


def make_feeds(data: store.Store) -> list[Any]:
    """Return loaders of a store, before, in and after a pass."""
    order = plan.SamplePlan(order=plan.Shuffled(num_samples=NUM_SAMPLES, seed=LONG), tail="even")
    fresh = feed.Feed(data, order, batch_size=8)
    begun = feed.Feed(data, order, batch_size=8, peers=feed.Alone(), num_threads=0)
    batches = iter(begun)
    batch = next(batches)
    resumed = feed.Feed(data, order, batch_size=5, world_size=3, rank=1)
    resumed.load_state_dict(begun.state_dict())
    running = begun.position.current
    segment = running.segment
    dropping = plan.SamplePlan(order=order.order)
    too_many = feed.Feed(data, dropping, batch_size=8, world_size=10**4, rank=0)
    chunking = feed.chunking_of(data)
    return [
        *(
            fresh,
            begun,
            resumed,
            too_many,
            batches,
            batch,
            running,
            begun.position,
            begun.delivered,
        ),
        feed.Position(None, batch_size=3),
        feed.DataLoader(data, batch_size=64, shuffle=True),
        feed.DataLoader(data, 64, sampler=order, num_replicas=10**6, rank=999_999),
        feed.DataPlan(plan=order, store=data),
        feed.LoaderWrapper(resumed),
        feed.LoggedBatches(iter(()), begun, NoRecorder(), 3, lambda: 0),
        feed.as_loader([1, 2, 3]),
        feed.BlocksAhead(segment, 0),
        next(
            feed.read_slabs(data, chunking, feed.Pass(segment, 0, feed.Batching()), feed.Reading())
        ),
        *(feed.Alone(), feed.FoundPeers(), feed.FoundPeers(4, 1), feed.Batching(4)),
        *(feed.Wait(2.0, reading=0.1 + 0.2, copying=1 / 3), feed.WaitCounter()),
        *(feed.Guard(), feed.Reading(), OwnLoader(None), OwnLoader(resumed.position)),
    ]


class NoRecorder:
    """A recorder that notes nothing."""

    def record(self, **fields: Any) -> None:
        pass

    def event(self, name: str, /, **fields: Any) -> None:
        pass


def make_chunk_samplers(folder: Path) -> list[Any]:
    """Return chunk samplers and loaders of matrices."""
    matrix = store.MemoryMatrix(np.arange(200).reshape(100, 2), obs={"kind": np.arange(100)})
    random = RandomSampler(8, 4, 16, mask=slice(10, 90), rng=LONG)
    shared = DistributedSampler(RandomSampler(8, 4, 16), dist_info=lambda: (1, 3), shards="windows")
    classes = ["a"] * 50 + ["b"] * 50
    begun = feed.ChunkLoader(matrix, RandomSampler(8, 4, 16), peers=feed.Alone())
    batches = iter(begun)
    tensors = torch.ChunkLoader(matrix, shared)
    return [
        *(random, shared, begun, next(batches), tensors, next(iter(tensors))),
        *(feed.ChunkLoader(matrix, random), feed.ChunkLoader(matrix, OwnChunkSampler())),
        *(feed.IterableArrays(OwnStream()), torch.IterableLoader(OwnStream(), num_workers=1)),
        SequentialSampler(8, 4, 16),
        ClassSampler(10, 2, 5, classes=classes, num_samples=100),
        OwnChunkSampler(),
    ]


def make_steps(data: store.Store) -> list[Any]:
    """Return clocks and what belongs to them."""
    loader = feed.DataLoader(data, batch_size=8, peers=feed.Alone())
    clock = steps.StepScheduler(16, 8, 1, loader, num_epochs=3, preemption_signal=None)
    next(iter(clock))
    return [
        clock,
        steps.StepScheduler(8, 8, 1, None, max_steps=7, preemption_signal=None),
        steps.StepScheduler(8, 2, 1, range(10**9), max_steps=10**15, preemption_signal=None),
        steps.StepSchedulerConfig(),
        steps.StepSchedulerConfig(max_steps=10**15, ckpt_every_steps=10**9, val_every_steps=10**9),
        steps.Cadence(ckpt_every_steps=10**12, val_every_steps=10**12, gc_every_steps=3),
        steps.DistributedSignalHandler(["TERM", "USR1"]),
        steps.DistributedSignalHandler(None),
    ]


def make_runs(folder: Path, data: store.Store) -> list[Any]:
    """Return configs, logs and audits."""
    loader = feed.DataLoader(data, batch_size=100, log=folder / LONG[:200] / "logs")
    unused = runs.RunLog(folder / "other", loader)
    with loader:
        for _ in loader:
            pass
    path = folder / "by-hand" / "rank0.log"
    log = runs.ConsumptionLog(path, rank=0, world_size=2, run=LONG, info={"num_samples": 10**6})
    log.record(epoch=0, step=0, batch=0, ids=np.arange(1000))
    log.event("checkpoint", note=LONG)
    log.close()
    found = runs.audit_logs([folder / LONG[:200] / "logs"])
    missing = runs.audit_logs([path])
    whole = runs.read_log(path)
    mixture = [{"name": f"{LONG}{n}", "samples": 9, "weight": 1} for n in range(40)]
    return [
        *(CONFIG, runs.dry_run(CONFIG, [4, 3] * 20), runs.report_plan(CONFIG)),
        runs.RunConfig.from_dict({"batch_size": 1, "data": {"mixture": mixture}}),
        *(loader.log, unused, log, whole, whole.header, *whole.entries),
        *(found, *found.runs, *found.epochs, missing, *missing.runs, *missing.epochs),
        runs.LoggedLoader(loader, log),
        *(source for epoch in (*found.epochs, *missing.epochs) for source in epoch.sources),
        runs.SourceAudit(
            name=LONG, first=0, num_expected=9, num_once=9, num_missing=0, num_repeated=0
        ),
    ]


def make_torch(folder: Path, data: store.Store) -> list[Any]:
    """Return samplers, datasets and loaders of torch."""
    order = plan.SamplePlan(order=plan.Shuffled(num_samples=NUM_SAMPLES), tail="even")
    begun = torch.DataLoader(list(range(100)), batch_size=8, shuffle=True, num_replicas=2, rank=1)
    next(iter(begun))
    lazy = torch.FolderConfig(batch_size=8, project_root=folder / LONG[:200])
    cache = folder / "cache"
    cache.mkdir()
    items = [{"crop_resolution": [640, 384]}, {"crop_resolution": [256, 256]}]
    (cache / "metadata.json").write_text(json.dumps({"shards": ["0.json"]}))
    (cache / "0.json").write_text(json.dumps(items))
    path = folder / "lazy"
    sources = [range(n) for n in range(1, 60)]
    ranks = {"num_replicas": 3, "rank": 2}
    return [
        torch.to_device(begun, "cpu"),
        *(begun, lazy, torch.MultiresolutionDataset(cache)),
        torch.DataLoader(data, batch_size=64, shuffle=True, window="4 chunks", num_workers=2),
        torch.DataLoader(list(range(10)), sampler=plan.Weighted(np.ones(10))),
        torch.BatchPlanSampler(order, batch_size=8, **ranks),
        torch.SampleSampler(order),
        OwnSampler(order),
        torch.BucketBatchSampler(np.arange(1, 999), token_budget=4000, num_buckets=60),
        torch.BucketCalculator("512p"),
        torch.DistributedSampler(range(10**6), **ranks),
        torch.DistributedSampler(range(10**6), order="torch"),
        torch.FeedDataset(data, order, batch_size=8),
        torch.LazyFolderDataset(path, torch.FolderConfig(batch_size=8)),
        torch.SequifierDatasetFromFolderLazy(path, torch.FolderConfig(batch_size=8), **ranks),
        torch.MixtureDataset(sources, names=[f"{LONG}{n}" for n in range(59)]),
        torch.MixtureSampler([0, 1000, 1010], [1, 1]),
        torch.MixtureSampler([0, 1000, 1010], [1, 1], order="torch", **ranks),
        torch.SequentialBucketSampler(BucketData([30, 40]), dynamic_batch_size=True),
    ]
