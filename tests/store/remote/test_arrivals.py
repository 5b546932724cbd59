"""What is compared when a file arrives, and in which order files come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from fault_proxy import Fault
from feedline.errors import DamagedDataError
from feedline.store.remote import objects as objects_module
from feedline.store.remote.crc32 import combine
from feedline.store.remote.places import default_limit
from feedline.store.remote.turns import Turns
from object_server import FaultProxy, S3Server

COLUMNS = {"x": np.arange(60), "y": np.arange(240.0).reshape(60, 4)}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    feedline.pack(COLUMNS, tmp_path / "data", chunk_samples=20)
    return tmp_path / "data"


def changed(folder: Path, **fields: Any) -> dict[str, Any]:
    """Give the first file of a manifest other fields; None takes one away from all of them."""
    manifest = json.loads((folder / "metadata.json").read_bytes())
    for name, value in fields.items():
        for entry in manifest["batch_files"][: 1 if value else None]:
            entry.pop(name)
            entry |= {name: value} if value else {}
    (folder / "metadata.json").write_text(json.dumps(manifest))
    return dict(manifest)


def opened(server: S3Server, folder: Path, url: str | None = None, **options: Any) -> Any:
    name = folder.parent.name
    for path in folder.iterdir():
        server.put("bucket", f"{name}/{path.name}", path.read_bytes())
    access = {"storage_options": server.options(url), "cache_folder": folder.parent / "cache"}
    return feedline.open(f"s3://bucket/{name}", **access, **options)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_sums_of_parts_give_that_of_the_whole(parts: list[bytes]) -> None:
    assert combine([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(b"".join(parts))


def test_sums_of_long_parts_give_that_of_the_whole() -> None:
    data = np.random.default_rng(0).bytes(3_000_000)
    parts = [data[:1_048_577], data[1_048_577:]]
    assert combine([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(data)


def test_the_manifest_has_the_crc32_of_each_file(folder: Path) -> None:
    entries = json.loads((folder / "metadata.json").read_bytes())["batch_files"]
    found = {entry["path"]: entry["crc32"] for entry in entries}
    data = {path.name: path.read_bytes() for path in folder.glob("chunk-*")}
    assert found == {name: f"{zlib.crc32(content):08x}" for name, content in data.items()}


def test_the_crc32_is_no_part_of_the_fingerprint(folder: Path) -> None:
    before = feedline.open(folder).fingerprint
    changed(folder, crc32=None)
    assert feedline.open(folder).fingerprint == before


@pytest.mark.parametrize("kept", ["both", "checksum"])
def test_a_damaged_body_is_fetched_again(
    kept: str, folder: Path, server: S3Server, proxy: FaultProxy
) -> None:
    if kept == "checksum":
        changed(folder, crc32=None)
    proxy.inject(Fault(kind="corrupt", after=300, path="chunk-", times=2))
    with closing(opened(server, folder, proxy.url)) as store:
        assert store.read(0, range(20))["x"].tolist() == list(range(20))
    assert proxy.num_requests == 4


def test_a_file_with_another_crc32_than_recorded_is_damaged(folder: Path, server: S3Server) -> None:
    changed(folder, crc32="00000000")
    wrong = pytest.raises(DamagedDataError, match="crc32:00000000")
    with closing(opened(server, folder)) as store, wrong:
        store.read(0, [0])


def test_verify_compares_the_checksum(folder: Path, server: S3Server) -> None:
    wrong = f"blake2b:{'0' * 32}"
    changed(folder, checksum=wrong)
    with closing(opened(server, folder)) as store:
        assert store.read(0, [7])["x"].tolist() == [7]
    refused = pytest.raises(DamagedDataError, match=wrong)
    with closing(opened(server, folder, verify=True)) as store, refused:
        store.read(0, [0])


def test_work_with_the_lowest_number_comes_first() -> None:
    turns, begun, may_end, done = Turns(1, "test"), threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        may_end.wait(30)

    futures = [turns.submit(9, first)]
    assert begun.wait(30)
    futures += [turns.submit(turn, lambda turn=turn: done.append(turn)) for turn in (5, 3, 0, 4)]
    futures[-1].cancel()
    may_end.set()
    for future in futures[:-1]:
        future.result(30)
    assert done == [0, 3, 5]


def test_what_waits_for_its_turn_does_not_delay_the_end_of_the_process(
    folder: Path, server: S3Server, proxy: FaultProxy
) -> None:
    opened(server, folder).close()
    code = (
        "import sys, feedline\n"
        "from feedline.store.remote import files\n"
        "files._NUM_FETCHERS = 1\n"
        "store = feedline.open(sys.argv[1], cache_folder=sys.argv[2])\n"
        "for chunk in range(3): store.prefetch(chunk)\n"
    )
    command = [sys.executable, "-c", code, f"s3://bucket/{folder.parent.name}"]
    environment = {**os.environ, **server.environment(proxy.url)}
    proxy.set(latency=0.5)
    subprocess.run([*command, str(folder.parent / "other")], env=environment, check=True)
    # The manifest, and the file that was on its way, if its thread had begun; not all three.
    assert 1 <= proxy.num_requests <= 2


def test_the_default_limit_counts_files_with_and_without_endings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    (tmp_path / "without-an-ending").write_bytes(bytes(300))
    (tmp_path / "a.parquet").write_bytes(bytes(200))
    assert default_limit(tmp_path) == 750


def test_files_may_vanish_while_the_default_limit_is_computed(tmp_path: Path) -> None:
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for number in range(50):
                (tmp_path / f"{number}.part").touch()
            for number in range(50):
                (tmp_path / f"{number}.part").unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert all(default_limit(tmp_path) > 0 for _ in range(300))
    finally:
        is_over.set()
        thread.join()
