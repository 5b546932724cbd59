"""Datasets of Hugging Face `datasets`: splits, times, and folders that are damaged or hostile."""

from __future__ import annotations

import json
import os
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.runs.inspection import inspect_path
from feedline.store.arrow_chunk import group_sizes, open_group
from foreign import HERE, data_of

pa = pytest.importorskip("pyarrow")

FIRST = "data-00000-of-00003.arrow"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the fixture."""
    return Path(shutil.copytree(data_of("huggingface"), tmp_path / "data"))


def rewrite(folder: Path, **changes: Any) -> None:
    """Change what `state.json` says."""
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | changes))


def files(*names: Any) -> list[dict[str, Any]]:
    return [{"filename": name} for name in names]


def test_times_come_as_numpys() -> None:
    store = feedline.open(data_of("huggingface"))
    minutes = np.arange(60).astype("timedelta64[m]")
    assert np.array_equal(store[:]["when"], np.datetime64("2026-01-01", "us") + minutes)
    assert str(store.columns["when"]) == "datetime64[us]"


def test_arrays_of_any_first_axis_are_lists(folder: Path) -> None:
    columns = feedline.open(folder).columns
    assert str(columns["rows"]) == "list of int16[2]"
    assert str(columns["matrix"]) == "float32[2, 3]"
    assert str(columns["image/bytes"]) == "bytes"


def test_shards_stay_mapped(folder: Path) -> None:
    assert group_sizes(folder / FIRST) == (20,)
    # Tables of where bytes, texts and lists begin; bools; and what nulls and lists of lists need.
    assert open_group(folder / FIRST, 0, ["matrix", "id"]).num_bytes_held == 0
    assert open_group(folder / FIRST, 0, ["text", "rows"]).num_bytes_held == 2 * 20 * 16


def test_a_folder_of_splits_is_opened_by_their_names(folder: Path, tmp_path: Path) -> None:
    # What DatasetDict.save_to_disk writes.
    for split in ("train", "test"):
        shutil.copytree(folder, tmp_path / "both" / split)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InvalidValueError, match=r"2 splits \(train, test\).*split='train'"):
        feedline.open(tmp_path / "both")
    with pytest.raises(InvalidValueError, match="split='valid' must be one of train, test"):
        feedline.open(tmp_path / "both", split="valid")
    assert len(feedline.open(tmp_path / "both", split="train")) == 60
    for splits in ('["../data"]', '["/etc"]', "[]", "3", "[7]"):
        (tmp_path / "both" / "dataset_dict.json").write_text(f'{{"splits": {splits}}}')
        with pytest.raises((UnsafeDataError, DamagedDataError), match=r"dataset_dict\.json"):
            feedline.open(tmp_path / "both", split="train")


def test_a_dataset_with_indices_is_refused_with_what_to_do(folder: Path) -> None:
    rewrite(folder, _indices_data_files=files("indices.arrow"))
    with pytest.raises(StoreError, match=r"table of indices.*flatten_indices\(\)") as caught:
        feedline.open(folder)
    assert not isinstance(caught.value, DamagedDataError)


DAMAGE: dict[str, tuple[Callable[[Path], Any], type[StoreError], str]] = {
    "no-files": (lambda f: rewrite(f, _data_files=[]), DamagedDataError, "_data_files"),
    "odd-files": (lambda f: rewrite(f, _data_files=[3]), UnsafeDataError, "path=None"),
    "twice": (lambda f: rewrite(f, _data_files=files(FIRST, FIRST)), DamagedDataError, "twice"),
    "elsewhere": (
        lambda f: rewrite(f, _data_files=files("../x.arrow")),
        UnsafeDataError,
        "inside the folder",
    ),
    "absolute": (
        lambda f: rewrite(f, _data_files=files("/etc/x.arrow")),
        UnsafeDataError,
        "inside the folder",
    ),
    "other": (lambda f: rewrite(f, _data_files=files("x.pt")), DamagedDataError, "end with .arrow"),
    "gone": (lambda f: (f / FIRST).unlink(), MissingDataError, FIRST),
    "text": (lambda f: (f / "state.json").write_text("{"), DamagedDataError, "cannot be read"),
    "list": (lambda f: (f / "state.json").write_text("[]"), DamagedDataError, "not an object"),
    "deep": (lambda f: (f / "state.json").write_text("[" * 10**6), DamagedDataError, "state.json"),
    "empty": (lambda f: (f / FIRST).write_bytes(b""), DamagedDataError, FIRST),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_and_hostile_folders_are_refused(folder: Path, how: str) -> None:
    change, kind, text = DAMAGE[how]
    change(folder)
    with pytest.raises(kind, match=text):
        feedline.open(folder)


def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / FIRST, tmp_path / "elsewhere.arrow")
    os.symlink(tmp_path / "elsewhere.arrow", folder / FIRST)
    with pytest.raises(UnsafeDataError, match="outside its folder"):
        feedline.open(folder)


def test_shards_that_are_cut_are_refused(folder: Path) -> None:
    content = (folder / FIRST).read_bytes()
    # The last bytes are the end of the stream: without it, batches may be lost.
    for length in (1, 4, 8, 100, len(content) // 2, *(len(content) - n for n in (100, 9, 8, 4, 1))):
        (folder / FIRST).write_bytes(content[:length])
        with pytest.raises(DamagedDataError, match=FIRST):
            feedline.open(folder)


@pytest.mark.parametrize("claimed", [-1, -(2**31), 2**31 - 1, 10**6])
def test_messages_that_claim_other_lengths_are_refused(folder: Path, claimed: int) -> None:
    content = bytearray((folder / FIRST).read_bytes())
    second = content.find(b"\xff\xff\xff\xff", 100)
    for at in (4, second + 4):
        changed = content.copy()
        changed[at : at + 4] = claimed.to_bytes(4, "little", signed=True)
        (folder / FIRST).write_bytes(changed)
        with pytest.raises(DamagedDataError, match=FIRST):
            feedline.open(folder)


def test_a_stream_in_many_batches_is_read_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"x": np.arange(5000), "t": [str(n) for n in range(5000)]})
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=10)
    store = feedline.open(path)
    assert len(store.chunk_sizes) == 500
    order = np.random.default_rng(0).permutation(5000)
    found = store[order]
    assert np.array_equal(found["x"], order)
    assert found["t"] == [str(number) for number in order.tolist()]
    # A file that was replaced is indexed anew.
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table.slice(7), max_chunksize=11)
    assert feedline.open(path)[4992]["x"] == 4999


def test_datasets_in_memory_are_stores() -> None:
    """With the library itself; `make test-formats` has it."""
    pytest.importorskip("datasets")
    runpy.run_path(str(HERE / "huggingface" / "live.py"), run_name="__main__")


class Dataset:
    """What a store asks a `datasets.Dataset` for."""

    def __init__(self, table: Any, indices: Any = None) -> None:
        self.data = table
        self.format = {"type": None, "columns": table.column_names}
        self._indices = None if indices is None else pa.table({"indices": indices})

    def __len__(self) -> int:
        return int((self.data if self._indices is None else self._indices).num_rows)


Dataset.__module__ = "datasets.arrow_dataset"


def test_every_sample_of_a_small_dataset_in_memory_counts_for_its_fingerprint() -> None:
    numbers = np.arange(1000)
    fingerprint = feedline.open(Dataset(pa.table({"x": numbers}))).fingerprint
    assert feedline.open(Dataset(pa.table({"x": numbers}), numbers)).fingerprint == fingerprint
    swapped = numbers.copy()
    swapped[[3, 4]] = [4, 3]
    others = [
        Dataset(pa.table({"x": swapped})),
        Dataset(pa.table({"x": numbers}), swapped),
        Dataset(pa.table({"x": pa.array(numbers, mask=numbers == 500)})),
    ]
    for other in others:
        assert feedline.open(other).fingerprint != fingerprint


def test_a_dataset_can_be_inspected_and_packed(folder: Path, tmp_path: Path) -> None:
    facts = inspect_path(folder).facts
    assert "60" in str(facts)
    assert "image/bytes" in str(facts)
    feedline.pack(folder, tmp_path / "packed", progress=False)
    packed, store = feedline.open(tmp_path / "packed"), feedline.open(folder)
    assert {n: str(c) for n, c in packed.columns.items()} == {
        n: str(c) for n, c in store.columns.items()
    }
    for name, value in store[33].items():
        assert np.array_equal(packed[33][name], value)


def test_what_is_neither_a_path_nor_a_dataset_is_refused() -> None:
    for value in (3, None, [1, 2], object()):
        with pytest.raises(InvalidValueError, match="must be the path of a file or folder"):
            feedline.open(value)
