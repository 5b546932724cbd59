"""What a store is made of, and what would make it faster to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.store import FolderStore, Store
from feedline.store.arrow_chunk import compression_of
from feedline.store.shards import ShardStore
from feedline.words import bytes_in_words, several

# Below this, opening a chunk costs more than reading it; above, few fit in a window.
_SMALL_CHUNK_BYTES = 2**18
_LARGE_CHUNK_BYTES = 2**30
# Many small values in columns of their own cost a copy each.
_MANY_COLUMNS = 64


def facts_of_store(store: Store) -> dict[str, Any]:
    """Return what a store is made of, in printable values.

    Args:
        store: What `feedline.open` returns.
    """
    sizes = store.chunk_sizes
    columns = list(store.columns.values())
    sample_bytes = sum(column.sample_bytes for column in columns)
    facts: dict[str, Any] = {"num_samples": store.num_samples}
    if isinstance(store, FolderStore):
        facts["num_files"] = len(store.manifest)
    elif isinstance(store, ShardStore):
        facts["num_files"] = len(store.shards.files)
    return {
        **facts,
        "num_chunks": len(sizes),
        "chunk_samples": {"fewest": int(sizes.min()), "most": int(sizes.max())},
        "chunk_bytes": round(sample_bytes * store.num_samples / max(1, len(sizes))),
        "bytes_per_sample": sample_bytes,
        "compression": compression_in(store) or "none",
        "columns": [column.describe() for column in columns],
        "advice": advice_for(store),
    }


def compression_in(store: Store) -> str | None:
    """Return the name of the compression of a store's chunks; None if they are read as they lie."""
    if isinstance(store, ShardStore):
        return store.shards.compression
    if isinstance(store, FolderStore):
        name = store.manifest.file(0).path
        path = store.folder / name
        return compression_of(path) if path.suffix in (".parquet", ".arrow", ".feather") else None
    return None


def advice_for(store: Store) -> list[str]:
    """Return what would make a store faster to read, in sentences.

    Args:
        store: What `feedline.open` returns.
    """
    sizes = store.chunk_sizes[store.chunk_sizes > 0]
    columns = list(store.columns.values())
    sample_bytes = sum(column.sample_bytes for column in columns)
    mean_bytes = sample_bytes * float(sizes.mean()) if len(sizes) else 0.0
    advice = []
    compression = compression_in(store)
    if compression is not None:
        advice.append(
            f"Chunks are compressed ({compression}) and decoded whole, {_shown(mean_bytes)} each: "
            "use window= so that few are decoded at a time, or pack the data with "
            "`feedline pack`, format npy."
        )
    if len(sizes) > 1 and mean_bytes < _SMALL_CHUNK_BYTES:
        advice.append(
            f"Chunks are small, {_shown(mean_bytes)} on average: pack the data again with chunks "
            "of some MiB, so that fewer files and groups are opened."
        )
    if mean_bytes > _LARGE_CHUNK_BYTES:
        advice.append(
            f"Chunks are large, {_shown(mean_bytes)} on average: with smaller ones a window holds "
            "more of them, which shuffles better in the same memory."
        )
    if len(sizes) > 1 and int(sizes.max()) > 4 * max(1, int(np.median(sizes))):
        advice.append(
            f"Chunks differ, from {several(int(sizes.min()), 'sample')} to "
            f"{int(sizes.max()):,}: chunks of one size cost less to find and shuffle better."
        )
    if len(columns) > _MANY_COLUMNS:
        advice.append(
            f"There are {several(len(columns), 'column')}: choose those that you need with "
            "columns=[...], or store small ones together as one array."
        )
    return advice


def _shown(num_bytes: float) -> str:
    return bytes_in_words(round(num_bytes))
