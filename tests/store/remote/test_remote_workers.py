"""Workers over a remote store, however they are started: each chunk is fetched once by the node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedline
from object_server import FaultProxy, S3Server

torch = pytest.importorskip("feedline.torch")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_fetch_each_chunk_once_and_deliver_every_sample(
    context: str, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    columns = {"x": np.arange(300), "y": np.arange(3000.0).reshape(300, 10)}
    feedline.pack(columns, tmp_path / "data", chunk_samples=30)
    for path in (tmp_path / "data").iterdir():
        server.put("bucket", f"workers/{path.name}", path.read_bytes())
    given = {"storage_options": server.options(proxy.url), "cache_folder": tmp_path / "cache"}
    store = feedline.open("s3://bucket/workers", cache_limit=2**30, **given)
    proxy.forget()
    loader = torch.DataLoader(
        *(store, 10),
        shuffle=True,
        window="2 chunks",
        num_workers=2,
        multiprocessing_context=context,
    )
    batches = list(loader)
    loader.close()
    assert sorted(int(index) for batch in batches for index in batch["x"]) == list(range(300))
    for batch in batches:
        assert batch["y"][:, 0].tolist() == (batch["x"] * 10).tolist()
    assert proxy.num_requests == 10
