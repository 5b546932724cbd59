"""Runs of chunk loaders on several ranks, checked batch by batch, saved and gone on with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from feedline.chunks import DistributedSampler, RandomSampler, SequentialSampler
from feedline.feed import ChunkBatch, ChunkLoader
from feedline.store import CsrStore, DenseStore, open_anndata
from zarr_data import array_of, dense_rows, write_anndata

Store = CsrStore | DenseStore
State = dict[str, Any]
SIZES = (5, 47, 83)


def write_stores(folder: Path) -> dict[tuple[str, int], Store]:
    """Sparse and dense matrices of some sizes, by kind and number of rows."""
    return {
        (kind, size): open_anndata(
            write_anndata(folder / f"{kind}{size}.zarr", size, kind), obs=["number", "label"]
        )
        for kind in ("csr", "dense")
        for size in SIZES
    }


@dataclass(frozen=True, kw_only=True)
class Run:
    """What stays the same from the beginning of a run to its end."""

    store: Store
    chunk_size: int
    preload: int
    batch_size: int
    shards: str
    shuffle: bool = True
    drop_last: bool = False
    equal: bool = True
    values: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", dense_rows(self.num_rows))

    @property
    def num_rows(self) -> int:
        return self.store.shape[0]

    def loaders(
        self, world_size: int, num_ahead: int = 1, state: State | None = None
    ) -> list[ChunkLoader]:
        """A loader for each rank, at the beginning or where a state was saved."""
        sizes = self.chunk_size, self.preload, self.batch_size
        inner = (
            RandomSampler(*sizes, drop_last=self.drop_last, rng=3)
            if self.shuffle
            else SequentialSampler(*sizes, drop_last=self.drop_last)
        )
        loaders = []
        for rank in range(world_size):
            sampler = DistributedSampler(
                inner,
                dist_info=lambda rank=rank: (rank, world_size),  # type: ignore[misc]
                shards=self.shards,
                enforce_equal_batches=self.equal,
            )
            loaders.append(ChunkLoader(self.store, sampler, num_ahead=num_ahead))
            if state is not None:
                loaders[-1].load_state_dict(json.loads(json.dumps(state)))
        return loaders

    def check(self, batch: ChunkBatch) -> list[int]:
        """Compare a batch with what was written, and return its rows."""
        np.testing.assert_array_equal(array_of(batch.X), self.values[batch.rows])
        np.testing.assert_array_equal(batch.obs["number"], batch.rows)
        np.testing.assert_array_equal(batch.obs["label"], 10 + 10 * (batch.rows % 3))
        assert 0 < len(batch.rows) <= self.batch_size
        return [int(row) for row in batch.rows]


def place_of(loader: ChunkLoader) -> tuple[int, int]:
    """The epoch that the next pass is in, and how many batches it has."""
    return loader.epoch + loader.position.has_ended(), loader.num_batches_left()


def take(run: Run, loader: ChunkLoader, num_batches: int, num_lost: int) -> tuple[list[int], State]:
    """Take batches, save, and take some more that nobody will know of, as before a crash."""
    batches = iter(loader)
    rows = [row for batch in islice(batches, num_batches) for row in run.check(batch)]
    state = loader.state_dict()
    for batch in islice(batches, num_lost):
        run.check(batch)
    batches.close()  # type: ignore[attr-defined]
    return rows, state
