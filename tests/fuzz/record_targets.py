"""Targets for shards of records, with an index that lists their sizes.

What is damaged gets the right sizes in the index again, or else little would come past them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from mutations import NUMBERS, damage_bytes, damage_json, damage_tree

import feedline

WRITTEN = Path(__file__).resolve().parent.parent / "formats"


def use_records(folder: Path, rng: Random) -> None:
    """Read all of a folder, some samples of it, or some of its columns."""
    store = feedline.open(folder, verify=True) if rng.random() < 0.1 else feedline.open(folder)
    repr(store)
    store[len(store) // 2]
    if len(store) < 10_000:
        for values in store[:].values():
            assert len(values) == len(store)
    names = list(store.columns)
    feedline.open(folder, columns=rng.sample(names, 1))[0]


def make_mds(folder: Path) -> None:
    shutil.copytree(WRITTEN / "mds" / "data", folder / "raw")
    for path in (WRITTEN / "mds" / "compressed").iterdir():
        shutil.copytree(path, folder / path.name)


def make_litdata(folder: Path) -> None:
    for name in ("data", "tuples", "values", "documents", "table", "compressed_table"):
        shutil.copytree(WRITTEN / "litdata" / name, folder / name)
    for path in (WRITTEN / "litdata" / "compressed").iterdir():
        shutil.copytree(path, folder / path.name)


def damage_records(rng: Random, folder: Path) -> None:
    """Damage the index, or a shard whose sizes the index then has."""
    kind, index = rng.random(), folder / "index.json"
    if kind < 0.1:
        damage_tree(rng, folder)
        return
    if kind < 0.4:
        index.write_bytes(damage_json(rng, index.read_bytes()))
        return
    listed = json.loads(index.read_bytes())
    name = "shards" if "shards" in listed else "chunks"
    number = rng.randrange(len(listed[name])) if rng.random() < 0.5 else 0
    entry = listed[name][number]
    if name == "shards":
        _damage_shard(rng, folder, entry)
    else:
        _damage_chunk(rng, folder, entry, is_whole=listed["config"]["compression"] is not None)
    index.write_text(json.dumps(listed))


def _damage_shard(rng: Random, folder: Path, entry: dict[str, Any]) -> None:
    packed = entry["zip_data"]
    path = folder / (packed or entry["raw_data"])["basename"]
    data = path.read_bytes()
    if packed is None:
        data = _damaged(rng, data)
        entry["raw_data"]["bytes"] = len(data)
    elif rng.random() < 0.5:
        codec = _codec(entry["compression"])
        raw = codec.decompress(data, entry["raw_data"]["bytes"]) if codec else None
        raw = _damaged(rng, bytes(raw)) if raw is not None else None
        if raw is not None and codec is not None:
            data, entry["raw_data"]["bytes"] = codec.compress(raw, asbytes=True), len(raw)
    else:
        data = damage_bytes(rng, data)
    if packed is not None:
        packed["bytes"] = len(data)
    path.write_bytes(data)


def _damage_chunk(rng: Random, folder: Path, entry: dict[str, Any], is_whole: bool) -> None:
    path = folder / entry["filename"]
    data = path.read_bytes()
    if is_whole and path.name.endswith(".zstd.bin"):
        codec = _codec("zstd")
        raw = _damaged(rng, bytes(codec.decompress(data, entry["chunk_bytes"])))
        data, entry["chunk_bytes"] = codec.compress(raw, asbytes=True), len(raw)
    else:
        data = _damaged(rng, data)
        entry["chunk_bytes"] = len(data)
    path.write_bytes(data)


def _codec(name: str) -> Any:
    import pyarrow

    known = {"br": "brotli", "gz": "gzip"}.get(name, name)
    return pyarrow.Codec(known) if known != "bz2" else None


def _damaged(rng: Random, data: bytes) -> bytes:
    """Return bytes with faults, often in the numbers at their head or in one of them."""
    if rng.random() < 0.5 or len(data) < 64:
        return damage_bytes(rng, data)
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(0, rng.choice((64, len(content))) - 4)
        word = rng.choice((*NUMBERS, rng.randrange(len(data)), rng.randrange(8))) % 2**32
        content[place : place + 4] = np.uint32(word).tobytes()
    return bytes(content)


#: How each is made, damaged and used, and its share of the cases.
RECORDS: dict[str, tuple[Any, Any, Any, int]] = {
    "mds": (make_mds, damage_records, use_records, 10),
    "litdata": (make_litdata, damage_records, use_records, 10),
}
