"""Tasks on a cluster read sources at URLs, and verify what is packed there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import feedline
from object_server import S3Server, s3_server
from pack_data import read_tree

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        found.make_bucket("bucket")
        yield found


def put(server: S3Server, folder: Path, name: str) -> None:
    for path in folder.iterdir():
        server.put("bucket", f"{name}/{path.name}", path.read_bytes())


@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
def test_a_source_at_a_url_is_packed_to_the_same_bytes(
    server: S3Server, tmp_path: Path, shuffle: bool
) -> None:
    columns = {"x": np.arange(40_000), "y": np.arange(80_000.0).reshape(-1, 2)}
    feedline.pack(columns, tmp_path / "source", chunk_samples=3000)
    put(server, tmp_path / "source", "source")
    options = {"shuffle": shuffle, "chunk_samples": 700, "memory_budget": 2**20}
    feedline.pack(tmp_path / "source", tmp_path / "here", **options)
    feedline.pack(
        "s3://bucket/source",
        tmp_path / "there",
        engine="ray",
        storage_options=server.options(),
        **options,
    )
    assert read_tree(tmp_path / "there") == read_tree(tmp_path / "here")


def test_verify_of_a_url_finds_the_same_faults(server: S3Server, tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(4000)}, tmp_path / "data", chunk_samples=100)
    put(server, tmp_path / "data", "data")
    url, access = "s3://bucket/data", server.options()
    assert feedline.verify(url, engine="ray", storage_options=access).ok
    name = "chunk-000011.safetensors"
    data = bytearray(server.get("bucket", f"data/{name}"))
    data[-5] ^= 1
    server.put("bucket", f"data/{name}", bytes(data))
    server.delete("bucket", "data/chunk-000003.safetensors")
    server.put("bucket", "data/stray.bin", b"")
    here = feedline.verify(url, storage_options=access)
    there = feedline.verify(url, engine="ray", storage_options=access)
    assert len(here.faults) == 3
    assert [(str(f.path), f.text) for f in there.faults] == [
        (str(f.path), f.text) for f in here.faults
    ]
    assert (there.num_samples, there.num_bytes) == (here.num_samples, here.num_bytes)
