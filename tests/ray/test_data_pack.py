"""A dataset of Ray Data as a source of `pack`."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import ray.data

import feedline
from feedline.errors import PackError
from pack_data import read_tree

pytestmark = pytest.mark.usefixtures("ray_data")

NUM_ROWS = 1000


def table() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "id": np.arange(NUM_ROWS),
        "image": rng.integers(0, 255, (NUM_ROWS, 4, 3), dtype=np.uint8),
        "score": rng.random(NUM_ROWS, dtype=np.float32),
    }


def records(num_rows: int = NUM_ROWS) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "text": None if number % 7 == 3 else f"row {number}" * (number % 3),
            "data": bytes([number % 256]) * (number % 5),
            # The first ones have one length, so the first blocks look like an array.
            "tokens": list(range(2 if number < 500 else number % 4)),
        }
        for number in range(num_rows)
    ]


def test_blocks_that_are_late_keep_their_places(tmp_path: Path) -> None:
    def slow_first(batch: dict[str, Any]) -> dict[str, Any]:
        """Be late with the rows that come first."""
        if batch["id"][0] < NUM_ROWS // 2:
            time.sleep(0.5)
        return batch

    dataset = ray.data.range(NUM_ROWS, override_num_blocks=10).map_batches(slow_first)
    before = dataset.context.execution_options.preserve_order
    feedline.pack(dataset, tmp_path / "data", chunk_samples=300)
    assert feedline.open(tmp_path / "data")[:]["id"].tolist() == list(range(NUM_ROWS))
    assert dataset.context.execution_options.preserve_order == before


@pytest.mark.parametrize("num_blocks", [1, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataset_packs_to_the_bytes_of_its_columns(
    num_blocks: int, shuffle: bool, tmp_path: Path
) -> None:
    columns = table()
    dataset = ray.data.from_arrow(
        pyarrow.table({"id": columns["id"], "score": columns["score"]})
    ).repartition(num_blocks)
    options: Any = {"chunk_samples": 128, "shuffle": shuffle, "split": 0.25, "seed": 5}
    feedline.pack(dataset, tmp_path / "theirs", **options)
    feedline.pack({n: columns[n] for n in ("id", "score")}, tmp_path / "ours", **options)
    assert read_tree(tmp_path / "theirs") == read_tree(tmp_path / "ours")


def test_tensors_are_arrays(tmp_path: Path) -> None:
    columns = table()
    dataset = ray.data.from_numpy(columns["image"])
    feedline.pack(dataset, tmp_path / "data")
    store = feedline.open(tmp_path / "data")
    assert str(store.columns["data"]) == "uint8[4, 3]"
    assert (store[:]["data"] == columns["image"]).all()


def test_tensors_of_several_lengths_are_lists(tmp_path: Path) -> None:
    def grown(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.full((int(row["id"]) % 3 + 1, 2), row["id"], np.float32)}

    feedline.pack(ray.data.range(40).map(grown), tmp_path / "data")
    store = feedline.open(tmp_path / "data")
    assert str(store.columns["x"]) == "list of float32[2]"
    assert [len(store[n]["x"]) for n in range(40)] == [n % 3 + 1 for n in range(40)]
    assert all((store[n]["x"] == n).all() for n in range(40))


@pytest.mark.parametrize("num_blocks", [2, 9])
def test_records_pack_to_the_bytes_of_a_list_of_them(num_blocks: int, tmp_path: Path) -> None:
    schema = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("text", pyarrow.string()),
            ("data", pyarrow.binary()),
            ("tokens", pyarrow.list_(pyarrow.int64())),
        ]
    )
    whole = pyarrow.Table.from_pylist(records(), schema)
    dataset = ray.data.from_arrow(whole).repartition(num_blocks)
    feedline.pack(dataset, tmp_path / "theirs", chunk_samples=128)
    feedline.pack(records(), tmp_path / "ours", chunk_samples=128)
    assert read_tree(tmp_path / "theirs") == read_tree(tmp_path / "ours")


def test_blocks_of_pandas_and_chosen_columns_are_packed(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": np.arange(20), "b": [f"t{n}" for n in range(20)]})
    feedline.pack(ray.data.from_pandas(frame), tmp_path / "data", columns={"name": "b"})
    store = feedline.open(tmp_path / "data")
    assert list(store.columns) == ["name"]
    assert store[3]["name"] == "t3"


def test_packing_that_broke_off_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    flag = tmp_path / "broken"

    def breaking(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][-1] > 700 and not flag.exists():
            raise RuntimeError("broken off")
        return batch

    def dataset() -> Any:
        return ray.data.range(NUM_ROWS, override_num_blocks=20).map_batches(breaking, batch_size=50)

    options: Any = {"chunk_samples": 64, "num_threads": 1}
    with pytest.raises(Exception, match="broken off"):
        feedline.pack(dataset(), tmp_path / "data", **options)
    flag.touch()
    feedline.pack(dataset(), tmp_path / "data", **options)
    feedline.pack({"id": np.arange(NUM_ROWS)}, tmp_path / "whole", **options)
    assert read_tree(tmp_path / "data") == read_tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda data: data.random_shuffle(), "RandomShuffle"),
        (lambda data: data.random_shuffle(seed=3).map(lambda row: row), "RandomShuffle"),
        (lambda data: data.randomize_block_order(), "RandomizeBlocks"),
        (lambda data: data.random_sample(0.5), "random_sample"),
        (lambda data: data.repartition(3, shuffle=True), "Repartition with a shuffle"),
        (lambda data: data.sort("id"), "Sort"),
        (lambda data: data.groupby("id").count(), "Aggregate"),
        (lambda data: ray.data.range(9).union(data.random_shuffle()), "RandomShuffle"),
    ],
)
def test_what_may_come_in_another_order_is_refused(make: Any, name: str, tmp_path: Path) -> None:
    dataset = make(ray.data.range(50, override_num_blocks=5))
    with pytest.raises(PackError, match=f"the Ray dataset has the operation {name}, whose rows"):
        feedline.pack(dataset, tmp_path / "data")
    assert not any(tmp_path.iterdir())


def test_files_in_random_order_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        pandas.DataFrame({"a": [number]}).to_csv(tmp_path / f"{number}.csv", index=False)
    paths = sorted(str(path) for path in tmp_path.glob("*.csv"))
    ordered = ray.data.read_csv(paths)
    feedline.pack(ordered, tmp_path / "data")
    assert feedline.open(tmp_path / "data")[:]["a"].tolist() == [0, 1, 2]
    with pytest.raises(PackError, match="with a shuffle"):
        feedline.pack(ray.data.read_csv(paths, shuffle="files"), tmp_path / "other")


def test_functions_that_are_random_are_found_when_rows_are_read_again(tmp_path: Path) -> None:
    def drawn(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.random.default_rng().random(len(batch["id"]))}

    dataset = ray.data.range(NUM_ROWS).map_batches(drawn)
    with pytest.raises(PackError, match="yields other rows when it is executed again: row"):
        feedline.pack(dataset, tmp_path / "data")


def test_a_dataset_without_rows_is_refused(tmp_path: Path) -> None:
    dataset = ray.data.range(20).filter(lambda row: row["id"] > 100)
    with pytest.raises(PackError, match="has 0 rows"):
        feedline.pack(dataset, tmp_path / "data")


def test_objects_of_python_are_refused(tmp_path: Path) -> None:
    dataset = ray.data.range(5).map(lambda row: {"x": Fraction(1, 3)})
    with pytest.raises(PackError, match="such as Python objects"):
        feedline.pack(dataset, tmp_path / "data")
