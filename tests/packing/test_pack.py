"""`pack`: what goes in comes out, in chunks of the size asked for, or it is refused."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import math
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import InvalidValueError, PackError
from feedline.packing import FORMATS, chunk_files, pack
from feedline.store.manifest import read_manifest
from pack_data import (
    SOURCE_KINDS,
    list_chunks,
    make_arrays,
    make_source,
    partial_of,
    read_chunk,
    read_folder,
    read_tree,
    write_parquet,
)


def columns_for(format_: str, names: list[str]) -> dict[str, str]:
    return {f"sequences/{name}" if format_ == "pt" else name: name for name in names}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_every_source_comes_out_of_every_format(tmp_path: Path, kind: str, format_: str) -> None:
    arrays = make_arrays(1050)
    source = make_source(kind, arrays, tmp_path / "source")
    names = [name for name in arrays if kind != "csv" or arrays[name].ndim == 1]
    columns = columns_for(format_, names)
    result = pack(source, tmp_path / "out", format=format_, columns=columns, chunk_samples=100)
    found = read_folder(tmp_path / "out")
    for new, old in columns.items():
        np.testing.assert_array_equal(found[new], arrays[old])
        assert found[new].dtype == arrays[old].dtype
    assert (result.num_samples, result.num_chunks) == (1050, 11)
    assert [path.name.split(".")[0] for path in list_chunks(tmp_path / "out")] == [
        f"chunk-{number:06}" for number in range(11)
    ]
    assert not partial_of(tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "npy"])
def test_several_files_are_read_one_after_another(tmp_path: Path, kind: str) -> None:
    arrays = {"data": np.arange(1000) / 4}
    paths = []
    for number in range(4):
        part = {"data": arrays["data"][250 * number : 250 * (number + 1)]}
        source = make_source(kind, part, tmp_path / f"{number}")
        paths.append(source["data"] if kind == "npy" else source)
    pack(paths, tmp_path / "listed", chunk_samples=300)
    np.testing.assert_array_equal(read_folder(tmp_path / "listed")["data"], arrays["data"])
    if kind == "npy":
        return
    folder = tmp_path / "together"
    folder.mkdir()
    for number, path in enumerate(paths):
        path.rename(folder / f"part-{number}{path.suffix}")
    (folder / "_SUCCESS").touch()
    pack(folder, tmp_path / "found", chunk_samples=300)
    assert read_tree(tmp_path / "found") == read_tree(tmp_path / "listed")


@given(
    num_rows=st.integers(1, 60),
    chunk_samples=st.integers(1, 70),
    batch=st.integers(1, 30),
)
def test_rows_keep_their_order_for_any_sizes(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, chunk_samples: int, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    files = []
    for number, start in enumerate(range(0, num_rows, batch)):
        files.append(folder / f"{number}.npy")
        np.save(files[-1], np.arange(start, min(num_rows, start + batch)))
    result = pack(files, folder / "out", format="npy", chunk_samples=chunk_samples)
    assert read_folder(folder / "out")["data"].tolist() == list(range(num_rows))
    assert result.num_chunks == math.ceil(num_rows / chunk_samples)


def test_one_npy_file_is_column_data(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 2), ">f4"))
    pack(tmp_path / "x.npy", tmp_path / "out")
    found = read_folder(tmp_path / "out")
    assert list(found) == ["data"]
    assert found["data"].dtype == np.dtype("<f4")
    assert found["data"].tolist() == [[1, 1]] * 4


def test_columns_are_chosen_and_renamed(tmp_path: Path) -> None:
    arrays = make_arrays(10)
    pack(arrays, tmp_path / "list", columns=["score", "item"])
    pack(arrays, tmp_path / "map", columns={"sequences/a": "item", "b": "item"}, format="npy")
    assert set(read_folder(tmp_path / "list")) == {"score", "item"}
    assert set(read_folder(tmp_path / "map")) == {"sequences/a", "b"}
    assert (tmp_path / "map" / "chunk-000000" / "sequences" / "a.npy").is_file()


@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_a_column_may_be_taken_twice(tmp_path: Path, kind: str) -> None:
    source = make_source(kind, make_arrays(10), tmp_path / "source")
    pack(source, tmp_path / "out", columns={"b": "item", "a/c": "item"})
    found = read_folder(tmp_path / "out")
    assert found["b"].tolist() == found["a/c"].tolist() == list(range(10))


@pytest.mark.parametrize(
    "source",
    [
        {"a/b": np.arange(3), "a": {"b": np.arange(3)}},
        {"a": {"b": [1, 2], "b/c": [1, 2]}, "a/b": [3, 4]},
        [{"a/b": 1, "a": {"b": 3}}, {"a/b": 2, "a": {"b": 4}}],
        [{"x": {"a/b": 1, "a": {"b": 3}}}],
    ],
    ids=["columns", "columns in columns", "records", "records in records"],
)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, source: Any) -> None:
    with pytest.raises(PackError, match="/b' twice, in a record and by a name with a slash"):
        pack(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source("jsonl", make_arrays(100), tmp_path / "source")
    write = chunk_files.write_chunk

    def write_late(*arguments: Any) -> None:
        with open(source, "a") as file:
            file.write("\n")
        write(*arguments)

    monkeypatch.setattr(chunk_files, "write_chunk", write_late)
    with pytest.raises(PackError, match=f"{re.escape(str(source))}: has changed during packing"):
        pack(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_later_file_without_a_column_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x\n1\n")
    with pytest.raises(InvalidValueError, match=r"b\.csv: has 0 columns named 'y'"):
        pack([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "out", columns=["y"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


def test_chunks_have_the_bytes_asked_for(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((1000, 16), np.int64)}
    result = pack(arrays, tmp_path / "out", chunk_bytes=10_000)
    sizes = read_manifest(tmp_path / "out").samples.tolist()
    assert sizes == [78] * 12 + [64]
    assert result.num_chunks == 13
    pack(arrays, tmp_path / "one", chunk_bytes=1)
    assert read_manifest(tmp_path / "one").samples.tolist() == [1] * 1000


def test_metadata_records_columns_bytes_and_checksums(tmp_path: Path) -> None:
    pack(make_arrays(10), tmp_path / "out", chunk_samples=4)
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["total_samples"] == 10
    assert {c["name"]: (c["dtype"], c["shape"]) for c in metadata["columns"]} == {
        "item": ("int64", []),
        "steps": ("int64", [5]),
        "score": ("float64", []),
        "flag": ("bool", []),
    }
    for entry in metadata["batch_files"]:
        assert entry["bytes"] == (tmp_path / "out" / entry["path"]).stat().st_size
        assert entry["checksum"].startswith("blake2b:")


@given(
    num_rows=st.integers(40, 2500),
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_splits_share_all_rows_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    num_rows: int,
    shares: list[int],
    seed: int,
    shuffle: bool,
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    fractions = [Fraction(share, sum(shares)) for share in shares]
    split = {f"part{number}": fraction for number, fraction in enumerate(fractions)}
    result = pack(
        ({"item": number} for number in range(num_rows)),
        folder / "out",
        format="npy",
        split=split,
        seed=seed,
        shuffle=shuffle,
        chunk_samples=1000,
    )
    edges = [math.floor(sum(fractions[:n]) * num_rows) for n in range(len(shares) + 1)]
    assert list(result.splits.values()) == np.diff(edges).tolist()
    found = [read_folder(folder / "out" / name)["item"].tolist() for name in split]
    assert sorted(itertools.chain(*found)) == list(range(num_rows))
    if not shuffle:
        assert all(part == sorted(part) for part in found)


def test_a_split_gets_its_share_of_every_thousand_rows_at_random(tmp_path: Path) -> None:
    source = {"item": np.arange(10_000)}
    pack(source, tmp_path / "out", split=0.1)
    found = read_folder(tmp_path / "out" / "validation")["item"]
    assert np.bincount(found // 1000).tolist() == [100] * 10
    pack(source, tmp_path / "other", split={"train": 0.9, "validation": 0.1}, seed=1)
    other = read_folder(tmp_path / "other" / "validation")["item"]
    assert 40 < len(np.intersect1d(found, other)) < 160
    assert np.bincount(found % 10, minlength=10).min() > 50


def test_a_type_that_the_first_rows_allow_serves_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1.5,1\nnan,2\n")
    (tmp_path / "b.csv").write_text("y,x\n3,2\n")
    pack([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "out")
    found = read_folder(tmp_path / "out")
    np.testing.assert_array_equal(found["x"], [1.5, np.nan, 2.0])
    assert found["y"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("csv", "x\n1\n", "x\n2\n1.5\n"), ("jsonl", '{"x":1}\n', '{"x":2}\n{"x":1.5}\n')],
)
def test_a_value_that_does_not_fit_the_types_of_the_first_file_is_refused(
    tmp_path: Path, name: str, first: str, second: str
) -> None:
    paths = [tmp_path / f"{number}.{name}" for number in range(2)]
    for path, text in zip(paths, (first, second), strict=True):
        path.write_text(text)
    with pytest.raises(PackError, match="the first rows decide the type of each column") as caught:
        pack(paths, tmp_path / "out")
    assert str(caught.value).startswith(str(paths[1]))
    assert sorted(tmp_path.iterdir()) == paths


def test_quoted_newlines_in_other_columns_do_no_harm(tmp_path: Path) -> None:
    line = '"said ""no""\nand, left",{}\n'
    text = "text,x\n" + "".join(line.format(n) for n in range(60_000))
    (tmp_path / "a.csv").write_text(text)
    pack(tmp_path / "a.csv", tmp_path / "out", columns=["x"])
    assert read_folder(tmp_path / "out")["x"].tolist() == list(range(60_000))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["x", '"x"', '"x"""', '"x, and\ny"', "\ufeffx"])
@pytest.mark.parametrize("has_last_end", [True, False])
def test_the_first_line_of_a_csv_file_is_all_that_names_columns(
    tmp_path: Path, name: str, end: str, has_last_end: bool
) -> None:
    lines = [f"{name},z", "1,2", "3,4"]
    text = end.join(lines) + (end if has_last_end else "")
    (tmp_path / "a.csv").write_bytes(text.encode())
    columns = {"x": next(csv.reader([name.strip("\ufeff")]))[0], "z": "z"}
    pack(tmp_path / "a.csv", tmp_path / "out", columns=columns)
    found = read_folder(tmp_path / "out")
    assert (found["x"].tolist(), found["z"].tolist()) == ([1, 3], [2, 4])


def test_an_array_of_no_values_in_a_row_is_kept(tmp_path: Path) -> None:
    pack({"x": np.zeros((5, 0, 3), np.float32), "y": np.arange(5)}, tmp_path / "out", shuffle=True)
    assert read_folder(tmp_path / "out")["x"].shape == (5, 0, 3)


def parquet_of(**columns: Any) -> Callable[[Path], Any]:
    def write(folder: Path) -> Path:
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table(columns), folder / "a.parquet")
        return folder / "a.parquet"

    return write


def text_of(name: str, text: str) -> Callable[[Path], Any]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


def records_of(*records: Any) -> Callable[[Path], Any]:
    return lambda folder: iter(records)


MANY = 600_000
BAD_SOURCES = {
    "null-in-list": (parquet_of(x=[[1, 2], [3, None]]), "inside the list at row 1"),
    "ragged-inside": (parquet_of(x=[[[1], [2, 3]]]), "inside the list at row 0"),
    "texts-in-list": (parquet_of(x=[["a"]]), "'x' is of type string at row 0"),
    "decimal": (parquet_of(x=[Decimal("1.5")]), "'x' is of type decimal"),
    "csv-later-float": (text_of("a.csv", "x\n" + "1\n" * MANY + "1.5\n"), f"row {MANY}"),
    "csv-torn": (text_of("a.csv", "x,y\n1,2\n3\n"), "row 1 has 1 field and must have 2"),
    "csv-too-many": (text_of("a.csv", "x,y\n1,2\n3,4,5\n"), "row 1 has 3 fields and must have 2"),
    "csv-empty-line": (text_of("a.csv", "x\n1\n\n3\n"), "row 1 is an empty line"),
    "csv-late-empty": (text_of("a.csv", "x\r\n" + "1\r\n" * MANY + "\r\n"), f"row {MANY} is an e"),
    "jsonl-later-float": (text_of("a.jsonl", '{"x":1}\n' * MANY + '{"x":1.5}\n'), "1.5"),
    "jsonl-later-text": (text_of("a.jsonl", '{"x":1}\n{"x":"a"}\n'), "row 1"),
    "jsonl-new": (text_of("a.jsonl", '{"x":1}\n' * MANY + '{"x":1,"y":1}\n'), "unexpected field"),
    "jsonl-torn": (text_of("a.jsonl", '{"x":1}\n{"x":\n'), "row 1"),
    "records-type": (records_of({"x": 1}, {"x": 1.5}), "record 1: column 'x' is float64"),
    "records-axes": (records_of({"x": [1]}, {"x": [[1]]}), "record 1: column 'x' is int64[1, 1]"),
    "records-kinds": (records_of({"x": "a"}, {"x": b"a"}), "record 1: column 'x' is b'a' (bytes)"),
    "records-inside": (records_of({"x": {"a": 1}}, {"x": {"b": 1}}), "record 1: column 'x'"),
    "records-late-null": (records_of(*[{"x": 1}] * 2000, {"x": None}), "can be read only once"),
    "records-late-list": (records_of(*[{"x": [1]}] * 2000, {"x": []}), "can be read only once"),
    "records-empty": (records_of({"x": []}), "so its type is unknown"),
    "not-utf8": (records_of({"x": "\ud800"}), "cannot be written as UTF-8"),
    "records-keys": (records_of({"x": 1}, {"x": 1, "y": 1}), "record 1 and record 0 differ"),
    "records-less": (records_of({"x": 1, "y": 1}, {"x": 1}), "'y'"),
    "records-ragged": (records_of({"x": [[1], [1, 2]]}), "record 0: column 'x'"),
    "records-texts": (records_of({"x": ["a"]}), "'x' is of type <U1"),
    "records-none": (records_of({"x": None}), "so its type is unknown"),
    "columns-empty": (lambda f: {"x": [[], []]}, "'x' has no value in the first 2 rows"),
    "columns-none": (lambda f: {"x": [None, None]}, "'x' has no value in the first 2 rows"),
    "records-far": (records_of(*[{"x": 1}] * 5000, {"x": 1.0}), "column 'x' is float64"),
    "no-records": (records_of(), "0 rows"),
    "no-rows": (text_of("a.csv", "x,y\n"), "a.csv: has 0 rows"),
    "no-bytes": (text_of("a.jsonl", ""), "0 rows"),
    "npy-objects": (lambda f: np.array([object()]), "type object"),
    "npy-lengths": (lambda f: {"x": np.zeros(3), "y": np.zeros(4)}, "equally many rows"),
    "npy-torn": (text_of("a.npy", "no array"), "complete .npy file"),
    "parquet-torn": (text_of("a.parquet", "no table"), "complete parquet file"),
    "scalar": (lambda f: {"x": np.float32(1)}, "at least 1 axis"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_cannot_be_packed_is_refused_and_leaves_nothing(
    tmp_path: Path, case: str, shuffle: bool
) -> None:
    make, text = BAD_SOURCES[case]
    source = make(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(PackError) as caught:
        pack(source, tmp_path / "out", shuffle=shuffle, chunk_samples=100_000)
    assert text in str(caught.value)
    if isinstance(source, Path) and "rows and must" not in str(caught.value):
        assert str(caught.value).startswith(str(source))
    assert set(tmp_path.iterdir()) == before


def test_files_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"x": np.arange(3)})
    write_parquet(tmp_path / "b.parquet", {"x": np.arange(3.0)})
    write_parquet(tmp_path / "c.parquet", {"x": np.arange(3), "y": np.arange(3)})
    with pytest.raises(PackError, match=r"b\.parquet: column 'x' is float64.* int64"):
        pack([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "out")
    with pytest.raises(PackError, match=r"c\.parquet: its columns differ .*: 'y'"):
        pack([tmp_path / "a.parquet", tmp_path / "c.parquet"], tmp_path / "out")
    pack([tmp_path / "a.parquet", tmp_path / "c.parquet"], tmp_path / "out", columns=["x"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunk_samples": 5, "chunk_bytes": 5}, "pass one of them"),
        ({"chunk_samples": 0}, "chunk_samples=0"),
        ({"chunk_bytes": -1}, "chunk_bytes=-1"),
        ({"format": "zip"}, "format='zip' must be one of 'safetensors'"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"memory_budget": 1000}, "memory_budget=1000"),
        ({"memory_budget": 2**20, "chunk_bytes": 2**20}, "larger memory_budget"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"split": 1}, "split=1 must be a share"),
        ({"split": "a"}, "split='a'"),
        ({"split": {"a": 0.5, "b": 0.4}}, "add up to 0.9"),
        ({"split": {"a/b": 0.5, "b": 0.5}}, "'a/b'"),
        ({"split": {"..": 0.5, "b": 0.5}}, "'..'"),
        ({"split": {"metadata.json": 0.5, "b": 0.5}}, "choose another name"),
        ({"columns": []}, "columns is empty"),
        ({"columns": "item"}, "must be a list"),
        ({"columns": ["none"]}, "0 columns named 'none'"),
        ({"columns": {"../x": "item"}}, "'../x'"),
        ({"columns": {"/x": "item"}}, "'/x'"),
        ({"columns": {"": "item"}}, "column name ''"),
        ({"columns": {"a\\b": "item"}}, "backslashes"),
        ({"columns": {"a//b": "item"}}, "'a//b'"),
        ({"columns": ["item", "item"]}, "twice"),
        ({"columns": {"a": "item", "a.npy/b": "item"}}, "collides"),
        ({"columns": {"__metadata__": "item"}}, "reserved"),
        ({"format": "pt"}, "not fit into format='pt'"),
        ({"format": "pt", "columns": {"sequence_ids": "score"}}, "one integer per row"),
    ],
)
def test_arguments_outside_their_bounds_are_refused(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        pack(make_arrays(100_000), tmp_path / "out", **options)
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("missing.csv", "does not exist"),
        ("data.txt", "must end in one of .npy, .parquet, .arrow, .feather, .csv"),
        (["a.csv", "b.npy"], "one kind"),
        ({"x": "a.csv"}, "must name .npy files"),
        ({"x": "a.npy", "y": np.zeros(3)}, "all columns to arrays"),
        (5, "must be a path"),
        ([1, 2], "record 0 is 1"),
        ([{}], "0 columns"),
        ({"a/../b": np.zeros(3)}, "'a/../b'"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path: Path, source: Any, text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        pack(source, tmp_path / "out")
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_more_than_data_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.csv").write_text("x\n1\n")
    (folder / "notes.txt").touch()
    with pytest.raises(InvalidValueError, match=r"notes\.txt"):
        pack(folder, tmp_path / "out")
    (folder / "notes.txt").unlink()
    write_parquet(folder / "b.parquet", {"x": np.arange(3)})
    with pytest.raises(InvalidValueError, match="all files must be of one kind"):
        pack(folder, tmp_path / "out")
    # As feedline.open does, tables are taken from among other files.
    (folder / "a.csv").rename(folder / "notes.txt")
    pack(folder, tmp_path / "out")
    assert read_folder(tmp_path / "out")["x"].tolist() == [0, 1, 2]


def test_a_source_in_the_folder_to_replace_is_refused(tmp_path: Path) -> None:
    pack({"x": np.arange(3)}, tmp_path / "out", format="parquet")
    with pytest.raises(InvalidValueError, match="must not be in folder"):
        pack(tmp_path / "out" / "chunk-000000.parquet", tmp_path / "out", overwrite=True)


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    for source in ({"x": np.arange(5)}, ({"x": n} for n in range(5))):
        with pytest.raises(PackError, match="'validation' gets 0 of 5 rows"):
            pack(source, tmp_path / "out", split={"validation": 0.1, "train": 0.9})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    pack({"x": np.arange(3)}, tmp_path / "out")
    old = read_tree(tmp_path / "out")
    with pytest.raises(PackError, match="overwrite=True"):
        pack({"x": np.arange(9)}, tmp_path / "out")
    with pytest.raises(PackError, match="'x'"):
        pack([{"x": 1}, {"x": 1.5}], tmp_path / "out", overwrite=True)
    assert read_tree(tmp_path / "out") == old
    pack({"x": np.arange(9)}, tmp_path / "out", overwrite=True)
    assert read_folder(tmp_path / "out")["x"].tolist() == list(range(9))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(PackError, match=r"no metadata\.json"):
        pack({"x": np.arange(3)}, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("missing", "extra", "call"),
    [
        ("pyarrow", "arrow", lambda f: pack(f / "a.csv", f / "out")),
        ("pyarrow", "arrow", lambda f: pack({"x": np.arange(3)}, f / "out", format="parquet")),
        ("rich", "cli", lambda f: pack({"x": np.arange(3)}, f / "out", progress=True)),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    extra: str,
    call: Callable[[Path], Any],
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    find_spec = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    with pytest.raises(ModuleNotFoundError, match=rf"feedline\[{extra}\]"):
        call(tmp_path)
    assert not (tmp_path / "out").exists()


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack({"x": np.arange(3000)}, tmp_path / "out", shuffle=True, progress=True)
    output, errors = capsys.readouterr()
    assert output == ""
    assert "shuffling" in errors
    assert "3,000 rows" in errors


def test_chunks_hold_what_their_first_file_says(tmp_path: Path) -> None:
    # Batches of a source are much smaller than a chunk here, and much larger in other tests.
    arrays = {"x": np.arange(200_000).reshape(-1, 2)}
    write_parquet(tmp_path / "a.parquet", arrays, group=777)
    pack(tmp_path / "a.parquet", tmp_path / "out", chunk_samples=60_000)
    assert read_chunk(tmp_path / "out" / "chunk-000001.safetensors")["x"][0].tolist() == [
        120_000,
        120_001,
    ]
