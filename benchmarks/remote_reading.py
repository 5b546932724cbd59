"""The readers of `remote.py`, each in a process of its own: `remote_reading.py WHAT FOLDER …`.

Each prints one line of JSON: what it has measured.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from format_data import BATCH_SIZE, NUM_ROWS, ROW_BYTES
from obstore.store import S3Store

# All that readers import is there before the time begins.
import feedline.store.remote.opening  # noqa: F401
from feedline import DataLoader
from feedline import open as open_store

WINDOW = "4 chunks"
SECONDS = 3.0


def loader_of(place: str, cache: str, num_replicas: int = 1, rank: int = 0) -> Any:
    """Return our loader over the folder of packed data at a path or URL."""
    options = {"cache_folder": cache} if "://" in place else {}
    return DataLoader(
        open_store(place, **options),
        BATCH_SIZE,
        shuffle=True,
        window=WINDOW,
        num_replicas=num_replicas,
        rank=rank,
    )


def epoch(place: str, cache: str) -> dict[str, float]:
    """Return the rate of an epoch, from opening the data to its last batch."""
    start, num_rows, first = perf_counter(), 0, 0.0
    for batch in loader_of(place, cache):
        num_rows += len(batch["x"])
        first = first or perf_counter() - start
    seconds = perf_counter() - start
    assert num_rows == NUM_ROWS, num_rows
    return {"rate": num_rows * ROW_BYTES / seconds, "first": first}


def steady(place: str, cache: str) -> dict[str, float]:
    """Return the rate after the first batch, over whole epochs until the time is over."""
    start = perf_counter()
    loader = loader_of(place, cache)
    batches = iter(loader)
    next(batches)
    first = perf_counter() - start
    start, num_rows = perf_counter(), 0
    while perf_counter() - start < SECONDS:
        num_rows += sum(len(batch["x"]) for batch in batches)
        batches = iter(loader)
    return {"rate": num_rows * ROW_BYTES / (perf_counter() - start), "first": first}


def state(place: str, cache: str) -> dict[str, Any]:
    """Return the state after 90% of an epoch."""
    loader = loader_of(place, cache)
    for number, _ in enumerate(loader, 1):
        if number == len(loader) * 9 // 10:
            break
    return dict(loader.state_dict())


def resume(place: str, cache: str, saved: str) -> dict[str, Any]:
    """Return the seconds until a batch has come after a resume, and the chunks of the rest."""
    start = perf_counter()
    loader = loader_of(place, cache)
    loader.load_state_dict(json.loads(saved))
    batches = iter(loader)
    next(batches)
    seconds = perf_counter() - start
    return {"resume": seconds, "chunks": sorted(chunks_of(loader, batches, has_begun=True))}


def node(place: str, cache: str, num_nodes: str, number: str) -> dict[str, Any]:
    """Return the chunks that a node of several has read in an epoch."""
    loader = loader_of(place, cache, int(num_nodes), int(number))
    return {"chunks": sorted(chunks_of(loader, iter(loader)))}


def chunks_of(loader: Any, batches: Iterator[Any], has_begun: bool = False) -> set[int]:
    """Return the chunks of all batches that are left, and of the one that has come."""
    found: set[int] = set()
    edges = loader.store.edges
    while True:
        if has_begun:
            ids = np.asarray(loader.delivered.ids)
            found |= set((np.searchsorted(edges, ids, side="right") - 1).tolist())
        has_begun = True
        if next(batches, None) is None:
            return found


def obstore(url: str, folder: str, num_threads: str, part_bytes: str) -> dict[str, float]:
    """Return the rate of obstore alone: all files of the folder, in parts, thrown away."""

    def get(client: S3Store, key: str, first: int, end: int) -> int:
        return len(client.get_range(key, start=first, end=end))

    return {"rate": rate_of_parts(url, folder, num_threads, part_bytes, get)}


def kept(url: str, folder: str, num_threads: str, part_bytes: str, cache: str) -> dict[str, float]:
    """Return the rate of obstore with what any cache adds: a CRC-32 of all bytes, and files."""

    def get(client: S3Store, key: str, first: int, end: int) -> int:
        descriptor = os.open(os.path.join(cache, Path(key).name), os.O_CREAT | os.O_WRONLY, 0o666)
        crc, at = 0, first
        try:
            found = client.get(key, options={"range": (first, end)})
            for received in found.stream(min_chunk_size=2**18):
                piece = memoryview(received)
                crc = zlib.crc32(piece, crc)
                while piece:
                    written = os.pwrite(descriptor, piece, at)
                    piece, at = piece[written:], at + written
        finally:
            os.close(descriptor)
        return at - first

    return {"rate": rate_of_parts(url, folder, num_threads, part_bytes, get)}


def rate_of_parts(
    url: str,
    folder: str,
    num_threads: str,
    part_bytes: str,
    get: Callable[[S3Store, str, int, int], int],
) -> float:
    """Return the rate of getting all files of the folder in parts."""
    start = perf_counter()
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = S3Store(bucket, client_options={"allow_http": True})
    parts = [
        (f"{prefix}/{path.name}", first, min(first + int(part_bytes), path.stat().st_size))
        for path in sorted(Path(folder).iterdir())
        for first in range(0, path.stat().st_size, int(part_bytes))
    ]
    with ThreadPoolExecutor(int(num_threads)) as pool:
        num_bytes = sum(pool.map(lambda part: get(client, *part), parts))
    return num_bytes / (perf_counter() - start)


if __name__ == "__main__":
    readers = {f.__name__: f for f in (epoch, steady, state, resume, node, obstore, kept)}
    print(json.dumps(readers[sys.argv[1]](*sys.argv[2:])))
