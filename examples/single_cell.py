"""Train a classifier of cells from an AnnData file, read by the chunk, on any number of ranks.

Run it with one process, which plays all ranks in turn:

    python examples/single_cell.py

Cells lie in the file type by type, so a chunk of neighbours has one type only. `pack_anndata`
shuffles them once, on disk; after that, reading whole chunks gives well-mixed batches. The run
stops on 2 ranks and resumes on 3, with the rest of the epoch.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import nn

from feedline.chunks import DistributedSampler, RandomSampler, SequentialSampler
from feedline.store import MatrixStore, open_anndata, pack_anndata
from feedline.torch import ChunkLoader

NUM_CELLS, NUM_GENES = 4000, 300
TYPES = ("B cell", "NK cell", "T cell", "monocyte")
BATCH_SIZE = 64
STOP = 12


def write_cells(path: Path) -> None:
    """Write sparse counts of cells of four types, one type after another."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(len(TYPES)), NUM_CELLS // len(TYPES))
    rates = rng.gamma(0.3, 1.0, (len(TYPES), NUM_GENES))
    matrix = scipy.sparse.csr_matrix(rng.poisson(rates[labels]).astype(np.float32))
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical.from_codes(labels, list(TYPES))},
        index=[f"cell{number}" for number in range(NUM_CELLS)],
    )
    anndata.AnnData(matrix, obs=obs).write_h5ad(path)


def make_loader(store: MatrixStore, rank: int, world_size: int) -> ChunkLoader:
    """Return the loader of one rank. In a real run dist_info="torch" knows both numbers."""
    inner = RandomSampler(chunk_size=32, preload_nchunks=8, batch_size=BATCH_SIZE, rng=7)
    # Windows of chunks are dealt to ranks in rounds, so that a state resumes on any number.
    sampler = DistributedSampler(inner, dist_info=lambda: (rank, world_size), shards="windows")
    return ChunkLoader(store, sampler, output="dense")


class Training:
    """A linear classifier, and how often each cell was used."""

    def __init__(self, folder: Path) -> None:
        self.store = open_anndata(folder, obs=["cell_type", "feedline_source_row"])
        self.names, labels = np.unique(self.store.obs["cell_type"], return_inverse=True)
        self.labels = torch.from_numpy(labels)
        torch.manual_seed(3)
        self.model = nn.Linear(NUM_GENES, len(self.names))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        self.seen: Counter[int] = Counter()

    def run(self, world_size: int, state: str | None = None, stop: int | None = None) -> str:
        """Train until the epoch ends, or for `stop` steps; return the state of the loaders."""
        loaders = [make_loader(self.store, rank, world_size) for rank in range(world_size)]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(json.loads(state))
        num_steps = 0
        for batches in zip(*loaders, strict=True):  # strict: all ranks have as many
            self.optimizer.zero_grad()
            for cells in batches:
                loss = nn.functional.cross_entropy(self.model(cells.X), self.labels[cells.rows])
                (loss / world_size).backward()
                self.seen.update(cells.obs["feedline_source_row"].tolist())
            self.optimizer.step()
            num_steps += 1
            if num_steps == stop:
                break
        print(f"{world_size} ranks: {num_steps} steps, {len(self.seen)} cells so far")
        return json.dumps(loaders[0].state_dict())  # the same on every rank

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of cells whose type is found."""
        loader = ChunkLoader(self.store, SequentialSampler(32, 8, 256), output="dense")
        guesses = torch.cat([self.model(cells.X).argmax(dim=1) for cells in loader])
        return float((guesses == self.labels).float().mean())


def main() -> None:
    """Write, pack, train on 2 ranks and then on 3, and check."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        source, folder = Path(name, "cells.h5ad"), Path(name, "packed.zarr")
        write_cells(source)
        packed = pack_anndata(source, folder, obs=["cell_type"], seed=7)
        print(f"packed {packed.num_rows} cells, {packed.num_values} values")
        training = Training(folder)
        state = training.run(2, stop=STOP)
        training.run(3, state)
        accuracy = training.accuracy()
    if len(training.seen) != NUM_CELLS or set(training.seen.values()) != {1}:
        raise SystemExit("cells were lost or repeated")
    print(f"all {NUM_CELLS} cells were used exactly once; the type of {accuracy:.1%} is found")
    if accuracy < 0.9:
        raise SystemExit("the classifier has learnt too little")


if __name__ == "__main__":
    main()
