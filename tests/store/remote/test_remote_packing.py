"""Packing from URLs and to URLs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import FeedlineError, InvalidValueError, PackError
from feedline.store.remote import objects as objects_module
from object_server import FaultProxy, S3Server, forbidden, too_busy

COLUMNS = {"x": np.arange(300), "y": np.arange(900.0).reshape(-1, 3)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


def bytes_in(server: S3Server, folder: str) -> dict[str, bytes]:
    keys = [key for key in server.keys("bucket") if key.startswith(f"{folder}/")]
    return {key.removeprefix(f"{folder}/"): server.get("bucket", key) for key in keys}


def test_what_is_packed_to_a_url_is_what_is_packed_to_a_folder(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"chunk_samples": 70, "shuffle": True, "split": 0.2}
    feedline.pack(COLUMNS, tmp_path / "near", **given)
    access = server.options(proxy.url)
    proxy.inject(too_busy(times=2))
    result = feedline.pack(COLUMNS, "s3://bucket/packed", storage_options=access, **given)
    assert str(result.folder) == "s3://bucket/packed"
    near = {
        path.relative_to(tmp_path / "near").as_posix(): path.read_bytes()
        for path in (tmp_path / "near").rglob("*")
        if path.is_file()
    }
    assert bytes_in(server, "packed") == near
    written = [seen.target for seen in proxy.seen if seen.method == "PUT" and seen.status == 200]
    assert [target.endswith("metadata.json") for target in written[-2:]] == [True, True]
    assert not any(target.endswith("metadata.json") for target in written[:-2])
    assert not list((tmp_path / "cache" / "packing").iterdir()), "nothing is left on disk"


def test_packing_over_existing_data_is_refused_unless_asked_for(server: S3Server) -> None:
    access: Any = {"storage_options": server.options(), "chunk_samples": 100}
    feedline.pack(COLUMNS, "s3://bucket/twice", **access)
    with pytest.raises(PackError, match=r"s3://bucket/twice: exists; use another URL"):
        feedline.pack(COLUMNS, "s3://bucket/twice", **access)
    other = {"x": np.arange(5)}
    assert feedline.pack(other, "s3://bucket/twice", overwrite=True, **access).num_samples == 5


NESTED = {"x": np.arange(300), "r/y": np.arange(300)}
HALVES = {"split": {"a": 0.5, "b": 0.5}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"format": "npy"}, {}),
        ({}, HALVES),
        (HALVES, HALVES),
        (HALVES, {"split": {"c": 0.2, "b": 0.4, "a": 0.4}}),
    ],
)
def test_data_that_is_replaced_is_gone_and_nothing_else(
    before: dict[str, Any], after: dict[str, Any], server: S3Server, tmp_path: Path
) -> None:
    folder = tmp_path.name
    access: Any = {"storage_options": server.options()}
    feedline.pack(NESTED, f"s3://bucket/{folder}", chunk_samples=10, **access, **before)
    others = [
        *["chunk-000099.txt", "chunk-000099.npy.bak", "notes/chunk-000001.npy", "readme.md"],
        *["x/y/metadata.json", "x/y/chunk-000001.npy", "a/chunk-1.npy"],
    ]
    for name in others:
        server.put("bucket", f"{folder}/{name}", b"mine")
    with pytest.raises(PackError, match="exists; use another URL, or overwrite=True"):
        feedline.pack(NESTED, f"s3://bucket/{folder}", chunk_samples=100, **access, **after)
    fresh: Any = {"chunk_samples": 100, "overwrite": True, **access, **after}
    for name in (folder, f"{folder}-fresh"):
        feedline.pack(NESTED, f"s3://bucket/{name}", **fresh)
    expected = bytes_in(server, f"{folder}-fresh") | dict.fromkeys(others, b"mine")
    assert bytes_in(server, folder) == expected


@pytest.mark.parametrize("after", [{}, {"split": {"a": 0.5, "c": 0.5}}])
def test_data_that_may_be_data_by_itself_is_never_removed(
    after: dict[str, Any], server: S3Server, tmp_path: Path
) -> None:
    url, access = f"s3://bucket/{tmp_path.name}", {"storage_options": server.options()}
    for name in ("a", "b"):
        feedline.pack(COLUMNS, f"{url}/{name}", **access)
    there = bytes_in(server, tmp_path.name)
    with pytest.raises(PackError, match="exists; use another URL, or overwrite=True"):
        feedline.pack(COLUMNS, url, **access, **after)
    with pytest.raises(PackError, match=r"has packed data in '[ab]/', which is no split"):
        feedline.pack(COLUMNS, url, overwrite=True, **access, **after)
    assert bytes_in(server, tmp_path.name) == there
    # Beside data in the folder itself it is certainly none of that.
    server.put("bucket", f"{tmp_path.name}/metadata.json", b"old")
    feedline.pack(COLUMNS, url, overwrite=True, **access)
    assert bytes_in(server, tmp_path.name).items() >= there.items()


def test_data_that_others_wrote_after_an_upload_was_interrupted_is_not_replaced(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    url, access = f"s3://bucket/{tmp_path.name}", {"storage_options": server.options(proxy.url)}
    proxy.inject(forbidden(times=None, method="PUT", path="b/metadata.json"))
    with pytest.raises(FeedlineError, match="access is denied"):
        feedline.pack(COLUMNS, url, **access, **HALVES)
    proxy.clear()
    name, there = f"{tmp_path.name}/a/metadata.json", bytes_in(server, tmp_path.name)
    server.put("bucket", name, b"theirs")
    with pytest.raises(PackError, match="exists; use another URL, or overwrite=True"):
        feedline.pack(COLUMNS, url, **access, **HALVES)
    server.put("bucket", name, there["a/metadata.json"])
    assert feedline.pack(COLUMNS, url, **access, **HALVES).num_samples == 300
    # All of it is there now.
    with pytest.raises(PackError, match="exists; use another URL, or overwrite=True"):
        feedline.pack(COLUMNS, url, **access, **HALVES)


def test_an_upload_that_fails_leaves_no_manifest_and_can_be_made_again(
    server: S3Server, proxy: FaultProxy
) -> None:
    access: Any = {"storage_options": server.options(proxy.url), "chunk_samples": 100}
    proxy.inject(forbidden(times=None, method="PUT", path="chunk-000002"))
    with pytest.raises(FeedlineError, match="access is denied"):
        feedline.pack(COLUMNS, "s3://bucket/refused", **access)
    assert "metadata.json" not in bytes_in(server, "refused")
    proxy.clear()
    assert feedline.pack(COLUMNS, "s3://bucket/refused", **access).num_samples == 300
    assert "metadata.json" in bytes_in(server, "refused")


def test_an_upload_that_failed_is_resumed_without_packing_again(
    server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    access: Any = {"storage_options": server.options(proxy.url), "chunk_samples": 30}
    proxy.inject(forbidden(times=None, method="PUT", path="chunk-000009"))
    with pytest.raises(FeedlineError, match="access is denied"):
        feedline.pack(COLUMNS, "s3://bucket/resumed", **access)
    done = set(bytes_in(server, "resumed"))
    assert done
    proxy.clear()
    proxy.forget()
    with monkeypatch.context() as patched:
        patched.setattr("feedline.packing.packer.Plan", None)
        result = feedline.pack(COLUMNS, "s3://bucket/resumed", **access)
    assert (result.num_samples, result.num_chunks) == (300, 10)
    put = {seen.target.rpartition("/")[2] for seen in proxy.seen if seen.method == "PUT"}
    assert put == set(bytes_in(server, "resumed")) - done
    given = {"storage_options": access["storage_options"]}
    with closing(feedline.open("s3://bucket/resumed", **given)) as far:
        assert far[:]["x"].tolist() == COLUMNS["x"].tolist()


@pytest.mark.parametrize("other", ["data", "settings", "resume"])
def test_another_request_after_a_failed_upload_packs_anew(
    other: str, server: S3Server, proxy: FaultProxy
) -> None:
    url = f"s3://bucket/anew-{other}"
    access: Any = {"storage_options": server.options(proxy.url), "chunk_samples": 100}
    proxy.inject(forbidden(times=None, method="PUT", path="chunk-000002"))
    with pytest.raises(FeedlineError, match="access is denied"):
        feedline.pack(COLUMNS, url, **access)
    proxy.clear()
    columns = {**COLUMNS, "x": COLUMNS["x"] + 1} if other == "data" else COLUMNS
    access |= {"settings": {"chunk_samples": 50}, "resume": {"resume": False}}.get(other, {})
    result = feedline.pack(columns, url, **access)
    assert result.num_chunks == (6 if other == "settings" else 3)
    given = {"storage_options": access["storage_options"]}
    with closing(feedline.open(url, **given)) as far:
        assert far[:]["x"].tolist() == columns["x"].tolist()


def test_data_at_a_url_is_packed_to_a_folder(server: S3Server, tmp_path: Path) -> None:
    access = server.options()
    feedline.pack(COLUMNS, "s3://bucket/from", storage_options=access, chunk_samples=100)
    given: dict[str, Any] = {"chunk_samples": 50, "shuffle": True}
    feedline.pack(COLUMNS, tmp_path / "direct", **given)
    feedline.pack("s3://bucket/from", tmp_path / "far", storage_options=access, **given)
    direct, far = (feedline.open(tmp_path / name) for name in ("direct", "far"))
    np.testing.assert_array_equal(direct[:]["y"], far[:]["y"])


def test_options_for_urls_need_a_url(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="neither side is a URL"):
        feedline.pack(COLUMNS, tmp_path / "x", storage_options={})


def test_what_others_wrote_over_a_failed_upload_is_written_again(
    server: S3Server, proxy: FaultProxy
) -> None:
    access: Any = {"storage_options": server.options(proxy.url), "chunk_samples": 30}
    proxy.inject(forbidden(times=None, method="PUT", path="chunk-000009"))
    with pytest.raises(FeedlineError, match="access is denied"):
        feedline.pack(COLUMNS, "s3://bucket/over", **access)
    for name, data in bytes_in(server, "over").items():
        server.put("bucket", f"over/{name}", bytes(len(data)))
    proxy.clear()
    feedline.pack(COLUMNS, "s3://bucket/over", **access)
    given = {"storage_options": access["storage_options"]}
    with closing(feedline.open("s3://bucket/over", **given)) as far:
        assert far[:]["x"].tolist() == COLUMNS["x"].tolist()
