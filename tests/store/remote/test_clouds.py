"""Data in other clouds than Amazon's: `az://` by azurite, `gs://` by moto, `http://` by both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from azure_server import AzureServer, azure_server, azurite_path
from fault_proxy import Fault
from feedline.errors import DamagedDataError, MissingDataError, RemoteError
from feedline.store.remote import objects as objects_module
from feedline.store.remote.objects import Objects
from feedline.store.remote.urls import Url
from object_server import FaultProxy, S3Server, fault_proxy, throttled, too_busy

NUM_SAMPLES = 300


@pytest.fixture(autouse=True)
def _short_waits_and_own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "feedline"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clouds") / "data"
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(NUM_SAMPLES), "x": rng.random((NUM_SAMPLES, 64))}
    feedline.pack(columns, path, chunk_samples=50)
    return path


def check_same(url: str, folder: Path, cache: Path, options: dict[str, Any]) -> None:
    """Check that all samples at a URL are those of the folder."""
    expected = feedline.open(folder)
    found = feedline.open(url, storage_options=options, cache_folder=cache)
    assert len(found) == len(expected) == NUM_SAMPLES
    for mine, theirs in zip(found, expected, strict=True):
        assert sorted(mine) == ["id", "x"]
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.fixture(scope="module")
def public_folder(server: S3Server, folder: Path) -> str:
    """The bucket and folder of data that can be read without keys."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            key = f"clouds/{path.relative_to(folder)}"
            server.put("bucket", key, path.read_bytes(), is_public=True)
    return "bucket/clouds"


def test_a_folder_in_google_cloud_storage_reads_as_it_lies_on_disk(
    server: S3Server, proxy: FaultProxy, public_folder: str, folder: Path, tmp_path: Path
) -> None:
    proxy.inject(too_busy(times=2), throttled(0), Fault(kind="cut", after=100), Fault(kind="drop"))
    options = server.gcs_options(proxy.url) | {"client_options": {"allow_http": True}}
    check_same(f"gs://{public_folder}", folder, tmp_path, options)
    assert {seen.fault for seen in proxy.seen} == {"status", "cut", "drop", None}


def test_a_folder_on_a_web_server_reads_as_it_lies_on_disk(
    proxy: FaultProxy, public_folder: str, folder: Path, tmp_path: Path
) -> None:
    proxy.inject(too_busy(times=2), Fault(kind="cut", after=100))
    check_same(f"{proxy.url}/{public_folder}", folder, tmp_path, {})
    assert {seen.method for seen in proxy.seen} <= {"GET", "HEAD"}


def test_missing_objects_of_google_cloud_storage_are_said_to_be_missing(server: S3Server) -> None:
    objects = Objects(server.gcs_options() | {"client_options": {"allow_http": True}})
    with pytest.raises(MissingDataError, match="gs://bucket/nowhere"):
        objects.read(Url.of("gs://bucket/nowhere"))


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    if azurite_path() is None:
        pytest.skip("azurite is not installed; `make test-azure` installs it with npm")
    with azure_server(tmp_path_factory.mktemp("azurite")) as found:
        found.make_container("container")
        yield found


@pytest.mark.slow
def test_a_folder_in_azure_reads_as_it_lies_on_disk(
    azure: AzureServer, folder: Path, tmp_path: Path
) -> None:
    objects, url = Objects(azure.options()), Url.of("az://container/some data")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            objects.write(url / str(path.relative_to(folder)), path)
    with fault_proxy(azure.url) as proxy:
        proxy.inject(too_busy(times=2), throttled(0), Fault(kind="cut", after=100))
        check_same(str(url), folder, tmp_path, azure.options(proxy.url))
        assert {seen.fault for seen in proxy.seen} == {"status", "cut", None}


@pytest.mark.slow
def test_blobs_are_written_listed_and_read_in_ranges(azure: AzureServer) -> None:
    objects, url = Objects(azure.options()), Url.of("az://container/more")
    data = np.arange(100_000, dtype=np.uint32).tobytes()
    objects.write(url / "a.bin", data)
    head = objects.head(url / "a.bin")
    assert head.num_bytes == len(data)
    assert objects.read_range(url / "a.bin", 10, 5000, head.etag) == data[10:5000]
    assert [name for name, _ in objects.list_heads(url, 10)] == ["a.bin"]
    objects.write(url / "a.bin", data[::-1])
    with pytest.raises(DamagedDataError, match="has changed since"):
        objects.read_range(url / "a.bin", 10, 5000, head.etag)


@pytest.mark.slow
def test_data_is_packed_to_azure(azure: AzureServer, folder: Path, tmp_path: Path) -> None:
    url, options = "az://container/packed", azure.options()
    feedline.pack(feedline.open(folder), url, chunk_samples=70, storage_options=options)
    check_same(url, folder, tmp_path, options)


@pytest.mark.slow
def test_azure_refuses_wrong_keys_and_missing_blobs_clearly(azure: AzureServer) -> None:
    with pytest.raises(MissingDataError, match="az://container/nowhere"):
        Objects(azure.options()).read(Url.of("az://container/nowhere"))
    wrong = azure.options() | {"account_key": "d3Jvbmc="}
    with pytest.raises(RemoteError, match="403"):
        Objects(wrong).read(Url.of("az://container/nowhere"))
