"""Indexes of shards: built once, kept, never trusted, and built again when they do not fit."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, FeedlineError, StoreError
from feedline.store.foreign import indexed
from tf_records import example, file_of, floats, integers, strings

_MAGIC = 16
_START = _MAGIC + 16 + 8


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


def record_of(number: int) -> bytes:
    return example(
        ("id", integers(number)),
        ("tokens", integers(*range(number % 3))),
        ("words", strings(*[b"w"] * (number % 2))),
        ("score", floats(number / 2)),
    )


def write(folder: Path, first: int = 0) -> Path:
    path = folder / "data" / "x.tfrecord"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(file_of(record_of(n) for n in range(first, first + 10)))
    return path


def index_beside(path: Path) -> Path:
    (found,) = (path.parent / ".feedline-index").iterdir()
    return found


def ids_in(store: feedline.Store) -> list[int]:
    found: list[int] = store[:]["id"].tolist()
    return found


def test_an_index_is_built_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert ids_in(feedline.open(path)) == list(range(10))
    before = index_beside(path).stat()
    assert ids_in(feedline.open(path)) == list(range(10))
    after = index_beside(path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not (tmp_path / "cache").exists()


def test_a_store_stays_with_its_data_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path).parent)
    store = feedline.open("x.tfrecord")
    monkeypatch.chdir(tmp_path)
    assert ids_in(store) == list(range(10))


def test_indexes_that_are_built_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = write(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(feedline.open, [path] * 24))
    assert all(ids_in(store) == list(range(10)) for store in stores)
    assert len(list((path.parent / ".feedline-index").iterdir())) == 1


def test_a_long_build_shows_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(indexed, "_BYTES_WORTH_A_BAR", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    path = write(tmp_path)
    feedline.open(path)
    told = capsys.readouterr().err
    assert "indexing" in told
    assert "100%" in told
    feedline.open(path)
    assert "indexing" not in capsys.readouterr().err


def test_no_name_of_an_index_looks_like_data(tmp_path: Path) -> None:
    path = write(tmp_path)
    feedline.open(path)
    assert [found.name for found in tmp_path.rglob("*.tfrecord*")] == ["x.tfrecord"]


def test_changed_data_gets_another_index(tmp_path: Path) -> None:
    feedline.open(write(tmp_path))
    assert ids_in(feedline.open(write(tmp_path, first=50))) == list(range(50, 60))


def test_data_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    store = feedline.open(write(tmp_path))
    write(tmp_path, first=50)
    with pytest.raises(DamagedDataError, match="has changed since the data was opened"):
        store[0]


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    path = write(tmp_path)
    feedline.open(path)
    sound = index_beside(path).read_bytes()
    rng = np.random.default_rng(0)
    places = [0, _MAGIC, _START - 8, _START, len(sound) - 1, *rng.integers(0, len(sound), 20)]
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1
        index_beside(path).write_bytes(damaged)
        store = feedline.open(path)
        assert ids_in(store) == list(range(10))
    for length in (0, 10, _START, len(sound) - 1):
        index_beside(path).write_bytes(sound[:length])
        assert ids_in(feedline.open(path)) == list(range(10))


def signed(header: dict[str, Any], payload: bytes) -> bytes:
    """Return an index whose digests are right."""
    header["payload"] = blake2b(payload, digest_size=16).hexdigest()
    encoded = json.dumps(header).encode()
    digest = blake2b(encoded, digest_size=16).digest()
    return b"feedline index 1" + digest + len(encoded).to_bytes(8, "little") + encoded + payload


def test_an_index_made_to_mislead_reads_nothing_outside_of_its_shard(tmp_path: Path) -> None:
    path = write(tmp_path)
    feedline.open(path)
    sound = index_beside(path).read_bytes()
    size = int.from_bytes(sound[_START - 8 : _START], "little")
    header, payload = json.loads(sound[_START : _START + size]), sound[_START + size :]
    assert signed(header, payload) == sound
    rng = np.random.default_rng(0)
    told = header["told"]
    headers = [
        {**header, "told": {**told, "num_samples": 2**60}},
        {**header, "told": {**told, "num_samples": 11}},
        {**header, "told": {**told, "num_samples": -1}},
        {**header, "told": {**told, "num_bytes": "x"}},
        {**header, "told": {**told, "features": 5}},
        {**header, "told": {**told, "features": [["id", "bytes", 1, 1, 1, 1, -(2**70)]]}},
        {**header, "told": {**told, "features": [[5, "int64", 10, 10, 1, 1, 10]]}},
        {**header, "told": {**told, "is_example": False}},
        {**header, "arrays": [["0/rows", "object", 1]]},
        {**header, "arrays": [["0/rows", "int64", 2**60]]},
        {**header, "arrays": 1},
    ]
    cases = [(changed, payload) for changed in headers]
    for _ in range(200):
        damaged = bytearray(payload)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        cases.append((dict(header), bytes(damaged)))
    for changed, content in cases:
        index_beside(path).write_bytes(signed(changed, content))
        try:
            store = feedline.open(path)
            for values in store[:].values():
                assert len(values) == len(store)
        except FeedlineError:
            index_beside(path).unlink()
            feedline.open(path)


def test_an_index_that_cannot_be_beside_its_data_is_in_the_cache_folder(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path.parent / ".feedline-index").write_text("in the way")
    assert ids_in(feedline.open(path)) == list(range(10))
    (kept,) = (tmp_path / "cache").iterdir()
    before = kept.stat().st_ino
    assert ids_in(feedline.open(path)) == list(range(10))
    assert kept.stat().st_ino == before


def test_a_link_of_the_data_does_not_choose_where_indexes_are_written(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (path.parent / ".feedline-index").symlink_to(tmp_path / "elsewhere")
    assert ids_in(feedline.open(path)) == list(range(10))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_an_index_that_cannot_be_kept_is_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path)
    (path.parent / ".feedline-index").write_text("in the way")
    monkeypatch.setenv("FEEDLINE_CACHE", str(path))
    with caplog.at_level(logging.WARNING, "feedline"):
        store = feedline.open(path)
    assert "set FEEDLINE_CACHE to a folder that can be written" in caplog.text
    assert ids_in(pickle.loads(pickle.dumps(store))) == list(range(10))


def test_what_is_sent_to_workers_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    few = len(pickle.dumps(feedline.open(write(tmp_path))))
    path = tmp_path / "data" / "x.tfrecord"
    path.write_bytes(file_of(record_of(n) for n in range(3000)))
    assert len(pickle.dumps(feedline.open(path))) < few + 50


def tar_of_large_parts(labels: list[bytes]) -> bytes:
    """Return a tar file of which digests read only some parts: its images are always the same."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number, label in enumerate(labels):
            for ending, content in (("cls", label), ("jpg", bytes([number]) * 20_000)):
                info = tarfile.TarInfo(f"{number:03d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_a_label_that_is_written_anew_in_a_large_shard_gets_another_index(tmp_path: Path) -> None:
    path, labels = tmp_path / "x.tar", [b"1"] * 60
    for number in range(60):
        labels[number] = b"1000"
        path.write_bytes(tar_of_large_parts(labels))
        os.utime(path, (number, number))
        assert feedline.open(path)[:]["cls"] == labels


def test_a_large_shard_that_changes_while_it_is_open_never_gives_other_values(
    tmp_path: Path,
) -> None:
    path, labels = tmp_path / "x.tar", [b"1"] * 60
    path.write_bytes(tar_of_large_parts(labels))
    for number in range(0, 60, 7):
        store = feedline.open(path)
        labels[number] = b"1000"
        path.write_bytes(tar_of_large_parts(labels))
        os.utime(path, (number, number))
        with pytest.raises(DamagedDataError, match="since the data was opened"):
            store[number]


def test_a_large_shard_that_is_only_touched_stays_open(tmp_path: Path) -> None:
    path, labels = tmp_path / "x.tar", [b"1"] * 60
    path.write_bytes(tar_of_large_parts(labels))
    store = feedline.open(path)
    os.utime(path, (1, 1))
    assert store[:]["cls"] == labels
    assert feedline.open(path)[:]["cls"] == labels


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"x.{ending}")
    with pytest.raises(StoreError, match="must be a regular file"):
        feedline.open(tmp_path / f"x.{ending}")
