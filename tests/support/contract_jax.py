"""The loaders of JAX, as the contract suite makes them; in a process of their own.

Once JAX is imported, forking is a warning, and the other loaders' workers are forked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from contract_loaders import NUM_SAMPLES, Kind, Make, _noted, _store
from feedline.jax import DataLoader
from feedline.store import TokenStore
from loader_data import Ids
from store_formats import ids_in

__all__ = ["JAX_KINDS"]

_AHEAD = ({}, {"num_threads": 0, "num_ahead": 0}, {"num_threads": 3, "num_ahead": 5})


def _ids(batch: Any) -> list[int]:
    return [int(value) for value in np.asarray(batch)]


def _tokens_in(batch: Any) -> list[int]:
    return [int(value) // 4 for value in np.asarray(batch["tokens"])[:, 0]]


def _alone(store: Any, *arguments: Any, **options: Any) -> DataLoader:
    """A loader that is told its rank, and so makes no global arrays."""
    return DataLoader(store, *arguments, sharding=None, **options)


def _own(**options: Any) -> Make:
    def make(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
        given = {"shuffle": True, "seed": 5, **options, **variant}
        ranks = {"num_replicas": world_size, "rank": rank}
        return _alone(Ids(NUM_SAMPLES), batch_size, **ranks, **given)

    return make


def _tokens(folder: Path, world_size: int, rank: int, batch_size: int, **variant: Any) -> Any:
    path = folder.parent / "jax-tokens.bin"
    if not path.exists():
        np.arange(4 * NUM_SAMPLES + 3, dtype="<u2").tofile(path)
    store = TokenStore(path, window=4, chunk_windows=9)
    ranks = {"num_replicas": world_size, "rank": rank}
    return _alone(store, batch_size, shuffle=True, seed=5, window="2 chunks", **ranks, **variant)


JAX_KINDS: dict[str, Kind] = {
    "jax": Kind(_own(), _ids, _AHEAD),
    "jax, even": Kind(_own(tail="even"), _ids, is_slow=True),
    "jax, dropping": Kind(
        *(_own(drop_last=True), _ids, _AHEAD), drops=True, is_slow=True, sizes=(1, 2, 4, 7)
    ),
    "jax, store": Kind(_store(_alone, "safetensors", window="2 chunks"), ids_in, _AHEAD),
    "jax, store, samples": Kind(
        _store(_alone, "safetensors", sample_transform=_noted), ids_in, _AHEAD, is_slow=True
    ),
    "jax, tokens": Kind(_tokens, _tokens_in, _AHEAD),
}
