"""Shards of MosaicML Streaming: every compression, and files that are damaged or hostile."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import (
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    UnsafeDataError,
)
from foreign import WRITTEN

HERE = WRITTEN / "mds"
CODECS = ("br", "bz2", "gz", "snappy", "zstd")

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a copy of small data."""
    return Path(shutil.copytree(HERE / "compressed" / "zstd", tmp_path / "data"))


def change_index(folder: Path, change: Change) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def change_columns(folder: Path, name: str, encoding: str, size: int | None = None) -> None:
    def change(index: dict[str, Any]) -> None:
        for shard in index["shards"]:
            place = shard["column_names"].index(name)
            shard["column_encodings"][place] = encoding
            shard["column_sizes"][place] = size

    change_index(folder, change)


def write_shard(folder: Path, columns: dict[str, str], *samples: list[bytes]) -> Path:
    """Write values of any length in one shard, as the writer does."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        np.array([len(part) for part in sample], "<u4").tobytes() + b"".join(sample)
        for sample in samples
    ]
    ends = np.cumsum([8 + 4 * len(records), *map(len, records)]).astype("<u4")
    content = np.uint32(len(records)).tobytes() + ends.tobytes() + b"".join(records)
    (folder / "shard.00000.mds").write_bytes(content)
    shard = {
        **{"version": 2, "format": "mds", "compression": None, "samples": len(records)},
        **{"column_names": list(columns), "column_encodings": list(columns.values())},
        "column_sizes": [None] * len(columns),
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}},
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return folder


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_shards_are_read(codec: str) -> None:
    store = feedline.open(HERE / "compressed" / codec, verify=True)
    assert store[:]["id"].tolist() == list(range(20))
    assert store[13]["text"] == "13" * 5
    assert store.shards.compression == codec  # type: ignore[attr-defined]
    np.testing.assert_array_equal(store[:]["x"], np.repeat(np.arange(20), 40).reshape(20, 40))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_compressed_shards_are_refused(tmp_path: Path, codec: str, damage: str) -> None:
    folder = Path(shutil.copytree(HERE / "compressed" / codec, tmp_path / "data"))
    path = folder / f"shard.00000.mds.{codec}"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 255
    content = content[: {"cut": len(content) // 2, "flipped": None, "empty": 0}[damage]]
    path.write_bytes(content)

    def change(index: dict[str, Any]) -> None:
        index["shards"][0]["zip_data"]["bytes"] = len(content)

    change_index(folder, change)
    with pytest.raises(DamagedDataError, match=r"shard\.00000"):
        # A flipped bit in stored bytes is only seen by their hash.
        feedline.open(folder, verify=True)[:]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong", [-1, 1])
def test_shards_that_inflate_to_another_size_are_refused(
    tmp_path: Path, codec: str, wrong: int
) -> None:
    folder = Path(shutil.copytree(HERE / "compressed" / codec, tmp_path / "data"))

    def change(index: dict[str, Any]) -> None:
        index["shards"][0]["raw_data"]["bytes"] += wrong

    change_index(folder, change)
    with pytest.raises(DamagedDataError, match=r"inflate|declares"):
        feedline.open(folder)


def test_a_missing_library_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"zstd need pyarrow.*feedline\[arrow\]"):
        feedline.open(data)


def test_an_inflated_shard_beside_a_compressed_one_is_read(data: Path) -> None:
    store = feedline.open(data)
    raw = bytes(store.shards.records(0).memory)  # type: ignore[attr-defined]
    (data / "shard.00000.mds").write_bytes(raw)
    (data / "shard.00000.mds.zstd").unlink()
    assert feedline.open(data)[:]["id"].tolist() == list(range(20))


def test_hashes_are_compared_when_asked_for(data: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        index["shards"][1]["zip_data"]["hashes"]["sha1"] = "0" * 40

    change_index(data, change)
    assert len(feedline.open(data)[:]["id"]) == 20
    store = feedline.open(data, verify=True)
    assert store[0]["id"] == 0
    with pytest.raises(DamagedDataError, match=r"has sha1 .* but should have '000"):
        store[10]


def test_hashes_of_xxhash_need_the_library(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(index: dict[str, Any]) -> None:
        for shard in index["shards"]:
            del shard["zip_data"]["hashes"]["sha1"]

    change_index(data, change)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ModuleNotFoundError, match=r"xxhash.*feedline\[mds\]"):
        feedline.open(data, verify=True)[:]


def test_data_without_hashes_cannot_be_verified(tmp_path: Path) -> None:
    folder = write_shard(tmp_path, {"x": "str"}, [b"a"])
    with pytest.raises(InvalidValueError, match=r"has no hash of shard\.00000\.mds"):
        feedline.open(folder, verify=True)


def test_a_folder_of_splits_is_opened_by_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(HERE / "compressed" / "gz", tmp_path / split)
    assert len(feedline.open(tmp_path, split="train")) == 20
    with pytest.raises(InvalidValueError, match=r"2 splits \(test, train\)"):
        feedline.open(tmp_path)


def test_shards_in_folders_of_a_merged_index_are_read(data: Path) -> None:
    (data / "part").mkdir()
    for path in data.glob("shard*"):
        path.rename(data / "part" / path.name)

    def change(index: dict[str, Any]) -> None:
        for shard in index["shards"]:
            for file in ("raw_data", "zip_data"):
                shard[file]["basename"] = "part/" + shard[file]["basename"]

    change_index(data, change)
    assert len(feedline.open(data)[:]["id"]) == 20


def test_nothing_is_copied_when_a_shard_is_opened() -> None:
    store = feedline.open(HERE / "data")
    opened = store.shards.open(0, ["fixed", "text", "raw", "rows"])  # type: ignore[attr-defined]
    tables = 60 * 4 * 16
    assert opened.num_bytes_held <= tables
    compressed = feedline.open(HERE / "compressed" / "gz").shards  # type: ignore[attr-defined]
    size = compressed.records(0).memory.nbytes
    assert compressed.open(0, ["id"]).num_bytes_held >= size


def test_a_pickled_column_is_refused_by_name_and_never_loaded(data: Path) -> None:
    change_columns(data, "text", "pkl")
    with pytest.raises(UnsafeDataError, match="column 'text': has encoding 'pkl'"):
        feedline.open(data)


@pytest.mark.parametrize("encoding", ["jpeg_array", "list[jpeg]", "list[png]", "list[pil]"])
def test_several_images_are_bytes_under_a_name_that_says_so(data: Path, encoding: str) -> None:
    change_columns(data, "text", encoding)
    store = feedline.open(data)
    assert store[3][f"text/{encoding}"] == b"33333"


@pytest.mark.parametrize(
    ("encoding", "size"),
    [
        ("bfloat16", None),
        ("ndarray:object", None),
        ("ndarray:int32:4,x", None),
        ("ndarray:int32:0", 0),
        ("ndarray:int32:" + "9" * 400, None),
        ("ndarray:int32:-4", 16),
    ],
)
def test_unknown_encodings_are_refused_by_name(data: Path, encoding: str, size: int | None) -> None:
    change_columns(data, "x", encoding, size)
    with pytest.raises(InvalidValueError, match="column 'x'"):
        feedline.open(data)


def test_a_column_of_another_size_than_its_encoding_is_refused(data: Path) -> None:
    change_columns(data, "x", "ndarray:int32:40", 161)
    with pytest.raises(DamagedDataError, match="has size 161, which must be 160"):
        feedline.open(data)


@pytest.mark.parametrize("values", [[b"1", b"-20"], [b"7", b"9" * 30], [b"0x10", b"3"]])
def test_texts_of_integers_are_numbers_where_all_fit(tmp_path: Path, values: list[bytes]) -> None:
    store = feedline.open(write_shard(tmp_path, {"x": "str_int"}, *[[value] for value in values]))
    found = [store[number]["x"] for number in range(2)]
    if b"-20" in values:
        assert found == [1, -20]
        assert store.columns["x"].type_name == "int64"
    else:
        assert found == [value.decode() for value in values]


def test_texts_of_floats_are_exact(tmp_path: Path) -> None:
    texts = [b"0.1", b"-inf", b"1e-320", b"123456789.12345679"]
    store = feedline.open(write_shard(tmp_path, {"x": "str_float"}, *[[text] for text in texts]))
    assert store[:]["x"].tolist() == [float(text) for text in texts]
    bad = feedline.open(write_shard(tmp_path / "bad", {"x": "str_float"}, [b"0.1"], [b"one"]))
    with pytest.raises(DamagedDataError, match="not a number of type float64"):
        bad[:]


@pytest.mark.parametrize(
    "other",
    [bytes([9, 1 << 2, 1, 0]), bytes([8, 2 << 2, 1, 1, 0])],
    ids=["another type", "another number of axes"],
)
def test_arrays_of_several_kinds_in_one_column_are_refused(tmp_path: Path, other: bytes) -> None:
    folder = write_shard(tmp_path, {"x": "ndarray"}, [bytes([8, 1 << 2, 1, 0])], [other])
    with pytest.raises(InvalidValueError, match="arrays of several kinds"):
        feedline.open(folder)


@pytest.mark.parametrize(
    "wild",
    [
        b"",
        b"\x08",
        bytes([8, 1 << 2]),
        bytes([8, 1 << 2, 5, 0]),
        bytes([8, (63 << 2) | 3]) + b"\xff" * 504,
        bytes([8, (2 << 2) | 3]) + b"\x00" * 8 + b"\xff" * 8,
        bytes([77, 1 << 2, 1, 0]),
    ],
)
def test_wild_headers_of_arrays_are_refused(tmp_path: Path, wild: bytes) -> None:
    with pytest.raises(DamagedDataError, match="column 'x'"):
        feedline.open(write_shard(tmp_path, {"x": "ndarray"}, [wild]))


@pytest.mark.parametrize("place", range(0, 28, 4))
@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1])
def test_wild_numbers_in_a_shard_never_read_outside_of_it(
    tmp_path: Path, place: int, word: int
) -> None:
    folder = write_shard(tmp_path, {"x": "str", "y": "ndarray"}, *[[b"abc", b"\x08\x04\x01\0"]] * 3)
    path = folder / "shard.00000.mds"
    content = bytearray(path.read_bytes())
    content[place : place + 4] = np.uint32(word).tobytes()
    path.write_bytes(content)
    with pytest.raises(DamagedDataError):
        feedline.open(folder)[:]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda i: i["shards"][0].update(version=3), InvalidValueError, "version 3"),
        (lambda i: i["shards"][0].update(format="csv"), InvalidValueError, "format 'csv'"),
        (lambda i: i["shards"][0].update(compression="lzma"), InvalidValueError, "'lzma'"),
        (lambda i: i["shards"][0].update(samples=2**60), DamagedDataError, "'samples'"),
        (lambda i: i["shards"][0].update(samples=99), DamagedDataError, "should have 99"),
        (lambda i: i["shards"][0].update(samples=True), DamagedDataError, "'samples'"),
        (lambda i: i["shards"][0].pop("raw_data"), DamagedDataError, "raw_data"),
        (lambda i: i["shards"][1]["column_names"].reverse(), DamagedDataError, "differ"),
        (lambda i: i["shards"][0]["column_names"].append("x"), DamagedDataError, "equally many"),
        (lambda i: i["shards"].append(i["shards"][0]), DamagedDataError, "lists .* twice"),
        (lambda i: i.update(shards=[]), DamagedDataError, "0 shards"),
        (lambda i: i.update(shards=[[]]), DamagedDataError, "JSON object"),
        (
            lambda i: i["shards"][0]["zip_data"].update(basename="../x"),
            UnsafeDataError,
            "without '..'",
        ),
        (
            lambda i: i["shards"][0]["raw_data"].update(basename="/etc/passwd"),
            UnsafeDataError,
            "/etc/passwd",
        ),
        (lambda i: i["shards"][0]["zip_data"].update(basename="x"), MissingDataError, "exist"),
    ],
)
def test_wrong_indexes_are_refused(
    data: Path, change: Change, error: type[FeedlineError], text: str
) -> None:
    change_index(data, change)
    with pytest.raises(error, match=text):
        feedline.open(data)


def test_a_link_to_outside_of_the_folder_is_refused(data: Path, tmp_path: Path) -> None:
    path = data / "shard.00001.mds.zstd"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeDataError, match="link"):
        feedline.open(data)


def test_an_index_that_is_not_json_is_refused(data: Path) -> None:
    (data / "index.json").write_text('{"shards": [' + "[" * 100_000)
    with pytest.raises(DamagedDataError, match="is not JSON"):
        feedline.open(data)


def test_a_small_file_cannot_inflate_to_much_memory(tmp_path: Path) -> None:
    import bz2

    folder = Path(shutil.copytree(HERE / "compressed" / "bz2", tmp_path / "data"))
    bomb = bz2.compress(bytes(2**26))
    (folder / "shard.00000.mds.bz2").write_bytes(bomb)

    def change(index: dict[str, Any]) -> None:
        index["shards"][0]["zip_data"]["bytes"] = len(bomb)

    change_index(folder, change)
    with pytest.raises(DamagedDataError, match="inflates to more than"):
        feedline.open(folder)


def test_what_was_found_in_large_data_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedline.store.foreign import surveys

    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    folder = write_shard(tmp_path / "data", {"x": "ndarray:uint8"}, [b"\x04\x01a"], [b"\x04\x02ab"])
    feedline.open(folder)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(surveys, "_LEAST_BYTES", 0)
    columns = feedline.open(folder).columns
    (kept,) = (tmp_path / "cache").iterdir()
    assert json.loads(kept.read_text()) == {"found": [["uint8", [1], [2]]]}
    assert feedline.open(folder).columns == columns
    # A shard that is not as the kept file says is refused, and a damaged one is written again.
    kept.write_text(json.dumps({"found": [["uint8", [1], [1]]]}))
    with pytest.raises(DamagedDataError, match="looked through"):
        feedline.open(folder)[:]
    for damaged in ("{", "[]", '{"found": 5}', '{"found": [["object", [1], [1]]]}'):
        kept.write_text(damaged)
        assert feedline.open(folder).columns == columns


def test_what_is_pickled_for_workers_has_no_data(data: Path) -> None:
    store = feedline.open(data)
    store[:]
    assert len(pickle.dumps(store)) < 20_000


def test_an_index_is_what_is_opened_where_other_files_lie_beside_it(data: Path) -> None:
    expected = feedline.open(data)[:]["id"].tolist()
    (data / "backup.tar").write_bytes(bytes(1024))
    assert feedline.open(data)[:]["id"].tolist() == expected
