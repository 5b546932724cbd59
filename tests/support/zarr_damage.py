"""Damage to matrices in zarr: bytes, headers and indexes of shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr

from feedline.store import open_anndata

Header = dict[str, Any]


def read_all(path: Path, obs: tuple[str, ...] = ("number", "label")) -> None:
    """Open a matrix and read all of its rows."""
    store = open_anndata(path, obs=obs)
    rows = np.arange(store.shape[0])
    store.fetch(rows).take(rows)


def truncate(file: Path, num_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:num_bytes])


def replace(group: Path, name: str, values: Any) -> None:
    """Write another array in place of one."""
    zarr.open_group(group, mode="r+").create_array(name, data=np.asarray(values), overwrite=True)


def edit(node: Path, change: Callable[[Header], Any]) -> None:
    """Change the header of an array or a group."""
    header = json.loads((node / "zarr.json").read_text())
    change(header)
    (node / "zarr.json").write_text(json.dumps(header))


def set_chunks(header: Header, stored: list[int], inner: list[int] | None = None) -> None:
    """Let an array have other chunks, and its shards other inner chunks."""
    header["chunk_grid"]["configuration"]["chunk_shape"] = stored
    for codec in header["codecs"]:
        if codec["name"] == "sharding_indexed" and inner is not None:
            codec["configuration"]["chunk_shape"] = inner


def point_to(shard: Path, number: int, offset: int, num_bytes: int, num_chunks: int) -> None:
    """Let the index of a shard lead elsewhere for one chunk, with a checksum that is right."""
    content = shard.read_bytes()
    size = 16 * num_chunks + 4
    index = np.frombuffer(content[-size:-4], "<u8").copy()
    index[2 * number : 2 * number + 2] = offset, num_bytes
    checksum = int(google_crc32c.value(index.tobytes())).to_bytes(4, "little")
    shard.write_bytes(content[:-size] + index.tobytes() + checksum)
