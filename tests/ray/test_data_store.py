"""A packed store as a source of Ray Data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.data

import feedline
from feedline.errors import InvalidValueError
from feedline.store import Lists
from feedline.trainers.ray import StoreDatasource, read_store
from pack_data import read_tree

pytestmark = pytest.mark.usefixtures("ray_data")

NUM_ROWS = 103


def columns() -> dict[str, Any]:
    numbers = np.arange(NUM_ROWS)
    found: dict[str, Any] = {
        name: numbers.astype(name)
        for name in ("int8", "uint16", "int64", "float16", "float32", "float64")
    }
    sizes = numbers % 4
    values = np.arange(sizes.sum() * 2, dtype=np.float32).reshape(-1, 2)
    return found | {
        "bool": numbers % 3 == 0,
        "matrix": np.arange(NUM_ROWS * 6, dtype=np.float32).reshape(-1, 2, 3),
        "text": [None if n % 5 == 2 else "ä" * (n % 4) for n in range(NUM_ROWS)],
        "bytes": [bytes(range(n % 6)) for n in range(NUM_ROWS)],
        "list": [list(range(n % 4)) for n in range(NUM_ROWS)],
        "pairs": Lists(values, np.concatenate([[0], np.cumsum(sizes)])),
        "day": numbers.astype("M8[D]"),
        "moment": numbers.astype("M8[us]"),
        "span": numbers.astype("m8[ms]"),
        "days": np.arange(NUM_ROWS * 2).reshape(-1, 2).astype("M8[D]"),
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "data"
    feedline.pack(columns(), path, chunk_samples=10)
    return path


@pytest.mark.parametrize("format", ["safetensors", "npy", "parquet"])
def test_all_kinds_of_columns_come_back_to_the_byte(
    format: str, folder: Path, tmp_path: Path
) -> None:
    options: Any = {"format": format, "chunk_samples": 10}
    feedline.pack(columns(), tmp_path / "before", **options)
    feedline.pack(read_store(tmp_path / "before", num_tasks=3), tmp_path / "after", **options)
    assert read_tree(tmp_path / "after") == read_tree(tmp_path / "before")


def test_each_task_has_a_few_chunks_and_knows_its_rows(folder: Path) -> None:
    source = StoreDatasource(folder)
    for parallelism, counts in ((1, [103]), (3, [40, 40, 23]), (50, [10] * 10 + [3])):
        tasks = source.get_read_tasks(parallelism)
        assert [task.metadata.num_rows for task in tasks] == counts
        found = [sum(table.num_rows for table in task()) for task in tasks]
        assert found == counts
    assert source.estimate_inmemory_data_size() > 0


def test_the_count_needs_no_reading_and_rows_are_in_order(folder: Path) -> None:
    dataset = read_store(folder, columns=["int64", "text"], num_tasks=4)
    assert dataset.count() == NUM_ROWS
    rows = dataset.take_all()
    assert [row["int64"] for row in rows] == list(range(NUM_ROWS))
    assert set(rows[0]) == {"int64", "text", "text/is_missing"}
    assert [bool(row["text/is_missing"]) for row in rows] == [n % 5 == 2 for n in range(NUM_ROWS)]


def test_arrays_are_tensors(folder: Path) -> None:
    (batch,) = read_store(folder, columns=["matrix"]).iter_batches(
        batch_size=NUM_ROWS, batch_format="numpy"
    )
    assert batch["matrix"].dtype == np.float32
    assert (batch["matrix"] == columns()["matrix"]).all()


def test_a_limit_takes_the_first_rows(folder: Path) -> None:
    dataset = read_store(folder, columns=["int64"], num_tasks=5).limit(25)
    assert [row["int64"] for row in dataset.take_all()] == list(range(25))


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    bits = np.array([0x3FC0, 0xC000, 0x3C00, 0x7F80], "<u2")
    header = json.dumps({"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "data.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    rows = read_store(path).take_all()
    assert [row["x"] for row in rows] == [1.5, -2.0, 0.0078125, float("inf")]


def test_columns_that_arrow_lacks_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    feedline.pack(
        {"wave": np.ones(4, np.complex64), "x": np.arange(4)}, tmp_path / "data", format="npy"
    )
    with pytest.raises(InvalidValueError, match="'wave' is of complex64, which Arrow lacks"):
        read_store(tmp_path / "data")
    assert read_store(tmp_path / "data", columns=["x"]).count() == 4
    with pytest.raises(InvalidValueError, match="columns contains 'y', and must be of wave, x"):
        read_store(tmp_path / "data", columns=["y"])


def test_a_store_that_has_changed_is_refused(tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(9)}, tmp_path / "data")
    dataset = read_store(tmp_path / "data")
    feedline.pack({"x": np.arange(1, 10)}, tmp_path / "data", overwrite=True)
    with pytest.raises(Exception, match="has changed since the dataset was made"):
        dataset.take_all()


def test_a_path_of_this_folder_is_read_from_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert read_store("data", columns=["int64"]).count() == NUM_ROWS
    assert ray.data.read_datasource(StoreDatasource("data")).count() == NUM_ROWS
