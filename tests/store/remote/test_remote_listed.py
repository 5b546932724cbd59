"""Data by URL whose files are listed or named by braces, and files of which parts are fetched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from fault_proxy import Fault
from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError
from feedline.store.foreign import megatron as megatron_module
from feedline.store.remote import objects as objects_module
from feedline.store.remote import paths as paths_module
from feedline.store.remote import tokens as tokens_module
from feedline.store.remote.patterns import expand
from foreign import data_of
from object_server import FaultProxy, S3Server


@pytest.fixture(autouse=True)
def _own_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "indexes"))
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


def upload(server: S3Server, path: Path, name: str) -> None:
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and ".feedline-index" not in file.parts:
            key = f"{name}/{file.relative_to(path)}" if path.is_dir() else name
            server.put("bucket", key, file.read_bytes(), is_public=True)


def opened(proxy: FaultProxy, server: S3Server, name: str, cache: Path, **more: Any) -> Any:
    given = {"storage_options": server.options(proxy.url), "cache_folder": cache}
    return feedline.open(f"s3://bucket/{name}", cache_limit=2**30, **{**given, **more})


def assert_same(near: Any, far: Any) -> None:
    assert len(near) == len(far)
    assert list(near.columns.values()) == list(far.columns.values())
    for index in (0, len(near) // 2, len(near) - 1):
        for name, value in near[index].items():
            np.testing.assert_array_equal(far[index][name], value)


def num_listings(proxy: FaultProxy) -> int:
    return sum("list-type" in seen.target for seen in proxy.seen)


@pytest.mark.parametrize("form", ["webdataset", "tfrecord"])
def test_a_folder_of_shards_is_listed_once_and_indexed_once(
    form: str, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    path = data_of(form)
    upload(server, path, f"shards/{form}")
    with closing(opened(proxy, server, f"shards/{form}", tmp_path / "a")) as far:
        assert_same(feedline.open(path), far)
        assert num_listings(proxy) == 1
        ids = [far[i]["id"] for i in range(len(far))] if form == "tfrecord" else []
        assert ids == sorted(ids)
        loader = feedline.DataLoader(far, 7, shuffle=True, window="2 chunks", seed=1)
        assert sum(loader.delivered.num_real for _ in loader) == len(far)
        assert far.fingerprint == pickle.loads(pickle.dumps(far)).fingerprint
    proxy.forget()
    # With an empty cache: the index is kept, so that no shard is read on opening.
    with closing(opened(proxy, server, f"shards/{form}", tmp_path / "b")) as again:
        assert not any(seen.method == "GET" and seen.status == 206 for seen in proxy.seen)
        assert len(again) == len(far)


def test_a_shard_that_changes_is_not_mixed_with_what_was_opened(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    shutil.copytree(data_of("webdataset"), path)
    upload(server, path, "shards/changing")
    far = opened(proxy, server, "shards/changing", tmp_path / "cache")
    before = far.fingerprint
    shard = max(path.glob("*.tar"))
    server.put("bucket", f"shards/changing/{shard.name}", shard.read_bytes() + bytes(512))
    far.close()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DamagedDataError, match="has changed since it was opened"):
        far.read(len(far.chunk_sizes) - 1, [0])
    with closing(opened(proxy, server, "shards/changing", tmp_path / "cache")) as again:
        assert again.fingerprint != before


def test_braces_name_the_shards_on_a_web_server(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    path = data_of("webdataset")
    upload(server, path, "shards/web")
    names = sorted(file.name for file in path.glob("*.tar"))
    url = f"{proxy.url}/bucket/shards/web/{{{','.join(names)}}}"
    with closing(feedline.open(url, cache_folder=tmp_path / "cache")) as far:
        assert_same(feedline.open(path), far)
    with closing(feedline.open(f"{proxy.url}/bucket/shards/web/{names[0]}")) as one:
        assert len(one) == feedline.open(path).chunk_sizes[0]
    with pytest.raises(MissingDataError, match=r"nothing-7.tar: it does not exist"):
        feedline.open(f"{proxy.url}/bucket/shards/web/nothing-{{7..9}}.tar")
    with pytest.raises(MissingDataError, match=r"web/shard-\{000..009\}.tar"):
        feedline.open(f"{proxy.url}/bucket/shards/web")


def test_a_folder_of_tables_is_listed(server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "tables").mkdir()
    for number in (2, 10, 1):
        table = pyarrow.table({"id": np.arange(5) + 100 * number})
        parquet.write_table(table, tmp_path / "tables" / f"part-{number}.parquet")
    upload(server, tmp_path / "tables", "tables")
    with closing(opened(proxy, server, "tables", tmp_path / "cache")) as far:
        assert_same(feedline.open(tmp_path / "tables"), far)
        assert [far[i]["id"] for i in (0, 5, 10)] == [100, 200, 1000]
    assert num_listings(proxy) == 1
    with closing(opened(proxy, server, "tables/part-{1,2}.parquet", tmp_path / "cache")) as two:
        assert len(two) == 10


def test_a_folder_of_splits_names_them(server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(4)}, tmp_path / "data", chunk_samples=2)
    upload(server, tmp_path / "data", "split-data/train")
    with pytest.raises(InvalidValueError, match="split='train'"):
        opened(proxy, server, "split-data", tmp_path / "cache")
    with closing(opened(proxy, server, "split-data", tmp_path / "cache", split="train")) as far:
        assert len(far) == 4


@pytest.mark.parametrize("name", ["data.bin", "data.idx", "data"])
def test_of_a_megatron_dataset_the_parts_that_are_read_are_fetched(
    name: str,
    server: S3Server,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(megatron_module, "_CHUNK_BYTES", 2000)
    path = data_of("megatron").with_suffix("")
    for ending in (".bin", ".idx"):
        upload(server, path.with_suffix(ending), f"megatron/data{ending}")
    with closing(opened(proxy, server, f"megatron/{name}", tmp_path / "cache")) as far:
        near = feedline.open(path.with_suffix(".bin"))
        assert len(far.chunk_sizes) > 3
        proxy.forget()
        np.testing.assert_array_equal(far[7]["tokens"], near[7]["tokens"])
        assert 0 < proxy.num_bytes < path.with_suffix(".bin").stat().st_size / 2
        assert_same(near, far)
        loader = feedline.DataLoader(far, 5, shuffle=True, window="2 chunks", seed=1)
        firsts = [int(tokens[0]) for batch in loader for tokens in batch["tokens"] if len(tokens)]
        assert sorted(firsts) == sorted(int(s["tokens"][0]) for s in near if len(s["tokens"]))
    assert num_listings(proxy) == 0


@pytest.mark.parametrize("ending", ["bin", "npy"])
def test_of_a_file_of_tokens_the_windows_that_are_read_are_fetched(
    ending: str,
    server: S3Server,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens_module, "_CHUNK_BYTES", 1000)
    tokens = np.arange(10_007, dtype=np.uint16)
    path = tmp_path / f"tokens.{ending}"
    tokens.tofile(path) if ending == "bin" else np.save(path, tokens)
    upload(server, path, f"text/tokens.{ending}")
    options = {"window": 33, "stride": 20}
    near = feedline.open(path, **options)
    name = f"text/tokens.{ending}"
    with closing(opened(proxy, server, name, tmp_path / "cache", **options)) as far:
        assert_same(near, far)
        proxy.forget()
        assert far[200]["tokens"].tolist() == tokens[4000:4033].tolist()
        assert 0 < proxy.num_bytes < 1200
        loader = feedline.DataLoader(far, 5, shuffle=True, window="3 chunks", seed=1)
        firsts = [int(row[0]) for batch in loader for row in batch["tokens"]]
        assert sorted(firsts) == list(range(0, 20 * len(near), 20))
        copied = pickle.loads(pickle.dumps(far))
        assert copied[3]["tokens"].tolist() == near[3]["tokens"].tolist()
        assert copied.fingerprint == far.fingerprint
    with closing(opened(proxy, server, name, tmp_path / "cache", window=33)) as other:
        assert other.fingerprint != far.fingerprint
    with pytest.raises(InvalidValueError, match="window=20000 must be"):
        opened(proxy, server, name, tmp_path / "cache", window=20_000)


def test_tokens_need_a_window_and_whole_tokens(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    server.put("bucket", "text/odd.bin", bytes(7))
    with pytest.raises(InvalidValueError, match="window is required"):
        opened(proxy, server, "text/odd.bin", tmp_path)
    with pytest.raises(DamagedDataError, match="7 bytes, which must be a multiple of the 4"):
        opened(proxy, server, "text/odd.bin", tmp_path, window=1, dtype="uint32")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_chunks_that_are_folders_of_npy_files_are_read(
    is_recorded: bool, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    lists = [np.arange(number % 4) for number in range(50)]
    columns = {"x": np.arange(50), "y": np.arange(100.0).reshape(50, 2), "words": lists}
    feedline.pack(columns, tmp_path / "data", format="npy", chunk_samples=20)
    manifest = json.loads((tmp_path / "data" / "metadata.json").read_bytes())
    assert set(manifest["batch_files"][0]["files"]) == {
        "x.npy",
        "y.npy",
        "words/values.npy",
        "words/offsets.npy",
    }
    if not is_recorded:
        for entry in manifest["batch_files"]:
            del entry["files"]
        (tmp_path / "data" / "metadata.json").write_text(json.dumps(manifest))
    name = f"columns-{is_recorded}"
    upload(server, tmp_path / "data", name)
    if is_recorded:
        proxy.inject(Fault(kind="corrupt", after=130, path="y.npy", times=1))
    with closing(opened(proxy, server, name, tmp_path / "cache")) as far:
        assert_same(feedline.open(tmp_path / "data"), far)
        loader = feedline.DataLoader(far, 7, shuffle=True, window="2 chunks", seed=1)
        assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(50))
    assert num_listings(proxy) == 0
    with closing(opened(proxy, server, name, tmp_path / "cache", verify=True)) as checked:
        assert checked[30]["x"] == 30


def test_of_a_large_arrow_file_the_footer_and_batches_are_fetched(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "_LARGEST_WHOLE", 1000)
    pyarrow = pytest.importorskip("pyarrow")
    values = np.random.default_rng(1).random((30_000, 4))
    ids = np.arange(30_000)
    table = pyarrow.table({"id": ids, "x": list(values)})
    path = tmp_path / "large.arrow"
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1500)
    upload(server, path, "files/large.arrow")
    size = path.stat().st_size
    with closing(opened(proxy, server, "files/large.arrow", tmp_path / "cache")) as far:
        assert_same(feedline.open(path), far)
        assert far.chunk_sizes.tolist() == [1500] * 20
    given = {"columns": ["id"]}
    with closing(opened(proxy, server, "files/large.arrow", tmp_path / "b", **given)) as far:
        proxy.forget()
        assert far[12_345]["id"] == 12_345
        assert 0 < proxy.num_bytes < size / 10, "one batch of twenty"
        loader = feedline.DataLoader(far, 100, shuffle=True, window="2 chunks", num_threads=2)
        assert sorted(int(n) for batch in loader for n in batch["id"]) == ids.tolist()
        assert proxy.num_bytes < 1.05 * size + 5000
        assert pickle.loads(pickle.dumps(far))[29_999]["id"] == 29_999


def test_of_an_arrow_file_dictionaries_and_nulls_are_read(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "_LARGEST_WHOLE", 1000)
    pyarrow = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    words = pyarrow.array([["cat", "dog", None][n % 3] for n in range(3000)]).dictionary_encode()
    table = pyarrow.table({"id": np.arange(3000), "word": words})
    path = tmp_path / "words.feather"
    feather.write_feather(table, path, chunksize=500, compression="zstd")
    upload(server, path, "files/words.feather")
    with closing(opened(proxy, server, "files/words.feather", tmp_path / "cache")) as far:
        assert_same(feedline.open(path), far)


def test_an_arrow_file_with_a_wild_footer_is_damaged(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "_LARGEST_WHOLE", 10)
    for name, tail in {"long": b"\xff\xff\xff\x7fARROW1", "none": b"1234567890"}.items():
        server.put("bucket", f"{name}.arrow", b"ARROW1\0\0" + bytes(100) + tail)
        with pytest.raises(DamagedDataError, match=rf"s3://bucket/{name}.arrow: .* write it"):
            opened(proxy, server, f"{name}.arrow", tmp_path)


def test_braces_are_expanded() -> None:
    assert expand("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand("{a,b}-{1..2}") == ["a-1", "a-2", "b-1", "b-2"]
    for wrong in ("{", "a}", "{x}", "{3..1}", "{0..99999999}", "{1..999}-{1..999}-{1..999}"):
        with pytest.raises(InvalidValueError, match="url="):
            expand(wrong)


def test_names_with_spaces_are_found_on_a_web_server(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    server.put(
        "bucket", "with space/an array.npy", (tmp_path / "x.npy").read_bytes(), is_public=True
    )
    url = f"{proxy.url}/bucket/with%20space/an%20array.npy"
    with closing(feedline.open(url, cache_folder=tmp_path / "cache")) as far:
        assert far[3]["data"] == 3
    assert os.listdir(tmp_path / "cache")


def test_zarr_by_url_is_refused_with_a_remedy(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    server.put("bucket", "cells.zarr/zarr.json", b"{}")
    with pytest.raises(InvalidValueError, match="is a zarr folder, which cannot be"):
        opened(proxy, server, "cells.zarr", tmp_path)
