"""Shuffled packing: every row once, in a uniform order that only the seed and the source decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chance import LIMIT, chi_square_z, correlation_z
from feedline.packing import pack
from feedline.packing.keys import row_keys
from feedline.packing.rows import take_rows
from feedline.packing.shuffle import Shuffle, Spill
from feedline.store import Lists
from pack_data import make_arrays, make_source, read_folder, read_tree, write_parquet


def shuffled_items(folder: Path, source: Any, **options: Any) -> list[int]:
    pack(source, folder, format="npy", shuffle=True, **options)
    return list(read_folder(folder)["item"])


@given(
    num_rows=st.integers(1, 400),
    chunk_samples=st.integers(1, 200),
    seed=st.one_of(st.integers(), st.text(max_size=4)),
)
def test_every_row_comes_out_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, chunk_samples: int, seed: int | str
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    source = {"item": np.arange(num_rows)}
    options = {"chunk_samples": max(chunk_samples, num_rows // 10), "seed": seed}
    assert sorted(shuffled_items(folder / "out", source, **options)) == list(range(num_rows))


def test_rows_stay_whole(tmp_path: Path) -> None:
    arrays = make_arrays(5000)
    pack(arrays, tmp_path / "out", shuffle=True, chunk_samples=900)
    found = read_folder(tmp_path / "out")
    order = found["item"]
    assert order.tolist() != sorted(order)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array[order])


@pytest.mark.parametrize("split", [pytest.param(None, marks=pytest.mark.slow), 0.25])
def test_only_seed_and_source_decide_the_bytes(tmp_path: Path, split: float | None) -> None:
    arrays = make_arrays(20_000)
    paths = {}
    for kind in ("parquet", "jsonl", "npy"):
        paths[kind] = make_source(kind, arrays, tmp_path / kind)
    write_parquet(tmp_path / "small.parquet", arrays, group=53)
    trees = {}
    for name, source, options in [
        ("plain", paths["parquet"], {}),
        ("one thread", paths["parquet"], {"num_threads": 1}),
        ("many threads", paths["parquet"], {"num_threads": 8}),
        # Less than the data, so that spills are many, and one is dealt again.
        ("little memory", paths["parquet"], {"memory_budget": 2**20}),
        ("other batches", tmp_path / "small.parquet", {}),
        ("text", paths["jsonl"], {"memory_budget": 2**20, "num_threads": 3}),
        ("arrays", arrays, {}),
        ("mapped", paths["npy"], {}),
        ("records", make_source("records", arrays, tmp_path), {"memory_budget": 2**20}),
    ]:
        folder = tmp_path / "out" / name
        pack(source, folder, shuffle=True, seed=5, split=split, chunk_samples=700, **options)
        trees[name] = read_tree(folder)
    assert [name for name, tree in trees.items() if tree != trees["plain"]] == []
    pack(arrays, tmp_path / "other", shuffle=True, seed=6, split=split, chunk_samples=700)
    assert read_tree(tmp_path / "other") != trees["plain"]


def test_a_spill_that_outgrows_memory_is_dealt_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long lines at the start make the source look much smaller than it is, and one spill enough.
    lines = [f"{n},{'-' * 100_000 if n < 12 else ''}" for n in range(60_000)]
    (tmp_path / "a.csv").write_text("\n".join(["item,pad", *lines]))
    parts = set()
    deal = Shuffle._deal

    def watched(shuffle: Shuffle, rows: Any, spills: list[Spill], places: Any) -> None:
        parts.add(spills[0].num_parts)
        deal(shuffle, rows, spills, places)

    monkeypatch.setattr(Shuffle, "_deal", watched)
    options = {"columns": ["item"], "memory_budget": 2**20, "chunk_samples": 5000}
    found = shuffled_items(tmp_path / "out", tmp_path / "a.csv", **options)
    assert min(parts) == 1
    assert max(parts) > 1
    plain = shuffled_items(tmp_path / "plain", {"item": np.arange(60_000)}, chunk_samples=5000)
    assert found == plain


def test_columns_of_any_name_come_through_a_shuffle(tmp_path: Path) -> None:
    names = ["key", "split", "row", "0", "obs/key"]
    arrays = {name: np.arange(500) + n for n, name in enumerate(names)}
    pack(arrays, tmp_path / "out", shuffle=True, split=0.4)
    parts = [read_folder(tmp_path / "out" / name) for name in ("train", "validation")]
    found = {name: np.concatenate([part[name] for part in parts]) for name in names}
    assert sorted(found["key"].tolist()) == list(range(500))
    for n, name in enumerate(names):
        assert (found[name] - n).tolist() == found["key"].tolist()


def test_every_row_is_as_likely_in_every_place(tmp_path: Path) -> None:
    num_rows, num_seeds = 12, 1200
    counts = np.zeros((num_rows, num_rows), int)
    pairs = np.zeros((num_rows, num_rows), int)

    for seed in range(num_seeds):
        order = np.argsort(row_keys(seed, 0, num_rows), kind="stable")
        counts[np.arange(num_rows), order] += 1
        pairs[order[0], order[1]] += 1
    for seed in range(20):
        order = np.argsort(row_keys(seed, 0, num_rows), kind="stable")
        found = shuffled_items(tmp_path / str(seed), {"item": np.arange(num_rows)}, seed=seed)
        assert found == order.tolist()
    for place in counts:
        assert abs(chi_square_z(place, num_seeds / num_rows)) < LIMIT
    different = pairs[~np.eye(num_rows, dtype=bool)]
    assert abs(chi_square_z(different, num_seeds / len(different))) < LIMIT


def test_a_long_order_has_no_trace_of_the_source(tmp_path: Path) -> None:
    num_rows = 200_000
    source = {"item": np.arange(num_rows)}
    orders = [
        np.array(shuffled_items(tmp_path / str(seed), source, seed=seed)) for seed in range(3)
    ]
    identity = np.arange(num_rows)
    for number, order in enumerate(orders):
        assert abs(correlation_z(order, identity)) < LIMIT
        assert abs(correlation_z(order, orders[number - 1])) < LIMIT
        # How many neighbours of the source come from the same chunk as in any random order.
        steps = np.bincount(order[:1000] * 20 // num_rows, minlength=20)
        assert abs(chi_square_z(steps, 50)) < LIMIT


def test_splits_are_the_same_rows_with_and_without_a_shuffle(tmp_path: Path) -> None:
    source = {"item": np.arange(3000)}
    for shuffle in (False, True):
        pack(source, tmp_path / str(shuffle), split=0.3, shuffle=shuffle, seed=3)
    for name in ("train", "validation"):
        plain, mixed = (read_folder(tmp_path / str(s) / name)["item"] for s in (False, True))
        assert set(plain) == set(mixed)
        assert plain.tolist() != mixed.tolist()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.data())
def test_lists_of_the_same_lengths_are_taken_together_as_they_are_alone(
    lengths: list[int], data: st.DataObject
) -> None:
    edges = np.cumsum([0, *lengths])
    numbers = np.arange(edges[-1])
    columns = {
        "a": Lists(numbers.astype(np.float32), edges),
        "b": Lists(numbers.astype("M8[s]"), edges),
        "c": Lists(numbers.astype(np.int16), edges),
        "d": Lists(numbers.astype(np.uint64), edges[::-1].max() - edges[::-1]),
        "e": Lists(numbers.astype(np.int32), edges),
    }
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1))), np.int64)
    taken = take_rows(columns, rows)
    assert list(taken) == list(columns)
    for name, column in columns.items():
        alone = column.take(rows)
        found = taken[name]
        np.testing.assert_array_equal(found.values, alone.values)
        np.testing.assert_array_equal(found.offsets, alone.offsets)
        assert found.values.dtype == column.values.dtype
