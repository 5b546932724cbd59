"""The data of the demo: two small sources, packed, and read back by index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feedline.feed import chunking_of, gather_samples
from feedline.store import FolderStore, pack

#: The number of samples of each source.
SOURCES = {"web": 3200, "books": 1600}
GLOBAL_BATCH_SIZE, LOCAL_BATCH_SIZE = 48, 8

_NUM_FEATURES = 16


def pack_sources(folder: Path) -> None:
    """Write the sources. Each sample knows its index in the mixture, to be compared later."""
    rng = np.random.default_rng(7)
    truth = rng.normal(size=_NUM_FEATURES)
    first = 0
    for name, size in SOURCES.items():
        features = rng.normal(size=(size, _NUM_FEATURES))
        columns = {
            "index": np.arange(first, first + size),
            "features": features.astype(np.float32),
            "target": (np.tanh(features @ truth)).astype(np.float32),
        }
        pack(columns, folder / name, chunk_samples=256, progress=False)
        first += size


class PackedSource:
    """A packed folder as a map-style dataset."""

    def __init__(self, folder: Path) -> None:
        self._store = FolderStore(folder)
        self._chunking = chunking_of(self._store)

    def __len__(self) -> int:
        return self._store.num_samples

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return index, features and target of many samples, read together."""
        arrays = {
            name: np.empty((len(indices), *column.shape), column.dtype)
            for name, column in self._store.columns.items()
        }
        gather_samples(self._store, self._chunking, np.asarray(indices, dtype=np.int64), arrays)
        return list(zip(arrays["index"], arrays["features"], arrays["target"], strict=True))
