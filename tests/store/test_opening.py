"""`feedline.open` opens whatever lies at a path, and says what is wrong where it cannot."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tarfile
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given

import feedline
from feedline.errors import (
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    StoreError,
)
from feedline.store import Column, open_anndata
from store_formats import FORMATS, ids_in, open_format, write_formats
from zarr_data import write_anndata

NUM_SAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_formats(tmp_path_factory.mktemp("open") / "formats", NUM_SAMPLES)


each_format = pytest.mark.parametrize("name", FORMATS)


def first_value(sample: dict[str, Any]) -> int:
    return ids_in({name: np.asarray(value)[None] for name, value in sample.items()})[0]


@each_format
def test_a_store_has_a_length_samples_slices_and_iteration(name: str, folder: Path) -> None:
    store = open_format(folder, name)
    assert len(store) == NUM_SAMPLES
    assert [first_value(store[i]) for i in (0, 17, -1)] == [0, 17, NUM_SAMPLES - 1]
    assert ids_in(store[10:20]) == list(range(10, 20))
    assert ids_in(store[::-7]) == list(range(NUM_SAMPLES))[::-7]
    assert ids_in(store[[5, 5, 39, 0]]) == [5, 5, 39, 0]
    assert [first_value(sample) for sample in store] == list(range(NUM_SAMPLES))
    sample = store[3]
    assert list(sample) == list(store.columns)
    for column in store.columns.values():
        # A list has one more axis.
        assert np.shape(sample[column.name])[column.kind == "list" :] == column.shape


@each_format
def test_a_store_is_a_map_style_dataset_of_torch(name: str, folder: Path) -> None:
    store = open_format(folder, name)
    has_lists = any(column.has_lists for column in store.columns.values())
    # torch itself stacks values of one shape only.
    collate = (
        (lambda samples: {n: [s[n] for s in samples] for n in samples[0]}) if has_lists else None
    )
    loader = torch.utils.data.DataLoader(
        store,  # type: ignore[arg-type]
        batch_size=7,
        shuffle=True,
        collate_fn=collate,
    )
    batches = list(loader)
    kind = list if has_lists else torch.Tensor
    assert all(isinstance(value, kind) for batch in batches for value in batch.values())
    assert sorted(i for batch in batches for i in ids_in(batch)) == list(range(NUM_SAMPLES))


@each_format
def test_a_repr_is_one_line_that_tells_what_is_in_a_store(name: str, folder: Path) -> None:
    store = open_format(folder, name)
    text = repr(store)
    assert "\n" not in text
    assert "40 samples in" in text
    assert " chunk" in text
    for column in store.columns.values():
        assert f"{column.name} {column}" in text


@each_format
def test_a_store_travels_to_another_process(name: str, folder: Path) -> None:
    store = pickle.loads(pickle.dumps(open_format(folder, name)))
    assert first_value(store[23]) == 23


@given(index=st.integers(-3 * NUM_SAMPLES, 3 * NUM_SAMPLES))
def test_an_index_counts_like_that_of_a_list(index: int, folder: Path) -> None:
    store = open_format(folder, "safetensors")
    try:
        expected = list(range(NUM_SAMPLES))[index]
    except IndexError:
        with pytest.raises(IndexError, match=r"must be in \[0, 40\)"):
            store[index]
    else:
        assert first_value(store[index]) == expected


@pytest.mark.parametrize("index", ["x", 1.5, None, True, [1.5], [[1, 2]], [True, False]])
def test_what_is_not_an_index_is_refused(index: Any, folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="must be an integer, a slice or a list"):
        open_format(folder, "safetensors")[index]


def test_bfloat16_comes_as_float32_with_the_same_values(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.0, 0.0078125, float("inf")], dtype=torch.bfloat16)
    torch.save({"x": values}, tmp_path / "data.pt")
    store = feedline.open(tmp_path / "data.pt")
    assert store.columns["x"] == Column("x", "bfloat16")
    assert store[:]["x"].dtype == np.float32
    assert store[:]["x"].tolist() == values.tolist()
    (batch,) = feedline.DataLoader(store, batch_size=4)
    assert batch["x"].tolist() == values.tolist()


class TestSplits:
    @pytest.fixture
    def parent(self, tmp_path: Path) -> Path:
        feedline.pack({"x": np.arange(100)}, tmp_path / "all", split={"train": 0.9, "test": 0.1})
        return tmp_path / "all"

    def test_the_parent_of_splits_lists_them(self, parent: Path) -> None:
        with pytest.raises(
            InvalidValueError, match=r"has 2 splits \(test, train\); .*split='test'"
        ):
            feedline.open(parent)

    def test_a_split_is_opened_by_its_name(self, parent: Path) -> None:
        parts = [feedline.open(parent, split=name) for name in ("train", "test")]
        assert sorted(i for part in parts for i in ids_in(part[:])) == list(range(100))

    def test_another_split_is_refused_with_the_names(self, parent: Path) -> None:
        with pytest.raises(InvalidValueError, match="'dev' must be one of test, train"):
            feedline.open(parent, split="dev")
        with pytest.raises(InvalidValueError, match="has no splits"):
            feedline.open(parent / "train", split="train")

    def test_a_split_does_not_lead_out_of_its_folder(self, parent: Path) -> None:
        with pytest.raises(InvalidValueError, match="must be one of"):
            feedline.open(parent, split="../all/train")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere", {}, "does not exist"),
        ("rows.csv", {}, "feedline pack"),
        ("empty", {}, "is not data that can be opened"),
        ("tokens.bin", {}, "window is required"),
        ("tokens.bin", {"window": 3, "columns": ["x"]}, "columns=.* cannot be used"),
        ("safetensors", {"window": 3}, "window=3 cannot be used"),
        ("safetensors", {"columns": ["z"]}, "'z'"),
        ("matrix.zarr", {"verify": True}, "verify=True cannot be used"),
    ],
)
def test_bad_input_gets_a_clear_error(
    name: Any, options: dict[str, Any], message: str, folder: Path
) -> None:
    (folder / "rows.csv").write_text("a\n1\n")
    (folder / "empty").mkdir(exist_ok=True)
    with pytest.raises((FeedlineError, MissingDataError), match=message):
        _ = feedline.open(name if name is None else folder / name, **options).columns


@pytest.mark.parametrize("name", ["safetensors", "npy-folder", "table.parquet", "tensors.pt"])
def test_data_that_is_replaced_while_it_is_read_is_refused(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, NUM_SAMPLES)
    loader = feedline.DataLoader(open_format(tmp_path, name), 1, num_threads=0)
    batches = iter(loader)
    seen = [ids_in(next(batches))[0] for _ in range(5)]
    state = loader.state_dict()
    other = tmp_path / f"new-{name}"
    FORMATS[name](other, NUM_SAMPLES)
    if other.is_dir():
        shutil.rmtree(tmp_path / name)
    for file in [other, *other.rglob("*.safetensors"), *other.rglob("*.npy")]:
        if file.is_file() and file.suffix in (".npy", ".safetensors"):
            file.write_bytes(file.read_bytes()[:-8] + bytes(8))
    if name == "table.parquet":
        _shifted_parquet(other)
    if name == "tensors.pt":
        torch.save({"x": torch.arange(1, NUM_SAMPLES + 1)}, other)
    os.replace(other, tmp_path / name)
    store = loader.store
    store.close()
    samples = (ids_in(store[i : i + 1])[0] for i in range(len(store)))
    rest = chain((ids_in(batch)[0] for batch in batches), samples)
    with pytest.raises(FeedlineError, match="was replaced while it was in use"):
        seen.extend(rest)
    assert seen == list(range(len(seen))), "nothing of the new data came"
    fresh = feedline.DataLoader(open_format(tmp_path, name), 1)
    with pytest.raises(FeedlineError, match="changed since the cursor was saved"):
        fresh.load_state_dict(state)


def _shifted_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.arange(1, NUM_SAMPLES + 1)
    pq.write_table(pa.table({"x": numbers, "half": numbers / 2}), path, row_group_size=13)


def test_a_touched_file_is_the_same_data(tmp_path: Path) -> None:
    FORMATS["safetensors"](tmp_path / "data", NUM_SAMPLES)
    store = feedline.open(tmp_path / "data")
    assert store.fingerprint
    for file in (tmp_path / "data").iterdir():
        os.utime(file)
    assert [sample["x"] for sample in store] == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("name", FORMATS)
def test_a_store_stays_with_its_data_when_the_working_directory_changes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    FORMATS[name](tmp_path / name, NUM_SAMPLES)
    monkeypatch.chdir(tmp_path)
    store = open_format(Path(), name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    FORMATS[name](tmp_path / "elsewhere" / name, NUM_SAMPLES + 1)
    store = pickle.loads(pickle.dumps(store))
    assert len(store) == NUM_SAMPLES
    assert ids_in(store[:]) == list(range(NUM_SAMPLES))


def test_a_link_as_the_path_itself_is_followed(folder: Path, tmp_path: Path) -> None:
    os.symlink(folder / "table.parquet", tmp_path / "link.parquet")
    assert feedline.open(tmp_path / "link.parquet")[7]["x"] == 7


def test_a_sparse_anndata_group_gives_dense_rows_and_its_obs(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "cells.zarr", 30)
    matrix = open_anndata(path)
    expected = matrix.fetch([slice(0, 30)]).take(np.arange(30)).toarray()
    assert expected.any()
    store = feedline.open(path)
    assert np.array_equal(store[:]["X"], expected)
    assert np.array_equal(store[[7, 3, 7]]["X"], expected[[7, 3, 7]])
    batches = list(feedline.DataLoader(store, 8, shuffle=True, seed=3))
    rows = np.concatenate([batch["X"] for batch in batches])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


@pytest.mark.parametrize("ending", ["parquet", "feather", "npy"])
def test_wrong_columns_are_the_caller_s_fault_and_not_the_file_s(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    table = pa.table({"x": [1, 2, 3], "name": ["a", "b", "c"]})
    if ending == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif ending == "feather":
        pyarrow.feather.write_feather(table, path)
    else:
        np.save(path, np.arange(3))
    with pytest.raises(InvalidValueError, match=rf"columns=\['z'\] must be among .*a\.{ending}: "):
        feedline.open(path, columns=["z"])
    with pytest.raises(InvalidValueError, match=r"columns=\[\] must name at least 1 column"):
        feedline.open(path, columns=[])


def test_sound_files_that_are_not_arrow_files_are_told_as_what_they_are(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, 3]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pyarrow.feather.write_feather(table, tmp_path / "old.feather", version=1)
    words = pa.table({"x": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(tmp_path / "stream.arrow", words.schema) as stream:
        stream.write_table(words)
    for name, text in (("old.feather", "Feather file of version 1"), ("stream.arrow", "stream")):
        with pytest.raises(StoreError, match=rf"is an? .*{text}.*write_feather") as caught:
            feedline.open(tmp_path / name)
        assert not isinstance(caught.value, DamagedDataError)
        assert "damaged" not in str(caught.value)
    # What the errors advise.
    with pa.ipc.open_stream(tmp_path / "stream.arrow") as stream:
        pyarrow.feather.write_feather(stream.read_all(), tmp_path / "file.arrow")
    assert feedline.open(tmp_path / "file.arrow")[:]["x"] == ["a", "b"]


@pytest.mark.parametrize("again", ["{}", "./{}", "x/../{}"])
def test_a_file_that_is_listed_twice_is_refused(again: str, tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(6)}, tmp_path / "data", chunk_samples=3)
    path = tmp_path / "data" / "metadata.json"
    manifest = json.loads(path.read_text())
    entry = manifest["batch_files"][0]
    manifest["batch_files"].append({**entry, "path": again.format(entry["path"])})
    manifest["total_samples"] += entry["samples"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(FeedlineError, match=r"twice|without '\.\.'"):
        feedline.open(tmp_path / "data")


@pytest.mark.parametrize("size", [2**40, 2**62])
def test_columns_larger_than_their_file_are_refused_before_memory_is_taken(
    size: int, tmp_path: Path
) -> None:
    # Found by fuzzing: a sample was allocated as metadata.json had it.
    feedline.pack({"x": np.ones((6, 3), np.float32)}, tmp_path / "data", chunk_samples=3)
    path = tmp_path / "data" / "metadata.json"
    manifest = json.loads(path.read_text())
    manifest["columns"][0]["shape"] = [size]
    path.write_text(json.dumps(manifest))
    with pytest.raises(FeedlineError, match=r"data"):
        feedline.open(tmp_path / "data")[0]


@pytest.mark.parametrize("num", [0, 2])
def test_columns_are_named_once_and_at_least_one(num: int, tmp_path: Path) -> None:
    # Found by fuzzing: without columns, a sample was a StopIteration.
    feedline.pack({"x": np.ones(6)}, tmp_path / "data")
    path = tmp_path / "data" / "metadata.json"
    manifest = json.loads(path.read_text())
    manifest["columns"] *= num
    path.write_text(json.dumps(manifest))
    with pytest.raises(FeedlineError, match="at least one column, and each once"):
        feedline.open(tmp_path / "data")[0]


@pytest.mark.parametrize("name", [[{"a": ["x"] * 9999}], 7, None, "x" * 9999])
def test_names_of_columns_are_texts_and_errors_stay_short(name: Any, tmp_path: Path) -> None:
    # Found by fuzzing: a list was taken for a name, and made an error of 20 kB.
    feedline.pack({"x": np.ones(6)}, tmp_path / "data")
    path = tmp_path / "data" / "metadata.json"
    manifest = json.loads(path.read_text())
    manifest["columns"][0]["name"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(FeedlineError) as caught:
        feedline.open(tmp_path / "data")[0]
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie"])
def test_a_table_whose_log_tells_which_rows_count_is_refused(tmp_path: Path, log: str) -> None:
    feedline.pack({"x": np.arange(10)}, tmp_path / "packed", format="parquet")
    (tmp_path / "table" / log).mkdir(parents=True)
    for path in (tmp_path / "packed").glob("*.parquet"):
        path.rename(tmp_path / "table" / path.name)
    with pytest.raises(InvalidValueError, match="log tells which files and rows count"):
        feedline.open(tmp_path / "table")
    with pytest.raises(InvalidValueError, match="log tells which files and rows count"):
        feedline.pack(tmp_path / "table", tmp_path / "out")


@pytest.mark.parametrize("kind", ["parquet", "packed", "shards"])
def test_the_mask_of_a_selected_column_comes_with_it(tmp_path: Path, kind: str) -> None:
    table = pa.table({"x": [1, None, 3], "y": [4, 5, 6]})
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(table, path)
    if kind == "packed":
        feedline.pack(path, tmp_path / "packed")
        path = tmp_path / "packed"
    elif kind == "shards":
        path = tmp_path / "data.tar"
        with tarfile.open(path, "w") as shard:
            for name in ("0.x", "0.y", "1.y", "2.x", "2.y"):
                shard.addfile(tarfile.TarInfo(name))
    store = feedline.open(path, columns=["x"])
    assert list(store.columns) == ["x", "x/is_missing"]
    assert store[:]["x/is_missing"].tolist() == [False, True, False]
    assert list(feedline.open(path, columns=["y"]).columns) == ["y"]


def test_a_matrix_of_texts_is_refused_by_its_type(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    matrix = zarr.create_array(tmp_path / "x.zarr", shape=(4, 2), dtype="<U3", zarr_format=2)
    matrix[:] = "abc"
    with pytest.raises(InvalidValueError, match=r"'X' has values of type <U3 and must have num"):
        feedline.open(tmp_path / "x.zarr")
