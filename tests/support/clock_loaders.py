"""Loaders of every kind that a clock may be given, all with the ids of their samples in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from feedline.chunks import RandomSampler
from feedline.feed import ChunkLoader, Feed
from feedline.plan import SamplePlan, Shuffled
from feedline.store import MemoryMatrix
from feedline.store.columns import Column
from feedline.torch import BucketBatchSampler, DataLoader, DistributedSampler
from feedline.torch import ChunkLoader as TensorChunkLoader
from loader_data import Ids

NUM_SAMPLES = 23
BATCH_SIZE = 3


class Unsized:
    """Batches that follow the epoch, from an iterable without a length."""

    def __init__(self, num_batches: int, batch_size: int = 1) -> None:
        self._num_batches = num_batches
        self._batch_size = batch_size
        self.epoch = 0
        self.num_taken = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batch(self, number: int) -> list[int]:
        first = 1000 * self.epoch + number * self._batch_size
        return list(range(first, first + self._batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._num_batches):
            self.num_taken += 1
            yield self._batch(number)


class Sized(Unsized):
    """The same with a length."""

    def __len__(self) -> int:
        return self._num_batches


class Places(Unsized):
    """A loader of another library that knows its place: how many batches it has handed out.

    A pass goes on at that place. Once an iterator was told that there is no more, the next pass is
    a new one, as in torchdata.
    """

    def __init__(self, num_batches: int, batch_size: int = 1) -> None:
        super().__init__(num_batches, batch_size)
        self._place = 0
        self._loaded = False

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self._place, self._loaded = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._place, self._loaded = state["epoch"], state["place"], True

    def __iter__(self) -> Iterator[list[int]]:
        if not self._loaded:
            self._place = 0
        self._loaded = False
        while self._place < self._num_batches:
            batch = self._batch(self._place)
            self._place += 1
            yield batch
        self._place = 0


class SizedPlaces(Places):
    """The same with a length."""

    def __len__(self) -> int:
        return self._num_batches


class PlacesOfItsOwn(Places):
    """Nobody tells it of epochs: it begins the next one when it has come to its end."""

    set_epoch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        self.epoch += 1


class SizedPlacesOfItsOwn(PlacesOfItsOwn):
    """The same with a length."""

    def __len__(self) -> int:
        return self._num_batches


class MemoryStore:
    """Samples in memory, each its own number."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.chunk_sizes = np.array([num_samples])
        self.fingerprint = f"{num_samples} numbers"
        self.columns = {"x": Column("x", "int64", ())}

    def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
        if out is None:
            return {"x": np.array(rows)}
        out["x"][...] = rows
        return out

    def describe_row(self, chunk: int, row: int) -> str:
        return f"row {row}"

    def prefetch(self, chunk: int) -> None:
        pass

    def close(self) -> None:
        pass


def torch_loader(
    num_workers: int = 0,
    *,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = BATCH_SIZE,
    num_samples: int = NUM_SAMPLES,
    shuffle: bool = True,
    **options: Any,
) -> DataLoader[Any]:
    """A loader of Feedline for torch."""
    sampler = DistributedSampler(
        range(num_samples), world_size, rank, shuffle=shuffle, seed=5, drop_last=False
    )
    return DataLoader(
        Ids(num_samples),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        **options,
    )


def bucket_loader(**sizes: Any) -> DataLoader[Any]:
    """A loader of batches of similar lengths."""
    lengths = [1 + number % 7 for number in range(NUM_SAMPLES)]
    sampler = BucketBatchSampler(lengths, batch_size=BATCH_SIZE, num_buckets=2, seed=3, **sizes)
    return DataLoader(Ids(NUM_SAMPLES), batch_sampler=sampler)


def plain_torch_loader() -> Any:
    """torch's own loader with its own sampler."""
    data: Any = Ids(NUM_SAMPLES)
    sampler: Any = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
    return torch.utils.data.DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)


def feed(*, num_samples: int = NUM_SAMPLES, **sizes: Any) -> Feed:
    """A feed from a store of numbers."""
    plan = SamplePlan(order=Shuffled(num_samples=num_samples, seed=5), tail="pad")
    return Feed(MemoryStore(num_samples), plan, **{"batch_size": BATCH_SIZE, **sizes})


def chunk_loader() -> ChunkLoader:
    """A loader of a matrix."""
    store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
    return ChunkLoader(store, RandomSampler(2, 3, BATCH_SIZE, rng=7))


def chunk_tensors() -> Any:
    """The same as tensors from a worker."""
    store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
    return TensorChunkLoader(store, RandomSampler(2, 3, BATCH_SIZE, rng=7), num_workers=1)


def ids_of(batch: Any) -> list[int]:
    """The ids in a batch of any of these loaders."""
    for name in ("indices", "rows"):
        if isinstance(getattr(batch, name, None), np.ndarray | torch.Tensor):
            return [int(one) for one in getattr(batch, name)]
    return batch.tolist() if hasattr(batch, "tolist") else list(batch)


#: How to make each kind anew.
MAKERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [[number] for number in range(8)],
    "sized": lambda: Sized(8),
    "unsized": lambda: Unsized(8),
    "sized places": lambda: SizedPlaces(8),
    "places": lambda: Places(8),
    "sized places of its own": lambda: SizedPlacesOfItsOwn(8),
    "places of its own": lambda: PlacesOfItsOwn(8),
    "plain torch": plain_torch_loader,
    "feedline torch": torch_loader,
    "feedline torch, 2 workers": lambda: torch_loader(2),
    "buckets": bucket_loader,
    "feed": feed,
    "chunks": chunk_loader,
    "chunks, 1 worker": chunk_tensors,
}


def each_with(*numbers: int) -> list[Any]:
    """Every kind with each number, as parameters of a test.

    Workers are slow to start: with another number than the last, these are slow tests.
    """
    return [
        pytest.param(
            kind,
            number,
            marks=[pytest.mark.slow] if "worker" in kind and number != numbers[-1] else [],
        )
        for kind in MAKERS
        for number in numbers
    ]
