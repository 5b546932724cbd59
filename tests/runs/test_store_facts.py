"""What `feedline inspect` says of data, and what would make it faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedline
from cli_runs import invoke
from feedline.runs.inspection import inspect_path
from feedline.runs.store_facts import advice_for, facts_of_store
from feedline.store.shards import ShardStore
from foreign import NAMES, data_of


def packed(folder: Path, num_samples: int, width: int, chunk: int, **options: object) -> Path:
    columns = {"x": np.zeros((num_samples, width), np.uint8)}
    feedline.pack(columns, folder, chunk_samples=chunk, **options)  # type: ignore[arg-type]
    return folder


def test_small_chunks_and_compressed_ones_get_advice(tmp_path: Path) -> None:
    small = feedline.open(packed(tmp_path / "small", 100, 10, 10, format="npy"))
    (sentence,) = advice_for(small)
    assert "Chunks are small, 100 bytes" in sentence
    large = feedline.open(packed(tmp_path / "large", 40, 2**16, 20, format="npy"))
    assert advice_for(large) == []
    encoded = feedline.open(packed(tmp_path / "encoded", 40, 2**16, 20, format="parquet"))
    assert any("compressed (parquet)" in sentence for sentence in advice_for(encoded))


def test_chunks_of_different_sizes_get_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1000, 2**12), np.uint8))
    facts = facts_of_store(feedline.open(tmp_path / "a.npy"))
    assert facts["advice"] == []
    assert facts["chunk_bytes"] == 1000 * 2**12
    assert facts["compression"] == "none"


@pytest.mark.parametrize("name", NAMES)
def test_data_of_other_formats_is_described(name: str) -> None:
    path = data_of(name)
    found = inspect_path(path)
    store = feedline.open(path)
    assert found.facts["num_samples"] == len(store)
    if isinstance(store, ShardStore):
        assert found.facts["num_files"] == len(store.shards.files)
    assert [column["name"] for column in found.facts["columns"]] == list(store.columns)


def test_files_of_samples_are_described(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3)))
    assert inspect_path(tmp_path / "x.npy").kind == "file of samples"
    shown = invoke("inspect", str(tmp_path / "x.npy")).stdout
    assert "num_samples: 5" in shown
    assert "to read it faster" not in shown
    folder = packed(tmp_path / "small", 100, 10, 10, format="npy")
    shown = invoke("inspect", str(folder)).stdout
    assert shown.count("to read it faster:") == 1
    assert "Chunks are small" in shown
