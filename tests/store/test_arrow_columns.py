"""Columns of any kind in parquet and Arrow files, decided once for all groups of all files."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, InvalidValueError, StoreError
from feedline.store import Store, formats
from feedline.store import arrow_columns as decisions
from feedline.store.arrow_chunk import open_group
from feedline.store.lists import ListSource

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LAYOUTS = ("parquet", "arrow", "compressed", "stream")


def write(path: Path, table: Any, layout: str, group: int = 4) -> Path:
    """Write a table in groups, and return the file."""
    if layout == "parquet":
        parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=group)
        return path.with_suffix(".parquet")
    compression = "zstd" if layout == "compressed" else None
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if layout == "stream" else pa.ipc.new_file
    with new(path.with_suffix(".arrow"), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=group)
    return path.with_suffix(".arrow")


def shown(store: Store) -> dict[str, str]:
    return {name: str(column) for name, column in store.columns.items()}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


DAY = dt.date(2026, 1, 2)
NOON = dt.datetime(2026, 1, 2, 12)
# Values, their Arrow type, and the column.
KINDS: dict[str, tuple[list[Any], Any, str]] = {
    "string": (["a", "bc" * 9, "", "é"], pa.string(), "text"),
    "large_string": (["a", "bc" * 9, "", "é"], pa.large_string(), "text"),
    "string_view": (["a", "bc" * 9, "", "é"], pa.string_view(), "text"),
    "binary": ([b"a", b"\xff\0", b"", b"x" * 99], pa.binary(), "bytes"),
    "large_binary": ([b"a", b"\xff\0", b"", b"x" * 99], pa.large_binary(), "bytes"),
    "binary_view": ([b"a", b"\xff\0", b"", b"x" * 99], pa.binary_view(), "bytes"),
    "ragged": ([[1], [2, 3], [], [4]], pa.list_(pa.int16()), "list of int16"),
    "large_ragged": ([[1], [2, 3], [], [4]], pa.large_list(pa.float32()), "list of float32"),
    "views": ([[1], [2, 3], [], [4]], pa.list_view(pa.int64()), "list of int64"),
    "bools": ([[True], [], [False, True], []], pa.list_(pa.bool_()), "list of bool"),
    "pairs": (
        [[[1, 2]], [], [[3, 4], [5, 6]], [[7, 8]]],
        pa.list_(pa.list_(pa.int8())),
        "list of int8[2]",
    ),
    "fixed_pairs": (
        [[[1, 2]], [], [[3, 4], [5, 6]], [[7, 8]]],
        pa.list_(pa.list_(pa.int8(), 2)),
        "list of int8[2]",
    ),
    "equal": ([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32()), "int32[2]"),
    "one_each": ([[1], [3], [5], [7]], pa.list_(pa.int32()), "int32[1]"),
    "equal_pairs": ([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.int32())), "int32[2, 2]"),
    "half": ([0.5, 1.5, 2.5, 3.5], pa.float16(), "float16"),
    "naive": ([NOON] * 4, pa.timestamp("us"), "datetime64[us]"),
    "zoned": ([NOON.replace(tzinfo=dt.UTC)] * 4, pa.timestamp("ms", "UTC"), "datetime64[ms]"),
    "date32": ([DAY] * 4, pa.date32(), "datetime64[D]"),
    "time": ([dt.time(1, 2)] * 4, pa.time32("ms"), "timedelta64[ms]"),
    "time64": ([dt.time(1, 2)] * 4, pa.time64("us"), "timedelta64[us]"),
    "duration": ([dt.timedelta(seconds=90)] * 4, pa.duration("ms"), "timedelta64[ms]"),
}
TIMES = {
    NOON: NOON,
    NOON.replace(tzinfo=dt.UTC): NOON,
    dt.time(1, 2): dt.timedelta(hours=1, minutes=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("has_nulls", [False, True])
def test_columns_of_every_kind_come_back(tmp_path: Path, layout: str, has_nulls: bool) -> None:
    data = {
        name: pa.array([*values, *([None] * 2 if has_nulls else values[:2]), *values], type_)
        for name, (values, type_, _) in KINDS.items()
    }
    table = pa.table({"id": np.arange(10), **data})
    store = feedline.open(write(tmp_path / "a", table, layout, 3))
    expected = {"id": "int64"}
    for name, (_, type_, column) in KINDS.items():
        # A null list has no length.
        is_list = has_nulls and isinstance(type_, pa.ListType)
        lists = {"int32[2]": "list of int32", "int32[1]": "list of int32"}
        lists["int32[2, 2]"] = "list of int32[2]"
        expected[name] = lists.get(column, column) if is_list else column
        if has_nulls:
            expected[f"{name}/is_missing"] = "bool"
    assert shown(store) == expected
    samples = list(store)
    for number, row in enumerate(table.to_pylist()):
        for name, value in row.items():
            found = samples[number][name]
            assert samples[number].get(f"{name}/is_missing", False) == (value is None)
            if value is not None:
                is_time = isinstance(value, dt.datetime | dt.time)
                assert plain(found) == (TIMES[value] if is_time else value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_values_are_zeros_and_empty(tmp_path: Path, layout: str) -> None:
    table = pa.table(
        {
            "day": pa.array([DAY, None]),
            "length": pa.array([None, dt.timedelta(seconds=1)]),
            "pair": pa.array([None, [1, 2]], pa.list_(pa.int8(), 2)),
            "tokens": pa.array([[7, 8], None]),
            "text": pa.array([None, "x"]),
        }
    )
    store = feedline.open(write(tmp_path / "a", table, layout))
    found = store[:]
    assert found["day"].tolist() == [DAY, dt.date(1970, 1, 1)]
    assert found["length"].tolist() == [dt.timedelta(0), dt.timedelta(seconds=1)]
    assert found["pair"].tolist() == [[0, 0], [1, 2]]
    assert found["tokens"].tolist() == [[7, 8], []]
    assert found["text"] == ["", "x"]
    assert found["day/is_missing"].tolist() == found["tokens/is_missing"].tolist() == [False, True]
    assert feedline.open(write(tmp_path / "a", table, layout), columns=["text/is_missing"])[:][
        "text/is_missing"
    ].tolist() == [True, False]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_structs_are_columns_with_paths(tmp_path: Path, layout: str) -> None:
    rows = [
        {"a": 1, "b": {"c": "x", "d": [1]}},
        {"a": 2, "b": None},
        None,
        {"a": None, "b": {"c": "y", "d": [2, 3]}},
    ]
    table = pa.table({"id": [0, 1, 2, 3], "s": pa.array(rows), "z": [5, 6, 7, 8]})
    path = write(tmp_path / "a", table, layout, 3)
    store = feedline.open(path)
    assert [name for name in store.columns if not name.endswith("/is_missing")] == [
        *("id", "s/a", "s/b/c", "s/b/d", "z"),
    ]
    found = store[:]
    assert found["s/a"].tolist() == [1, 2, 0, 0]
    assert found["s/a/is_missing"].tolist() == [False, False, True, True]
    assert found["s/b/c"] == ["x", "", "", "y"]
    assert found["s/b/d"].tolist() == [[1], [], [], [2, 3]]
    assert found["s/b/d/is_missing"].tolist() == [False, True, True, False]
    some = feedline.open(path, columns=["s/b/c", "z"])
    assert some[3] == {"s/b/c": "y", "s/b/c/is_missing": False, "z": 8}
    with pytest.raises(InvalidValueError, match=r"columns=\['s'\] must be among .*s/b/c"):
        feedline.open(path, columns=["s"])


# Parquet has dictionaries too, but they are in the file only if the schema says so.
@pytest.mark.parametrize("layout", ["parquet", "arrow", "compressed"])
def test_dictionaries_are_decoded(tmp_path: Path, layout: str) -> None:
    words = pa.array(["x", "yy", None, "x", "yy", "zzz"])
    numbers = pa.array([5, 5, 7, None, 7, 5])
    table = pa.table({"w": words.dictionary_encode(), "n": numbers.dictionary_encode()})
    found = feedline.open(write(tmp_path / "a", table, layout))[:]
    assert found["w"] == ["x", "yy", "", "x", "yy", "zzz"]
    assert found["w/is_missing"].tolist() == [False, False, True, False, False, False]
    assert found["n"].tolist() == [5, 5, 7, 0, 7, 5]


def test_an_index_that_is_not_in_its_dictionary_is_refused(tmp_path: Path) -> None:
    indices = pa.array([0, 1, 2, 1], pa.int32())
    table = pa.table({"w": pa.DictionaryArray.from_arrays(indices, ["a", "b", "c"])})
    path = write(tmp_path / "a", table, "arrow")
    content, true = path.read_bytes(), indices.to_numpy().tobytes()
    assert content.count(true) == 1
    for odd in (3, -1, 2**31 - 1):
        changed = np.array([0, 1, odd, 1], "<i4").tobytes()
        path.write_bytes(content.replace(true, changed))
        with pytest.raises(DamagedDataError, match="of a dictionary that has 3 values"):
            feedline.open(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([[1, 2]] * 4 + [[3, 4], [5, 6], [7], [8, 9]], "list of int64"),
        ([[1, 2]] * 4 + [[3], [4], [5], [6]], "list of int64"),
        ([[1], [2, 3, 4], [5, 6], [7, 8]] + [[1, 2]] * 4, "list of int64"),
        ([[]] * 4 + [[1], [2], [3], [4]], "list of int64"),
        ([[1, 2]] * 8, "int64[2]"),
        ([[]] * 8, "list of int64"),
    ],
)
def test_all_groups_decide_together_what_a_column_is(
    tmp_path: Path, layout: str, values: list[list[int]], column: str
) -> None:
    table = pa.table({"x": pa.array(values, pa.list_(pa.int64()))})
    store = feedline.open(write(tmp_path / "a", table, layout))
    assert shown(store) == {"x": column}
    assert [sample["x"].tolist() for sample in store] == values


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_whose_lengths_differ_unseen_are_refused_with_what_to_do(
    tmp_path: Path, layout: str
) -> None:
    # Each group has two values for a sample on average, and the first has two for each.
    values = [[1, 2]] * 4 + [[3], [4, 5, 6], [7, 8], [9, 10]]
    path = write(tmp_path / "a", pa.table({"x": values}), layout)
    store = feedline.open(path)
    assert store[3]["x"].tolist() == [1, 2]
    with pytest.raises(StoreError, match=r"lists of 1 to 3 values.*lists=\['x'\]") as caught:
        store[4]
    assert not isinstance(caught.value, DamagedDataError)
    opened = feedline.open(path, lists=["x"])
    assert opened[:]["x"].tolist() == values
    assert pickle.loads(pickle.dumps(opened))[4]["x"].tolist() == [3]
    for lists in (["y"], ["x", "id"]):
        with pytest.raises(InvalidValueError, match=r"lists=.* must be among .*\['x'\]"):
            feedline.open(path, lists=lists)


def test_recorded_columns_win(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data" / "a", pa.table({"x": [[1, 2]] * 4}), "parquet")
    column = {"name": "x", "dtype": "int64", "shape": [], "kind": "list", "mean_bytes": 16}
    manifest = {
        "total_samples": 4,
        "columns": [column],
        "batch_files": [{"path": path.name, "samples": 4}],
    }
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(manifest))
    assert shown(feedline.open(tmp_path / "data")) == {"x": "list of int64"}
    assert feedline.open(tmp_path / "data")[:]["x"].tolist() == [[1, 2]] * 4
    manifest["columns"] = [column | {"kind": "array", "shape": [2]}]
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(manifest))
    assert feedline.open(tmp_path / "data")[:]["x"].shape == (4, 2)
    with pytest.raises(InvalidValueError, match=r"lists=\['x'\] cannot be used.*metadata.json"):
        _ = feedline.open(tmp_path / "data", lists=["x"]).columns
    write(tmp_path / "data" / "a", pa.table({"x": [[1, 2], None, [3, 4], [5, 6]]}), "parquet")
    with pytest.raises(StoreError):
        feedline.open(tmp_path / "data")[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nullable_column_without_nulls_has_no_mask(tmp_path: Path, layout: str) -> None:
    schema = pa.schema([pa.field("x", pa.int64()), pa.field("t", pa.string(), nullable=False)])
    table = pa.table({"x": [1, 2, 3], "t": ["a", "b", "c"]}, schema=schema)
    assert list(feedline.open(write(tmp_path / "a", table, layout)).columns) == ["x", "t"]


def test_without_statistics_nulls_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": [1, 2, 3, 4, None], "y": [1, 2, 3, 4, 5], "r": [[1], [], [2], [], []]})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, row_group_size=2, write_statistics=False)
    assert list(feedline.open(path).columns) == ["x", "x/is_missing", "y", "r"]
    # Where that would take too long, a column counts as one that may have nulls.
    monkeypatch.setattr(decisions, "_MAX_LOOK_BYTES", 10)
    assert "y/is_missing" in feedline.open(path).columns
    assert not feedline.open(path)[:]["y/is_missing"].any()


def test_a_column_of_its_own_where_the_mask_would_be_is_refused(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None], "x/is_missing": [1, 2]})
    path = write(tmp_path / "a", table, "parquet")
    with pytest.raises(StoreError, match=r"'x/is_missing' would tell.*rename it"):
        feedline.open(path)
    both = pa.table({"s": [{"a": 1}], "s/a": [2]})
    with pytest.raises(StoreError, match="column 's/a' appears 2 times"):
        feedline.open(write(tmp_path / "b", both, "parquet"))


def test_uncompressed_lists_and_texts_stay_mapped(tmp_path: Path) -> None:
    table = pa.table(
        {"text": ["x" * 1000] * 100, "tokens": [list(range(n, 200)) for n in range(100)]}
    )
    for layout in ("arrow", "stream"):
        path = write(tmp_path / layout, table, layout, 100)
        chunk = open_group(path, 0)
        # Only the tables of where they are.
        assert chunk.num_bytes_held == 2 * 100 * 16
        assert all(isinstance(source, ListSource) for source in chunk.arrays.values())
    chunk = open_group(write(tmp_path / "b", table, "parquet", 100), 0)
    assert chunk.num_bytes_held >= 100_000 + 8 * int(
        table["tokens"].combine_chunks().offsets[-1].as_py()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slices_of_tables_come_back(tmp_path: Path, layout: str) -> None:
    """Arrays of a slice begin inside of their buffers."""
    table = pa.table(
        {
            "b": [True, False, None] * 5,
            "s": ["a", None, "ccc"] * 5,
            "r": [[1], None, [2, 3]] * 5,
            "f": pa.array([[1, 2], None, [3, 4]] * 5, pa.list_(pa.int8(), 2)),
            "st": [{"q": 1}, None, {"q": None}] * 5,
        }
    ).slice(4, 9)
    store = feedline.open(write(tmp_path / "a", table, layout, 5))
    for sample, row in zip(store, table.to_pylist(), strict=True):
        row["st/q"] = (row.pop("st") or {}).get("q")
        for name, value in row.items():
            assert sample[f"{name}/is_missing"] == (value is None)
            if value is not None:
                assert plain(sample[name]) == value


def test_chunks_of_one_file_keep_one_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = feedline.open(write(tmp_path / "a", pa.table({"x": np.arange(900)}), "stream", 3))
    opened: list[int] = []

    def counted(path: Path, group: int, *others: Any) -> Any:
        opened.append(group)
        return open_group(path, group, *others)

    monkeypatch.setattr(formats, "open_group", counted)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert store[np.random.default_rng(0).permutation(900)]["x"].sum() == 900 * 899 // 2
    # More chunks than a process may have files; each was opened once.
    assert sorted(opened) == list(range(300))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_beside_those_that_no_store_holds_are_read(tmp_path: Path, layout: str) -> None:
    """What the metadata says of a column is found behind types with several parts."""
    odd = {
        "map": pa.array([[("a", 1), ("b", 2)]] * 5, pa.map_(pa.string(), pa.int8())),
        "records": [[{"a": 1, "b": "x"}], []] * 2 + [[]],
        "words": [["a"], ["b", None]] * 2 + [None],
        "nothing": pa.array([None] * 5, pa.null()),
        "deep": [{"q": [{"r": 1}], "s": 1}] * 5,
    }
    wanted = {"x": [1, 2, 3, 4, 5], "y": [1, None, 3, 4, 5], "r": [[1], [2, 3], [4], [5], [6]]}
    path = write(tmp_path / "a", pa.table(odd | wanted), layout, 2)
    store = feedline.open(path, columns=["x", "y", "y/is_missing", "r", "deep/s"])
    assert store[:]["y/is_missing"].tolist() == [False, True, False, False, False]
    assert store[:]["r"].tolist() == wanted["r"]
    assert store[:]["deep/s"].tolist() == [1] * 5
    with pytest.raises(InvalidValueError, match=r"columns=\['x/is_missing'\] must be among"):
        feedline.open(path, columns=["x", "x/is_missing"])
    with pytest.raises(StoreError, match="column 'deep/q' has type list"):
        feedline.open(path, columns=["deep/q"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_keep_their_shape(tmp_path: Path, layout: str) -> None:
    values = np.arange(36, dtype=np.float32).reshape(6, 2, 3)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    store = feedline.open(write(tmp_path / "a", pa.table({"x": tensors}), layout))
    assert np.array_equal(store[:]["x"], values)
    turned = pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0])
    odd = pa.ExtensionArray.from_storage(turned, pa.array([range(6)], pa.list_(pa.int8(), 6)))
    with pytest.raises(StoreError, match=r"order \[1, 0\].*without a permutation"):
        feedline.open(write(tmp_path / "b", pa.table({"x": odd}), layout))
