"""A Ray cluster packs to the bytes that one machine writes, whatever is packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import FeedlineError, InvalidValueError
from feedline.packing import pack
from pack_data import make_arrays, read_tree
from pack_data import make_source as make_plain_source
from pack_kinds import KINDS, make_samples, make_source

pytestmark = pytest.mark.usefixtures("cluster")
SMALL = {"memory_budget": 2**20}


def packed(source: Any, folder: Path, **options: Any) -> Any:
    """Return all files that packing writes, or what it says."""
    try:
        pack(source, folder, **options)
    except FeedlineError as error:
        return f"{type(error).__name__}: {str(error).replace(str(folder), 'folder')}"
    return read_tree(folder)


def assert_both_engines_agree(make: Any, folder: Path, **options: Any) -> Any:
    here = packed(make(), folder / "here", **options)
    there = packed(make(), folder / "there", engine="ray", **options)
    assert there == here
    assert not list(folder.glob("*.partial*"))
    return here


@pytest.mark.parametrize(
    "options",
    [
        {"format": "safetensors"},
        {"format": "parquet", "shuffle": True, "split": {"a": 0.5, "b": 0.3, "c": 0.2}},
        {"format": "npy", "shuffle": True, "chunk_samples": 170},
        {"format": "safetensors", "split": 0.1, "seed": "s", "num_threads": 1},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind_are_packed_to_the_same_bytes(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    samples = make_samples(700)
    found = assert_both_engines_agree(
        lambda: make_source(kind, samples, tmp_path / "source"),
        tmp_path,
        **{"chunk_bytes": 20_000} | options if "chunk_samples" not in options else options,
        **SMALL,
    )
    assert not isinstance(found, str), found


@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("format_", ["safetensors", "pt"])
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_plain_columns_are_packed_to_the_same_bytes(
    tmp_path: Path, kind: str, format_: str, shuffle: bool
) -> None:
    arrays = {f"sequences/{name}": array for name, array in make_arrays(60_000).items()}
    if kind == "npy":
        arrays = {name.replace("sequences/", "sequences/x_"): a for name, a in arrays.items()}
    source = make_plain_source(
        kind, {n.removeprefix("sequences/"): a for n, a in arrays.items()}, tmp_path / "source"
    )
    columns = None
    if format_ == "pt":
        columns = {"sequences/item": "x_item" if kind == "npy" else "item"}
    assert_both_engines_agree(
        lambda: source, tmp_path, format=format_, columns=columns, shuffle=shuffle, **SMALL
    )


def test_text_files_are_cut_between_lines_and_outside_of_quotes(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(2):
        rows = (f'{n},"line {n}\n""quoted"", {"x" * (n % 90)}"\n' for n in range(40_000))
        (folder / f"{number}.csv").write_text("id,text\n" + "".join(rows))
    assert_both_engines_agree(lambda: folder, tmp_path, shuffle=True, split=0.01, **SMALL)


def test_rows_that_grow_beyond_what_the_first_ones_showed_still_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    sizes = [1] * 30_000 + [3000] * 800
    path.write_text("".join(json.dumps({"t": "é" * size}) + "\n" for size in sizes))
    assert_both_engines_agree(lambda: path, tmp_path, shuffle=True, chunk_bytes=9000, **SMALL)


def test_an_iterator_that_shows_too_late_what_it_has_is_refused(tmp_path: Path) -> None:
    records = [{"x": [1, 2]}] * 2000 + [{"x": None}]
    found = assert_both_engines_agree(lambda: iter(records), tmp_path, **SMALL)
    assert "these records can be read only once" in found


def test_a_packed_folder_is_packed_again_to_the_same_bytes(tmp_path: Path) -> None:
    pack({"x": np.arange(90_000)}, tmp_path / "source", chunk_samples=1000)
    for options in ({}, {"shuffle": True}):
        folder = tmp_path / str(len(options))
        folder.mkdir()
        assert_both_engines_agree(
            lambda: tmp_path / "source", folder, chunk_samples=900, **options, **SMALL
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"x": 1}\n' * 400_000 + '{"x": "text"}\n' + '{"x": 1}\n' * 9),
        ("a.csv", "x,y\n" + "1,2\n" * 600_000 + "1,2,3\n" + "1,2\n" * 9),
    ],
    ids=["type", "fields"],
)
def test_a_fault_far_into_a_file_is_told_with_its_row(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = assert_both_engines_agree(lambda: path, tmp_path, shuffle=True, **SMALL)
    assert isinstance(found, str)
    assert "row" in found


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n' * 3)
    shares = {"none": 0.000001, "all": 0.999999}
    found = assert_both_engines_agree(lambda: path, tmp_path, split=shares)
    assert "gets 0 of 3 rows" in found


def test_more_memory_than_a_node_has_is_refused_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="the memory of the largest node"):
        pack({"x": np.arange(9)}, tmp_path / "out", engine="ray", memory_budget=2**60)


def test_relative_paths_are_those_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pack({"x": np.arange(90_000)}, "source", chunk_samples=1000)
    np.save("x.npy", np.arange(90_000))
    for number, source in enumerate(("source", feedline.open("source"), {"x": Path("x.npy")})):
        result = pack(source, f"out-{number}", engine="ray", shuffle=True, **SMALL)
        assert result.num_samples == 90_000
        assert read_tree(tmp_path / f"out-{number}") == read_tree(tmp_path / "out-0")
