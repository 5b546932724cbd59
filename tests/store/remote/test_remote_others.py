"""Data of others by URL: the same samples as from disk, for formats with an index and for files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, MissingDataError
from feedline.store import Store
from feedline.store.remote import parquet as parquet_module
from feedline.store.remote import paths as paths_module
from foreign import data_of
from object_server import FaultProxy, S3Server

#: Folders of others with an index, by format; compressed ones too.
INDEXED = (
    "mds",
    "litdata",
    "huggingface",
    "mds/compressed/br",
    "litdata/table",
    "litdata/documents",
)


def folder_of(name: str) -> Path:
    form, _, other = name.partition("/")
    return data_of(form).parent / other if other else data_of(form)


def served(server: S3Server, path: Path, name: str, access: str, cache: Path, **more: Any) -> Store:
    files = path.rglob("*") if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            key = f"{name}/{file.relative_to(path)}" if path.is_dir() else name
            server.put("bucket", key, file.read_bytes())
    given = {"storage_options": server.options(access), "cache_folder": cache, **more}
    return feedline.open(f"s3://bucket/{name}", cache_limit=2**30, **given)


def assert_same(near: Store, far: Store) -> None:
    assert len(near) == len(far)
    assert list(near.columns.values()) == list(far.columns.values())
    for index in (0, len(near) // 2, len(near) - 1):
        for name, value in near[index].items():
            np.testing.assert_array_equal(far[index][name], value)


@pytest.mark.parametrize("form", INDEXED)
def test_a_folder_with_an_index_has_the_samples_of_its_files(
    form: str, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    name, path = f"others/{form}", folder_of(form)
    far = served(server, path, name, proxy.url, tmp_path / "cache")
    near = feedline.open(path)
    assert_same(near, far)
    assert f"s3://bucket/{name}" in far.describe_row(0, 0)
    assert not any("list-type" in seen.target for seen in proxy.seen), "nothing is listed"
    if "id" in near.columns:
        loader = feedline.DataLoader(far, 7, shuffle=True, window="2 chunks", seed=1)
        ids = [int(number) for batch in loader for number in batch["id"]]
        assert sorted(ids) == list(range(len(near)))
    assert far.fingerprint == pickle.loads(pickle.dumps(far)).fingerprint
    far.close()


@pytest.mark.parametrize("ending", ["parquet", "arrow", "npy", "safetensors"])
def test_a_file_has_its_samples(
    ending: str, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    values = np.arange(600.0).reshape(100, 6)
    path = tmp_path / f"table.{ending}"
    if ending == "npy":
        np.save(path, values)
    elif ending == "safetensors":
        feedline.pack({"x": values}, tmp_path / "packed", chunk_samples=100)
        os.rename(next((tmp_path / "packed").glob("*.safetensors")), path)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        feather = pytest.importorskip("pyarrow.feather")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({"x": list(values), "id": np.arange(100)})
        if ending == "parquet":
            parquet.write_table(table, path, row_group_size=30)
        else:
            feather.write_feather(table, path, chunksize=30, compression="uncompressed")
    far = served(server, path, f"files/table.{ending}", proxy.url, tmp_path / "cache")
    near = feedline.open(path)
    assert_same(near, far)
    assert far.chunk_sizes.tolist() == near.chunk_sizes.tolist()
    far.close()


def test_of_a_large_parquet_file_the_footer_and_row_groups_are_fetched(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "_LARGEST_WHOLE", 1000)
    monkeypatch.setattr(parquet_module, "USUAL_FOOTER", 300)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = [[number] * (number % 5) for number in range(4000)]
    values = np.random.default_rng(1).random(4000)
    table = pyarrow.table({"id": np.arange(4000), "x": values, "words": lists})
    path = tmp_path / "large.parquet"
    parquet.write_table(table, path, row_group_size=400)
    far = served(server, path, "files/large.parquet", proxy.url, tmp_path / "cache")
    near = feedline.open(path)
    assert_same(near, far)
    far.close()
    # Whether lists are equally long shows only in the data, so that all of it is looked at.
    given: Any = {"storage_options": server.options(proxy.url), "cache_limit": 2**30}
    given |= {"cache_folder": tmp_path / "b", "columns": ["id", "x"]}
    again = feedline.open("s3://bucket/files/large.parquet", **given)
    proxy.forget()
    assert again[1234]["x"] == values[1234]
    size = path.stat().st_size
    assert 0 < proxy.num_bytes < size / 5, "one row group of ten, and the footer"
    loader = feedline.DataLoader(again, 100, shuffle=True, window="2 chunks", num_threads=2)
    ids = [int(number) for batch in loader for number in batch["id"]]
    assert sorted(ids) == list(range(4000))
    assert proxy.num_bytes < 1.05 * size + 5000
    copied = pickle.loads(pickle.dumps(again))
    assert copied[3999]["id"] == 3999
    again.close()


def test_a_parquet_file_with_a_wild_footer_is_damaged(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "_LARGEST_WHOLE", 10)
    given: Any = {"storage_options": server.options(), "cache_folder": tmp_path / "cache"}
    for name, tail in {"long": b"\xff\xff\xff\xffPAR1", "none": b"12345678"}.items():
        server.put("bucket", f"{name}.parquet", b"PAR1" + bytes(100) + tail)
        with pytest.raises(DamagedDataError, match=rf"s3://bucket/{name}.parquet: .* write it"):
            feedline.open(f"s3://bucket/{name}.parquet", **given)


def test_a_file_that_changes_is_not_mixed_with_what_was_opened(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    path = folder_of("mds")
    far = served(server, path, "changing", proxy.url, tmp_path / "cache")
    before = far.fingerprint
    last = len(far.chunk_sizes) - 1
    shard = sorted(file.name for file in path.glob("*.mds*"))[-1]
    data = bytearray((path / shard).read_bytes())
    data[-1] ^= 1
    server.put("bucket", f"changing/{shard}", bytes(data))
    # What is in the cache is the object that was opened; without it, there is no such object.
    far.close()
    for cached in (tmp_path / "cache").glob("*.mds"):
        cached.unlink()
    with pytest.raises(DamagedDataError, match="has changed since it was opened"):
        far.read(last, [0])
    given = {"storage_options": server.options(), "cache_folder": tmp_path / "cache"}
    assert feedline.open("s3://bucket/changing", **given).fingerprint != before


def test_what_cannot_be_opened_says_what_can(server: S3Server, tmp_path: Path) -> None:
    given: Any = {"storage_options": server.options(), "cache_folder": tmp_path}
    with pytest.raises(MissingDataError, match=r"nothing: has no metadata.json, no index of"):
        feedline.open("s3://bucket/nothing", **given)
    with pytest.raises(MissingDataError, match=r"s3://bucket/x.parquet: (it )?does not exist"):
        feedline.open("s3://bucket/x.parquet", **given)
    with pytest.raises(MissingDataError, match=r"x.npy: it does not exist"):
        feedline.open("s3://bucket/x.npy", window=3, **given)
