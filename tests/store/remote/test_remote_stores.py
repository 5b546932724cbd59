"""Packed folders on a real server: what is read, what is fetched, and what stays in the cache."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from fault_proxy import Fault
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    PlanMismatchError,
)
from feedline.store import Store
from feedline.store.cache import FileCache
from feedline.store.remote import files as files_module
from feedline.store.remote import objects as objects_module
from object_server import FaultProxy, S3Server, too_busy
from reader_threads import wait_until

NUM_SAMPLES, CHUNK = 500, 50
COLUMNS = {"x": np.arange(NUM_SAMPLES), "y": np.arange(NUM_SAMPLES * 40.0).reshape(-1, 40)}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "data"
    feedline.pack(COLUMNS, folder, chunk_samples=CHUNK)
    upload(server, folder, "data")
    return folder


@pytest.fixture
def opened(local: Path, server: S3Server, proxy: FaultProxy, tmp_path: Path) -> Iterator[Any]:
    def open_it(name: str = "data", **options: Any) -> Any:
        access = {**server.options(proxy.url), "client_options": {"read_timeout": "1s"}}
        given = {"storage_options": access, "cache_folder": tmp_path / "cache", **options}
        stores.append(feedline.open(f"s3://bucket/{name}", **{"cache_limit": 2**30, **given}))
        return stores[-1]

    stores: list[Store] = []
    before = set(threading.enumerate())
    yield open_it
    for store in stores:
        store.close()
    # Or the proxy would see their requests in the next test.
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("feedline-fetch", "feedline-release")):
            thread.join()


def upload(server: S3Server, folder: Path, name: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.put("bucket", f"{name}/{path.relative_to(folder)}", path.read_bytes())


def targets(proxy: FaultProxy) -> list[str]:
    return [seen.target.partition("?")[0].rpartition("/")[2] for seen in proxy.seen]


def test_opening_reads_the_manifest_and_nothing_else(opened: Any, proxy: FaultProxy) -> None:
    store = opened()
    assert (len(store), store.fingerprint, list(store.columns)) == (
        *(NUM_SAMPLES, opened().fingerprint),
        ["x", "y"],
    )
    assert targets(proxy) == ["metadata.json"] * 2
    assert "s3://bucket/data" in repr(store)


def test_samples_are_those_of_the_local_folder(opened: Any, local: Path) -> None:
    near, far = feedline.open(local), opened()
    for name, values in near[:].items():
        np.testing.assert_array_equal(far[:][name], values)
    assert far[77]["x"] == 77
    only = opened(columns=["x"])
    assert list(only[3]) == ["x"]
    assert far.select(["y"])[2]["y"].tolist() == COLUMNS["y"][2].tolist()


def test_each_file_is_fetched_once_by_all_stores_of_a_node(
    opened: Any, proxy: FaultProxy, local: Path
) -> None:
    opened()[:]
    opened()[:]
    chunks = [name for name in targets(proxy) if name != "metadata.json"]
    assert sorted(chunks) == sorted(path.name for path in local.glob("chunk-*"))


@pytest.mark.parametrize("fault", ["corrupt", "cut", "short", "stall", "503"])
def test_every_sample_is_right_whatever_happens_on_the_way(
    fault: str, opened: Any, proxy: FaultProxy
) -> None:
    made = too_busy(times=3) if fault == "503" else Fault(kind=fault, after=700, times=2)
    store = opened()
    proxy.inject(made)
    np.testing.assert_array_equal(store[:]["y"], COLUMNS["y"])


def test_an_object_that_was_replaced_is_never_delivered(
    local: Path, server: S3Server, opened: Any
) -> None:
    upload(server, local, "replaced")
    store = opened("replaced")
    name = "chunk-000003.safetensors"
    server.put("bucket", f"replaced/{name}", (local / "chunk-000004.safetensors").read_bytes())
    assert store[149]["x"] == 149
    with pytest.raises(DamagedDataError, match=rf"digest.*{name}|{name}.*digest"):
        store[150]


def test_a_lost_object_is_named_at_its_batch_and_batches_before_it_come(
    local: Path, server: S3Server, opened: Any
) -> None:
    upload(server, local, "lost")
    server.delete("bucket", "lost/chunk-000004.safetensors")
    loader = feedline.DataLoader(opened("lost"), 25)
    found = []
    with pytest.raises(MissingDataError, match=r"lost/chunk-000004.safetensors: it does not exist"):
        found.extend(batch["x"] for batch in loader)
    assert np.concatenate(found).tolist() == list(range(200))


def test_a_cache_below_one_window_is_an_error_that_names_the_number(
    opened: Any, local: Path
) -> None:
    sizes = sorted(path.stat().st_size for path in local.glob("chunk-*"))
    needed = sum(sizes[-3:])
    loader = feedline.DataLoader(
        opened(cache_limit=needed - 1), 10, shuffle=True, window="3 chunks"
    )
    with pytest.raises(InvalidValueError, match=rf"limit_bytes=\d+ must be at least {needed}, "):
        next(iter(loader))
    loader = feedline.DataLoader(opened(cache_limit=needed), 10, shuffle=True, window="3 chunks")
    assert sum(len(batch["x"]) for batch in loader) == NUM_SAMPLES


@pytest.mark.parametrize("limit", [0, -1, 2.5, "64 MiB"])
def test_a_limit_that_is_none_is_named_as_the_user_did(opened: Any, limit: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"cache_limit={limit!r} must be"):
        opened(cache_limit=limit)


def test_a_cursor_of_a_copy_elsewhere_is_refused_and_says_so(opened: Any, local: Path) -> None:
    loaders = [feedline.DataLoader(store, 10) for store in (opened(), feedline.open(local))]
    for saved, other in (loaders, loaders[::-1]):
        with pytest.raises(PlanMismatchError, match="on a disk and the same data at a URL count"):
            other.load_state_dict(saved.state_dict())


def kept_in(cache: Path) -> int:
    """The bytes in a cache, while files come and go."""
    total = 0
    for path in cache.glob("*.safetensors"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("window", [None, "2 chunks"])
def test_a_small_cache_stays_within_its_limit_and_every_sample_comes(
    num_threads: int, window: str | None, opened: Any, local: Path, tmp_path: Path
) -> None:
    size = max(path.stat().st_size for path in local.glob("chunk-*"))
    limit = 4 * size
    store = opened(cache_limit=limit)
    given = {"num_threads": num_threads, "window": window}
    found = []
    for batch in feedline.DataLoader(store, 10, shuffle=True, seed=3, **given):
        found.append(batch["x"])
        assert kept_in(tmp_path / "cache") <= limit + size
    assert sorted(np.concatenate(found).tolist()) == list(range(NUM_SAMPLES))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_files_that_are_read_without_a_plan_take_one_more_than_the_limit_at_most(
    opened: Any, local: Path, tmp_path: Path
) -> None:
    largest = max(path.stat().st_size for path in local.glob("chunk-*"))
    store = opened(cache_limit=3 * largest)
    most = 0
    for row in range(0, NUM_SAMPLES, CHUNK // 2):
        assert store[row]["x"] == row
        most = max(most, bytes_on_disk(tmp_path / "cache"))
    assert 2 * largest < most <= 4 * largest + 4096


def bytes_on_disk(cache: Path) -> int:
    """Return the bytes of the files of a cache, also of those that were removed but are open."""
    total = sum(path.stat().st_size for path in cache.glob("*.safetensors"))
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(cache) in line and line.endswith("(deleted)"):
            start, end = line.split()[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total


@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_a_node_fetches_the_chunks_of_its_own_windows_only(
    world_size: int, opened: Any, proxy: FaultProxy, local: Path, tmp_path: Path
) -> None:
    size = max(path.stat().st_size for path in local.glob("chunk-*"))
    fetched, needed = 0, 0
    for rank in range(world_size):
        store = opened(cache_folder=tmp_path / f"node-{rank}")
        ranks = {"num_replicas": world_size, "rank": rank}
        loader = feedline.DataLoader(store, 5, shuffle=True, window="1 chunks", **ranks)
        chunks = {int(index) // CHUNK for batch in loader for index in batch["x"]}
        needed += len(chunks) * size
        fetched += store.meters.requests.num_bytes
    manifest = (local / "metadata.json").stat().st_size * world_size
    assert fetched - manifest <= needed


def test_a_run_that_resumes_fetches_nothing_but_what_comes_next(
    opened: Any, proxy: FaultProxy, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"shuffle": True, "window": "1 chunks", "seed": 1}
    loader = feedline.DataLoader(opened(), 5, **given)
    batches = iter(loader)
    for _ in range(90):
        next(batches)
    state = loader.state_dict()
    rest = [batch["x"].tolist() for batch in batches]
    proxy.forget()
    resumed = feedline.DataLoader(opened(cache_folder=tmp_path / "another"), 5, **given)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert [batch["x"].tolist() for batch in resumed] == rest
    assert len([name for name in targets(proxy) if name != "metadata.json"]) == 1


def test_chunks_come_ahead_of_the_loop_that_needs_them(opened: Any, proxy: FaultProxy) -> None:
    store = opened()
    batches = iter(feedline.DataLoader(store, 5, num_threads=1))
    for _ in range(15):
        next(batches)
    # The loop is in the second of ten chunks, and stays there.
    wait_until(lambda: len(set(targets(proxy)) - {"metadata.json"}) >= 4)


def test_nothing_is_held_when_the_pass_is_over(opened: Any, local: Path, server: S3Server) -> None:
    """Other data with a limit of three chunks evicts what the first one has fetched."""
    upload(server, local, "again")
    store = opened()
    for _ in feedline.DataLoader(store, 10, shuffle=True, window="2 chunks", num_threads=2):
        pass
    store.close()
    size = max(path.stat().st_size for path in local.glob("chunk-*"))
    other = opened("again", cache_limit=3 * size)
    assert other[:]["x"].tolist() == list(range(NUM_SAMPLES))
    kept = [path.stat().st_size for path in other.tree.remote.cache.folder.glob("*.safetensors")]
    assert sum(kept) <= 4 * size


def test_a_reader_gets_room_when_another_process_holds_most_of_it(
    opened: Any, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other store announces three chunks, and releases none of them."""
    monkeypatch.setattr(files_module, "_ROOM_SECONDS", 20)
    size = max(path.stat().st_size for path in local.glob("chunk-*"))
    other, store = opened(cache_limit=5 * size), opened(cache_limit=5 * size)
    for chunk in (0, 1, 2):
        other.prefetch(chunk)
    assert other[0]["x"] == 0
    for chunk in (3, 4, 5, 6):
        store.prefetch(chunk)
    assert store[NUM_SAMPLES - 1]["x"] == NUM_SAMPLES - 1
    assert [store[chunk * CHUNK]["x"] for chunk in (3, 6, 8)] == [150, 300, 400]


def test_the_end_of_a_pass_logs_what_was_fetched(
    opened: Any, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    proxy.inject(too_busy(times=1))
    with caplog.at_level("INFO", "feedline"):
        for _ in feedline.DataLoader(store, 10):
            pass
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "feedline-release":
                thread.join()
    # The manifest was read before.
    told = r"remote data: .* KiB in 11 requests, 1 retry, 0 stalls; \d+ hits? and 10 misses"
    messages = [record.message for record in caplog.records]
    assert any(re.match(told, message) for message in messages), messages


def test_a_store_works_in_forked_and_fresh_processes(opened: Any, tmp_path: Path) -> None:
    store = opened()
    assert store[0]["x"] == 0
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if store[:]["x"].tolist() == list(range(NUM_SAMPLES)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    (tmp_path / "pickled").write_bytes(pickle.dumps(store))
    code = "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); print(s[499]['x'])"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(tmp_path / "pickled")]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    assert done.stdout.strip() == "499"


def test_a_url_without_a_manifest_says_so(opened: Any) -> None:
    with pytest.raises(MissingDataError, match=r"s3://bucket/nothing: has no metadata.json"):
        opened("nothing")


def test_options_for_urls_are_refused_for_local_data(local: Path) -> None:
    with pytest.raises(InvalidValueError, match="storage_options=… cannot be used"):
        feedline.open(local, storage_options={"secret_access_key": "hidden"})


def test_a_damaged_manifest_is_named(server: S3Server, opened: Any) -> None:
    server.put("bucket", "broken/metadata.json", b"{")
    with pytest.raises(DamagedDataError, match=r"s3://bucket/broken/metadata.json: is not JSON"):
        opened("broken")
    server.put("bucket", "broken/metadata.json", b"[]")
    with pytest.raises(DamagedDataError, match="must contain a JSON object"):
        opened("broken")


def test_public_data_is_read_by_http(local: Path, server: S3Server, tmp_path: Path) -> None:
    for path in local.iterdir():
        server.put("bucket", f"public/{path.name}", path.read_bytes(), is_public=True)
    store = feedline.open(f"{server.url}/bucket/public", cache_folder=tmp_path, cache_limit=2**30)
    np.testing.assert_array_equal(store[:]["y"], COLUMNS["y"])
    store.close()


def test_a_later_epoch_holds_what_is_still_open(opened: Any, tmp_path: Path) -> None:
    store = opened()
    loader = feedline.DataLoader(store, 10, shuffle=True, window="2 chunks", num_threads=1)

    def epoch() -> list[int]:
        found = np.concatenate([batch["x"] for batch in loader])
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "feedline-release":
                thread.join()
        return sorted(found.tolist())

    assert epoch() == list(range(NUM_SAMPLES))
    before = store.meters
    assert epoch() == list(range(NUM_SAMPLES))
    assert (store.meters - before).num_misses == 0
    # A chunk that is open is held again, so that nobody evicts it.
    store.prefetch(4)
    cache = store.tree.remote.cache
    path = store.tree.files.path("chunk-000004.safetensors")
    small = FileCache(cache.folder, path.stat().st_size + 1, wait_seconds=10)
    small.get("another", 1, lambda part: part.write_bytes(b"x"))
    kept = list((tmp_path / "cache").glob("*.safetensors"))
    assert kept == [path]
    store.release(4)
    assert epoch() == list(range(NUM_SAMPLES))
