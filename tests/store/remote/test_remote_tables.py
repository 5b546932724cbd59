"""Files of tables: in small caches, and in buckets of one name on two servers."""

from __future__ import annotations

import functools
import http.server
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline
from feedline.store.remote.files import RemoteFiles
from object_server import S3Server

ROWS = 1000


def table(first: int, num_rows: int = ROWS) -> bytes:
    out = io.BytesIO()
    rows = np.arange(first, first + num_rows)
    pq.write_table(pa.table({"x": rows}), out, compression="none", use_dictionary=False)
    return out.getvalue()


def array(num_rows: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(num_rows))
    return out.getvalue()


class Counting(http.server.BaseHTTPRequestHandler):
    """A server of one object, whose ETag counts its versions and says nothing of its content."""

    def __init__(self, data: bytes, *given: Any) -> None:
        self.data = data
        super().__init__(*given)

    def do_HEAD(self) -> None:
        self.answer(200, self.data)

    def do_GET(self) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        body = self.data[int(first) : int(last) + 1]
        self.answer(206, body, f"bytes {first}-{last}/{len(self.data)}")
        self.wfile.write(body)

    def answer(self, status: int, body: bytes, part: str = "") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def counting_server(data: bytes) -> Iterator[str]:
    handler = functools.partial(Counting, data)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def first_row(options: dict[str, str], cache: Path) -> int:
    store: Any = feedline.open("s3://bucket/a.parquet", storage_options=options, cache_folder=cache)
    found = int(store[0]["x"])
    store.close()
    return found


def test_tables_that_do_not_fit_in_the_cache_together_are_opened_and_read(
    server: S3Server, tmp_path: Path
) -> None:
    tables = [table(number * ROWS) for number in range(6)]
    for number, data in enumerate(tables):
        server.put("bucket", f"small-cache/{number}.parquet", data)
    store: Any = feedline.open(
        "s3://bucket/small-cache",
        storage_options=server.options(),
        cache_folder=tmp_path / "cache",
        cache_limit=2 * len(tables[0]) + 100,
    )
    assert [int(store[row]["x"]) for row in (0, 5999, 1500)] == [0, 5999, 1500]
    loader = feedline.DataLoader(store, 100, shuffle=True, window="1 chunk")
    assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(6 * ROWS))
    store.close()


@pytest.mark.parametrize("name", ["small.parquet", "large.parquet", "small.npy"])
def test_a_file_that_is_evicted_before_it_is_open_is_fetched_again(
    name: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of large tables, parts are fetched.
    data, large = table(0), table(0, 2**20 + 1)
    served = {"small.parquet": data, "large.parquet": large, "small.npy": array(ROWS)}[name]
    server.put("bucket", name, served)
    store: Any = feedline.open(
        f"s3://bucket/{name}", storage_options=server.options(), cache_folder=tmp_path / "cache"
    )
    (column,) = store.columns
    store.close()
    found = RemoteFiles.path
    evictions = iter([True, True, True])

    def evicted(files: RemoteFiles, wanted: str) -> Path:
        path = found(files, wanted)
        if next(evictions, False):
            files.close()
            path.unlink()
        return path

    monkeypatch.setattr(RemoteFiles, "path", evicted)
    assert int(store[5][column]) == 5
    assert not next(evictions, False)
    store.close()


def test_objects_of_one_name_and_etag_on_two_servers_are_kept_apart(
    server: S3Server, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with counting_server(table(0)) as one, counting_server(table(7)) as two:
        firsts = [first_row(server.options(url), cache) for url in (one, two, one)]
    assert firsts == [0, 7, 0]
