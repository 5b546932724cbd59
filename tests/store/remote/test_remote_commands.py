"""URLs in the command line, and what was fetched in logs and reports."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from cli_runs import invoke
from feedline.errors import InvalidValueError
from feedline.report import report_logs
from feedline.runs import read_log
from feedline.store.remote import objects as objects_module
from object_server import FaultProxy, S3Server, too_busy

COLUMNS = {"x": np.arange(120), "y": np.arange(480.0).reshape(-1, 4)}


@pytest.fixture(autouse=True)
def _environment(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment(proxy.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


@pytest.fixture
def url(server: S3Server, tmp_path: Path) -> str:
    feedline.pack(COLUMNS, tmp_path / "near", chunk_samples=20)
    for path in (tmp_path / "near").iterdir():
        server.put("bucket", f"cli-{tmp_path.name}/{path.name}", path.read_bytes())
    return f"s3://bucket/cli-{tmp_path.name}"


def test_inspect_shows_data_at_a_url(url: str) -> None:
    found = json.loads(invoke("inspect", url, "--json").stdout)
    assert found["path"] == url
    assert (found["num_samples"], found["num_chunks"]) == (120, 6)
    assert [column["name"] for column in found["columns"]] == ["x", "y"]


def test_pack_takes_urls_on_both_sides(url: str) -> None:
    options = ("--chunk-samples", "50", "--json")
    found = json.loads(invoke("pack", url, f"{url}-again", *options).stdout)
    assert (found["folder"], found["num_chunks"]) == (f"{url}-again", 3)
    with closing(feedline.open(f"{url}-again")) as store:
        np.testing.assert_array_equal(store[:]["y"], COLUMNS["y"])


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_verify_reads_the_bucket_and_not_the_cache(
    form: str, server: S3Server, tmp_path: Path
) -> None:
    url = f"s3://bucket/verified-{form}"
    feedline.pack(COLUMNS, url, format=form, chunk_samples=20)
    with closing(feedline.open(url)) as store:
        assert len(store[:]["x"]) == 120
    assert json.loads(invoke("verify", url, "--json").stdout)["ok"]
    name = next(key for key in server.keys("bucket") if key.startswith(f"verified-{form}/chunk-"))
    data = bytearray(server.get("bucket", name))
    data[-1] ^= 1
    server.put("bucket", name, bytes(data))
    server.put("bucket", f"verified-{form}/other.txt", b"?")
    done = invoke("verify", url, "--json")
    faults = [fault["text"] for fault in json.loads(done.stdout)["faults"]]
    assert done.returncode == 1
    assert len(faults) == 2
    assert "chunk-00000" in faults[0]
    assert "other.txt: is not in metadata.json" in faults[1]
    assert not list((tmp_path / "cache").glob("verify-*")), "nothing is left on disk"
    with pytest.raises(InvalidValueError, match="is not a URL"):
        feedline.verify(tmp_path, storage_options={})


def test_verify_reads_all_splits_of_a_bucket(server: S3Server) -> None:
    url = "s3://bucket/verified-splits"
    feedline.pack(COLUMNS, url, chunk_samples=20, split=0.5)
    found = feedline.verify(url)
    assert (found.ok, found.num_samples, str(found.folder)) == (True, 120, url)
    server.put("bucket", "verified-splits/train/other.txt", b"?")
    name = next(key for key in server.keys("bucket") if "verified-splits/validation/chunk-" in key)
    server.put("bucket", name, server.get("bucket", name)[:-1])
    damaged, extra = feedline.verify(url).faults
    assert name in damaged.text
    assert "train/other.txt: is not in metadata.json" in extra.text


def test_bench_data_measures_data_at_a_url(url: str) -> None:
    options = ("--seconds", "0.05", "--batch-size", "10", "--num-threads", "1", "--json")
    found = json.loads(invoke("bench-data", url, *options).stdout)
    assert {figure["stage"] for figure in found["figures"]} == {"gather", "batches"}
    assert "at a URL" in found["missing"]["storage"]
    assert "requests" in found["fetched"]


def test_what_a_run_has_fetched_is_in_its_log_and_its_report(
    url: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.inject(too_busy(times=1, path="chunk-"))
    with closing(feedline.open(url)) as store:
        given: Any = {"shuffle": True, "window": "2 chunks", "log": tmp_path / "logs"}
        with closing(feedline.DataLoader(store, 10, **given)) as loader:
            assert sum(len(batch["x"]) for batch in loader) == 120
    (log,) = (tmp_path / "logs").rglob("*.log")
    (event,) = [e for e in read_log(log).entries if getattr(e, "name", "") == "fetched"]
    assert event.fields["num_misses"] == 6
    assert event.fields["num_retries"] == 1
    assert event.fields["num_requests"] == 7
    assert event.fields["num_bytes"] == sum(
        path.stat().st_size for path in (tmp_path / "near").glob("chunk-*")
    )
    report = report_logs([tmp_path / "logs"], num_samples=120)
    (panel,) = [panel for panel in report.panels if panel.title == "Data from object storage"]
    assert "7 requests" in panel.text
    assert "0% of files were in the cache" in panel.text


def test_the_next_epoch_opens_no_file_again_unless_room_is_short(url: str) -> None:
    def opened(limit: int) -> int:
        with closing(feedline.open(url, cache_limit=limit)) as store:
            loader = feedline.DataLoader(store, 10, shuffle=True, window="2 chunks", num_threads=0)
            for _ in range(2):
                assert sum(len(batch["x"]) for batch in loader) == 120
            before = [store._open_chunks.get(chunk) for chunk in range(6)]
            assert sum(len(batch["x"]) for batch in loader) == 120
            return sum(store._open_chunks.get(chunk) is before[chunk] for chunk in range(6))

    assert opened(2**30) == 6
    assert opened(2**14) < 6
