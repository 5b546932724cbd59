"""Files of web servers that give no ETag: their date tells one from another, or else their size."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, PlanMismatchError


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's own server, which says when a file was modified and gives no ETag."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Dateless(Quiet):
    """A server that says no more of a file than its size."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified":
            super().send_header(keyword, value)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(Quiet, tmp_path) as found:
        yield found


@pytest.fixture
def url_without_dates(tmp_path: Path) -> Iterator[str]:
    with served(Dateless, tmp_path) as found:
        yield found


@contextmanager
def served(kind: type[Quiet], folder: Path) -> Iterator[str]:
    (folder / "served").mkdir()
    handler = functools.partial(kind, directory=str(folder / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/numbers.bin"
        finally:
            server.shutdown()
            thread.join()


def put(folder: Path, numbers: np.ndarray[Any, Any], day: int) -> None:
    path = folder / "served" / "numbers.bin"
    path.write_bytes(numbers.astype(np.uint16).tobytes())
    os.utime(path, (day * 86400, day * 86400))


def opened(url: str, cache: Path) -> feedline.Store:
    return feedline.open(url, window=8, dtype="uint16", cache_folder=cache)


def first_sample(store: Any) -> list[int]:
    found: list[int] = store[0]["tokens"].tolist()
    store.close()
    return found


def numbers_of(loader: Any) -> list[int]:
    return sorted(int(n) for batch in loader for n in next(iter(batch.values())).ravel())


def test_a_file_that_was_replaced_by_one_of_its_size_is_another_one(
    url: str, tmp_path: Path
) -> None:
    put(tmp_path, np.arange(800), day=10_000)
    with feedline.DataLoader(opened(url, tmp_path / "cache"), batch_size=10) as loader:
        assert numbers_of(loader) == list(range(800))
        state = loader.state_dict()
    late = opened(url, tmp_path / "other cache")
    put(tmp_path, np.arange(1000, 1800), day=10_001)
    with (
        feedline.DataLoader(late, batch_size=10) as loader,
        pytest.raises(DamagedDataError, match="has changed since it was opened"),
    ):
        list(loader)
    # Nothing of the first file comes out of its cache.
    with feedline.DataLoader(opened(url, tmp_path / "cache"), batch_size=10) as loader:
        with pytest.raises(PlanMismatchError):
            loader.load_state_dict(state)
        assert numbers_of(loader) == list(range(1000, 1800))


def test_a_file_that_was_not_modified_is_the_same_one(url: str, tmp_path: Path) -> None:
    put(tmp_path, np.arange(800), day=10_000)
    first, again = (opened(url, tmp_path / "cache") for _ in range(2))
    assert first.fingerprint == again.fingerprint
    for store in (first, again):
        with feedline.DataLoader(store, batch_size=10) as loader:
            assert numbers_of(loader) == list(range(800))
    assert again.meters.num_misses == 0


def test_a_file_that_grew_is_another_one_even_where_its_size_alone_tells(
    url_without_dates: str, tmp_path: Path
) -> None:
    # Two chunks: the first has the same place and the same length in both files.
    before, after = np.arange(2**22) % 2**16, np.arange(2**22 + 8)[::-1] % 2**16
    put(tmp_path, before, day=10_000)
    assert first_sample(opened(url_without_dates, tmp_path / "cache")) == before[:8].tolist()
    late = opened(url_without_dates, tmp_path / "other cache")
    put(tmp_path, after, day=10_000)
    with pytest.raises(DamagedDataError, match="has changed since it was opened"):
        first_sample(late)
    # Nothing of the shorter file comes out of its cache.
    assert first_sample(opened(url_without_dates, tmp_path / "cache")) == after[:8].tolist()
