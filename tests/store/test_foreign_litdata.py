"""Chunks of litdata: every compression and structure, and files that are damaged or hostile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import (
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    UnsafeDataError,
)
from foreign import WRITTEN

HERE = WRITTEN / "litdata"
LEVELS = ("chunk", "batch", "sample")

Change = Callable[[dict[str, Any]], Any]


def copy_of(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / name, tmp_path / "data"))


def change_index(folder: Path, change: Change) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def set_config(folder: Path, **values: Any) -> None:
    change_index(folder, lambda index: index["config"].update(values))


def write_chunk(folder: Path, formats: list[str], *samples: list[bytes]) -> Path:
    """Write values of any length in one chunk, as the writer does."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        np.array([len(part) for part in sample], "<u4").tobytes() + b"".join(sample)
        for sample in samples
    ]
    ends = np.cumsum([8 + 4 * len(records), *map(len, records)]).astype("<u4")
    content = np.uint32(len(records)).tobytes() + ends.tobytes() + b"".join(records)
    (folder / "chunk-0-0.bin").write_bytes(content)
    chunk = {"filename": "chunk-0-0.bin", "chunk_bytes": len(content), "chunk_size": len(records)}
    config = {"data_format": formats, "data_spec": None, "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    return folder


@pytest.mark.parametrize("level", LEVELS)
def test_compressed_chunks_are_read(level: str) -> None:
    store = feedline.open(HERE / "compressed" / level)
    assert store[:]["id"].tolist() == list(range(20))
    assert store[13]["text"] == "13" * 5
    assert store.shards.compression == "zstd"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(store[:]["x"], np.repeat(np.arange(20), 40).reshape(20, 40))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", [0, 0.1, 0.3, 0.6, 0.9])
def test_damaged_compressed_chunks_never_give_other_samples(
    tmp_path: Path, level: str, place: float
) -> None:
    folder = copy_of(f"compressed/{level}", tmp_path)
    path = next(folder.glob("chunk-0-0*"))
    sound = path.read_bytes()
    content = bytearray(sound)
    content[int(place * len(content))] ^= 255
    path.write_bytes(content)
    expected = feedline.open(HERE / "compressed" / level)[:]
    with suppress(DamagedDataError):
        # Bytes that stand there as they are can be changed, and nothing else.
        assert feedline.open(folder)[:]["id"].shape == expected["id"].shape
    path.write_bytes(sound[:-5])
    with pytest.raises(DamagedDataError, match="chunk-0-0"):
        feedline.open(folder)[:]


def test_a_chunk_that_inflates_to_more_than_its_index_says_is_refused(tmp_path: Path) -> None:
    folder = copy_of("compressed/chunk", tmp_path)
    change_index(folder, lambda index: index["chunks"][0].update(chunk_bytes=100))
    with pytest.raises(DamagedDataError, match="inflates to more than 100 bytes"):
        feedline.open(folder)


def test_tuples_and_lists_are_numbered_columns() -> None:
    store = feedline.open(HERE / "tuples")
    assert list(store.columns) == ["0", "1/0", "1/1"]
    assert store[7] == {"0": 7, "1/0": "7", "1/1": 0.5}


def test_a_sample_that_is_one_value_is_one_column() -> None:
    store = feedline.open(HERE / "values")
    assert [sample["value"].tolist() for sample in store] == [list(range(n)) for n in range(20)]


def test_documents_of_tokens_are_samples() -> None:
    store = feedline.open(HERE / "documents")
    found = [sample["tokens"].tolist() for sample in store]
    assert found == [list(range(number)) for number in range(3, 20)]
    assert str(store.columns["tokens"]) == "list of int32"


def test_a_structure_that_is_not_json_is_never_loaded(tmp_path: Path) -> None:
    folder = copy_of("tuples", tmp_path)
    set_config(folder, data_spec="gASVDwAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg==")
    assert list(feedline.open(folder).columns) == ["0", "1", "2"]


def test_old_tensors_have_headers_in_the_other_order(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).tobytes()
    old = np.array([1, 2, 2, 3], "<u4").tobytes() + values
    new = np.array([1, 2, 2, 3], ">u4").tobytes() + values
    found = [
        feedline.open(write_chunk(tmp_path / str(n), ["tensor"], [value]))[0]["0"]
        for n, value in enumerate((old, new))
    ]
    np.testing.assert_array_equal(found, np.tile(np.arange(6).reshape(2, 3), (2, 1, 1)))


@pytest.mark.parametrize("name", ["pickle", "graph", "graph:pickle"])
def test_pickled_values_are_refused_by_name_and_never_loaded(tmp_path: Path, name: str) -> None:
    folder = copy_of("tuples", tmp_path)
    set_config(folder, data_format=["int", name, "float"])
    with pytest.raises(UnsafeDataError, match=f"column '1/0': has format '{name}'"):
        feedline.open(folder)


@pytest.mark.parametrize(
    "name", ["mine", "no_header_numpy", "no_header_numpy:14", "no_header_tensor:x", 7]
)
def test_unknown_formats_are_refused_by_name(tmp_path: Path, name: Any) -> None:
    folder = copy_of("tuples", tmp_path)
    set_config(folder, data_format=["int", name, "float"])
    with pytest.raises((InvalidValueError, DamagedDataError), match="column '1/0'"):
        feedline.open(folder)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda i: i["config"].update(encryption={}), InvalidValueError, "encrypted"),
        (lambda i: i["config"].update(compression="lz4"), InvalidValueError, "lz4"),
        (lambda i: i["config"].update(compression_level="row"), InvalidValueError, "zstd"),
        (lambda i: i["config"].update(item_loader="ParquetLoader"), InvalidValueError, "parquet"),
        (lambda i: i["config"].update(item_loader="Mine"), InvalidValueError, "Mine"),
        (lambda i: i["config"].update(data_format=[]), DamagedDataError, "equally many"),
        (lambda i: i["config"].update(data_spec="[1, {}]"), DamagedDataError, "structure"),
        (lambda i: i["config"].update(data_spec="[1, 7]"), DamagedDataError, "structure"),
        (lambda i: i.update(config=None), DamagedDataError, "JSON object"),
        (lambda i: i.update(chunks=[]), DamagedDataError, "0 samples"),
        (lambda i: i["chunks"][0].update(chunk_size=9), DamagedDataError, "should have 9"),
        (lambda i: i["chunks"][0].update(chunk_size=2**50), DamagedDataError, "chunk_size"),
        (lambda i: i["chunks"][0].update(filename="../x"), UnsafeDataError, "without"),
        (lambda i: i["chunks"][0].update(filename="x"), MissingDataError, "exist"),
    ],
)
def test_wrong_indexes_are_refused(
    tmp_path: Path, change: Change, error: type[FeedlineError], text: str
) -> None:
    folder = copy_of("compressed/chunk", tmp_path)
    change_index(folder, change)
    with pytest.raises(error, match=text):
        feedline.open(folder)


def test_a_structure_of_very_many_levels_is_refused(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    for _ in range(200):
        spec = {"type": "builtins.list", "context": "null", "children_spec": [spec]}
    folder = copy_of("values", tmp_path)
    set_config(folder, data_spec=json.dumps([1, spec]))
    with pytest.raises(DamagedDataError, match="more than 64 levels"):
        feedline.open(folder)


@pytest.mark.parametrize("place", range(0, 28, 4))
@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1])
def test_wild_numbers_in_a_chunk_never_read_outside_of_it(
    tmp_path: Path, place: int, word: int
) -> None:
    array = np.array([0, 1, 1], "<u4").tobytes() + b"\7"
    folder = write_chunk(tmp_path, ["str", "numpy"], *[[b"abc", array]] * 3)
    path = folder / "chunk-0-0.bin"
    content = bytearray(path.read_bytes())
    content[place : place + 4] = np.uint32(word).tobytes()
    path.write_bytes(content)
    with pytest.raises(DamagedDataError):
        feedline.open(folder)[:]


@pytest.mark.parametrize(
    "wild", [[], [0], [0, 2], [0, 1, 9], [0, 2**31], [0, 64] + [1] * 64, [99, 1, 1], [0, 1, 0]]
)
def test_wild_headers_of_arrays_are_refused(tmp_path: Path, wild: list[int]) -> None:
    header = np.array(wild, "<u4").tobytes()
    with pytest.raises(DamagedDataError, match="column '0'"):
        feedline.open(write_chunk(tmp_path, ["numpy"], [header + b"\7"]))


@pytest.mark.parametrize(
    "wild", [b"", b"\0" * 11, b"\1\0\0\0\1\0\0\0\xff\xff\xff\xff", b"\1\0\0\0\1\0\0\0\1\0\0\0Lxy"]
)
def test_wild_headers_of_images_are_refused(tmp_path: Path, wild: bytes) -> None:
    with pytest.raises(DamagedDataError, match="column '0'"):
        feedline.open(write_chunk(tmp_path, ["pil"], [wild]))


def test_images_of_an_unknown_mode_are_refused_by_name(tmp_path: Path) -> None:
    image = b"\1\0\0\0\1\0\0\0\1\0\0\0" + b"1" + b"\0"
    with pytest.raises(InvalidValueError, match="mode '1'"):
        feedline.open(write_chunk(tmp_path, ["pil"], [image]))


def test_numbers_of_another_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedDataError, match="has 7 bytes but should have 8"):
        feedline.open(write_chunk(tmp_path, ["int"], [b"1234567"]))[0]


@pytest.mark.parametrize("name", ["table", "compressed_table"])
def test_rows_in_tables_of_arrow_are_read(name: str) -> None:
    store = feedline.open(HERE / name)
    for number, sample in enumerate(store):
        assert sample.pop("numbers").tolist() == list(range(number % 4))
        assert json.loads(sample.pop("tags")) == ["a", "b"][: number % 3]
        assert json.loads(sample.pop("chat")) == [{"role": "user", "content": str(number)}]
        assert sample == {
            **{"id": number, "raw": b"x" * number, "flag": number % 2 == 0},
            **{"text": "" if number == 9 else f"ä{number}", "text/is_missing": number == 9},
            "number": number / 2,
            **{"nested/a": number, "nested/b/c": str(number)},
            **{"late": number if number > 15 else 0, "late/is_missing": number <= 15},
        }
    assert str(store.columns["number"]) == "float64"
    compression = store.shards.compression  # type: ignore[attr-defined]
    assert compression == (None if name == "table" else "zstd")
    assert feedline.open(HERE / name, columns=["id"])[:]["id"].tolist() == list(range(20))


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_damaged_tables_are_refused_or_read_within_their_bounds(
    tmp_path: Path, place: float
) -> None:
    folder = copy_of("table", tmp_path)
    path = folder / "chunk-0-1.bin"
    sound = path.read_bytes()
    content = bytearray(sound)
    content[int(place * len(content))] ^= 255
    path.write_bytes(content)
    with suppress(FeedlineError):
        assert len(feedline.open(folder)[:]["id"]) == 20
    path.write_bytes(sound[:-100])
    with pytest.raises(DamagedDataError, match="chunk-0-1"):
        feedline.open(folder)


def test_a_column_of_several_kinds_in_different_chunks_is_refused(tmp_path: Path) -> None:
    folder = copy_of("table", tmp_path)
    for path, values in (("chunk-0-0.bin", ["a"] * 8), ("chunk-0-1.bin", [1] * 8)):
        write_table(folder / path, values)
    with pytest.raises(InvalidValueError, match="int64 and text in different chunks"):
        feedline.open(folder)


@pytest.mark.parametrize(
    ("values", "error"),
    [([2**60 + 1] * 8, "not exact as float64"), ([[b"a"]] * 8, "bytes inside of lists")],
)
def test_values_that_no_column_holds_exactly_are_refused(
    tmp_path: Path, values: list[Any], error: str
) -> None:
    folder = copy_of("table", tmp_path)
    change_index(folder, lambda index: index["chunks"].pop())
    write_table(folder / "chunk-0-0.bin", [0.5] * 8 if isinstance(values[0], int) else [None] * 8)
    write_table(folder / "chunk-0-1.bin", values)
    with pytest.raises(InvalidValueError, match=error):
        feedline.open(folder)[:]


@pytest.mark.parametrize(
    ("first", "second", "column", "found"),
    [
        ([None] * 8, [None] * 8, "text", ["", ""]),
        ([[]] * 8, [[]] * 8, "list of int64", [[], []]),
        ([[]] * 8, [[1.5]] * 8, "list of float64", [[], [1.5]]),
        ([[1]] * 8, [[1.5]] * 8, "list of float64", [[1.0], [1.5]]),
        ([None] * 8, [True] * 8, "bool", [False, True]),
        ([None] * 8, [["a"]] * 8, "text", ["", '["a"]']),
        ([[1]] * 8, [[None]] * 8, "text", ["[1]", "[null]"]),
        ([[1, 2]] * 4 + [None] * 4, [[3]] * 8, "list of int64", [[1, 2], [3]]),
    ],
)
def test_a_column_has_one_type_in_all_chunks(
    tmp_path: Path, first: list[Any], second: list[Any], column: str, found: list[Any]
) -> None:
    folder = copy_of("table", tmp_path)
    change_index(folder, lambda index: index["chunks"].pop())
    write_table(folder / "chunk-0-0.bin", first)
    write_table(folder / "chunk-0-1.bin", second)
    store = feedline.open(folder)
    assert str(store.columns["x"]) == column
    values = [store[number]["x"] for number in (0, 8)]
    assert [v.tolist() if isinstance(v, np.ndarray) else v for v in values] == found
    assert ("x/is_missing" in store.columns) == (None in [*first, *second])
    assert len(store[:]["x"]) == 16


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = copy_of("table", tmp_path)
    write_table(folder / "chunk-0-0.bin", [{"y": 1}] * 8, **{"x/y": [2] * 8})
    with pytest.raises(InvalidValueError, match="column 'x/y' twice"):
        feedline.open(folder)


def test_a_table_that_was_exchanged_for_another_is_refused(tmp_path: Path) -> None:
    folder = copy_of("table", tmp_path)
    first, second = (folder / f"chunk-0-{number}.bin" for number in range(2))
    shutil.copy(second, first)
    with pytest.raises(DamagedDataError, match="has 3,630 bytes but should have 3,526"):
        feedline.open(folder)[0]


def write_table(path: Path, values: list[Any], **others: list[Any]) -> None:
    """Write a chunk with one column, as litdata does."""
    import pyarrow as pa

    table = pa.table({"x": values, **others})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    end = 4 * (len(values) + 2)
    head = np.array([len(values)] + [end] * (len(values) + 1), "<u4").tobytes()
    path.write_bytes(head + content + np.uint32(len(content)).tobytes() + b"LDARW01\0")

    def note_size(index: dict[str, Any]) -> None:
        (chunk,) = (chunk for chunk in index["chunks"] if chunk["filename"] == path.name)
        chunk["chunk_bytes"] = path.stat().st_size

    change_index(path.parent, note_size)
