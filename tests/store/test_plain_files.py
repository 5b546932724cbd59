"""Folders of parquet or Arrow files without a `metadata.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, InvalidValueError, StoreError
from feedline.runs.inspection import inspect_path
from feedline.store import FolderStore

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, table: Any, layout: str, group: int = 4) -> None:
    """Write a table in groups."""
    if layout == "parquet":
        parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=group)
        return
    with pa.ipc.new_file(path.with_suffix(".arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=group)


def test_a_folder_of_tables_is_opened_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(12):
        table = pa.table(
            {"id": [2 * number, 2 * number + 1], "t": ["x", None if number == 9 else ""]}
        )
        write(tmp_path / f"part-{number}", table, "parquet", 1)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "README.md").write_text("text")
    store = feedline.open(tmp_path)
    assert store[:]["id"].tolist() == list(range(24))
    assert len(store.chunk_sizes) == 24
    assert "t/is_missing" in store.columns
    assert isinstance(store, FolderStore)
    assert inspect_path(tmp_path).facts["num_samples"] == 24
    assert "part-9.parquet, group 1, row 0" in store.describe_row(19, 0)
    before = store.fingerprint
    write(tmp_path / "part-3", pa.table({"id": [6, 8], "t": ["x", ""]}), "parquet", 1)
    assert feedline.open(tmp_path).fingerprint != before


def test_files_of_a_folder_decide_together(tmp_path: Path) -> None:
    write(tmp_path / "a", pa.table({"x": [[1, 2]] * 3}), "arrow")
    write(tmp_path / "b", pa.table({"x": [[1, 2, 3]] * 3}), "arrow")
    assert str(feedline.open(tmp_path).columns["x"]) == "list of int64"
    assert feedline.open(tmp_path)[5]["x"].tolist() == [1, 2, 3]


def test_folders_whose_tables_do_not_agree_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", pa.table({"x": [1], "y": [1]}), "parquet")
    write(tmp_path / "b", pa.table({"x": [1.5], "y": [1]}), "parquet")
    with pytest.raises(DamagedDataError, match=r"b\.parquet: column 'x' is float64.*be int64"):
        feedline.open(tmp_path)
    assert len(feedline.open(tmp_path, columns=["y"])) == 2
    write(tmp_path / "b", pa.table({"y": [1]}), "parquet")
    with pytest.raises(DamagedDataError, match=r"column 'x' is absent and should be int64"):
        feedline.open(tmp_path)
    write(tmp_path / "b", pa.table({"x": [1], "y": [1]}), "arrow")
    with pytest.raises(InvalidValueError, match=r"\.arrow and \.parquet.*one kind"):
        feedline.open(tmp_path)
    (tmp_path / "b.arrow").unlink()
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "c", pa.table({"x": [1], "y": [1]}), "parquet")
    with pytest.raises(InvalidValueError, match="more of them in 'more'"):
        feedline.open(tmp_path)


def test_tables_of_several_splits_and_missing_tables_are_refused(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    for name in ("train-00000-of-00002", "test-00000-of-00001"):
        write(tmp_path / name, table, "parquet")
    with pytest.raises(StoreError, match=r"shards of 2 splits.*a folder of its own"):
        feedline.open(tmp_path)
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(StoreError, match="has 1 shard of 2"):
        feedline.open(tmp_path)
    write(tmp_path / "train-00001-of-00002", table, "parquet")
    assert len(feedline.open(tmp_path)) == 4


def test_chunks_of_many_files_keep_few_files_open(tmp_path: Path) -> None:
    for number in range(200):
        write(tmp_path / f"{number}", pa.table({"x": np.arange(4)}), "arrow", 2)
    store = feedline.open(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    assert store[:]["x"].sum() == 200 * 6
    assert len(os.listdir("/proc/self/fd")) <= before + 128


def test_tables_that_were_written_at_two_times_are_refused(tmp_path: Path) -> None:
    for name in ("train-0-of-1", "train-0-of-2", "train-1-of-2"):
        write(tmp_path / name, pa.table({"x": [1]}), "parquet")
    with pytest.raises(StoreError, match=r"that count to 1 and to 2; .*two times"):
        feedline.open(tmp_path)


def test_a_table_whose_ending_has_capitals_is_not_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, pa.table({"x": [1]}), "parquet")
    (tmp_path / "b.parquet").rename(tmp_path / "b.PARQUET")
    with pytest.raises(InvalidValueError, match=r"'b\.PARQUET', whose ending .* small letters"):
        feedline.open(tmp_path)


@pytest.mark.parametrize("shape", ["plain", "list", "struct"])
def test_old_times_that_nanoseconds_cannot_hold_are_refused(tmp_path: Path, shape: str) -> None:
    for year, is_held in ((2200, True), (3000, False), (1500, False)):
        moment = np.datetime64(f"{year}-01-01", "us")
        values = pa.array([moment.item(), None])
        if shape == "list":
            values = pa.ListArray.from_arrays([0, 1, 1], values.drop_null())
        elif shape == "struct":
            values = pa.StructArray.from_arrays([values, pa.array(["a", "b"])], ["in.ner", "t"])
        path = tmp_path / f"{year}.parquet"
        table = pa.table({"n.ame": values, "x": [1, 2]})
        parquet.write_table(table, path, use_deprecated_int96_timestamps=True)
        if is_held:
            for store in (feedline.open(path), packed(path, tmp_path / "packed")):
                name = next(name for name in store.columns if name.startswith("n.ame"))
                assert np.ravel(store[0][name]).tolist() == [moment.astype("M8[ns]").item()]
            continue
        for read in (lambda p: feedline.open(p)[:], lambda p: packed(p, tmp_path / "wrong")):
            with pytest.raises(InvalidValueError, match=r"'n\.ame' has times .* 1677 or after"):
                read(path)
        assert feedline.open(path, columns=["x"])[:]["x"].tolist() == [1, 2]


def packed(path: Path, folder: Path) -> feedline.Store:
    feedline.pack(path, folder, progress=False)
    return feedline.open(folder)
