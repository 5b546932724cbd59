"""Columns of every kind go in and come out: from every source, through every way of packing."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import feedline
from examples import few_examples
from feedline.errors import FeedlineError, InvalidValueError, PackError
from feedline.packing import pack
from feedline.store import Lists
from feedline.store.manifest import read_manifest
from pack_data import list_chunks, read_tree
from pack_kinds import KINDS, expected_of, make_samples, make_source, read_samples

SAMPLES = make_samples(150)
EXPECTED = list(expected_of(SAMPLES))


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_holds_every_kind_of_column(tmp_path: Path, kind: str) -> None:
    source = make_source(kind, SAMPLES, tmp_path / "source")
    pack(source, tmp_path / "out", chunk_samples=40)
    wanted = [
        {name: value for name, value in sample.items() if kind != "jsonl" or name != "image"}
        for sample in EXPECTED
    ]
    assert read_samples(tmp_path / "out") == wanted
    assert feedline.verify(tmp_path / "out").ok
    columns = feedline.open(tmp_path / "out").columns
    assert columns["tokens"].kind == columns["boxes"].kind == "list"
    assert columns["boxes"].shape == (4,)
    assert columns["day"].type_name == ("datetime64[s]" if kind == "jsonl" else "datetime64[D]")


@pytest.mark.parametrize("format_", ["safetensors", "npy"])
def test_lists_are_values_and_offsets_in_formats_of_arrays(tmp_path: Path, format_: str) -> None:
    source = {"x": [[1, 2], [3], []], "day": np.arange(3).astype("M8[s]")}
    pack(source, tmp_path / "out", format=format_, chunk_samples=2)
    path = list_chunks(tmp_path / "out")[0]
    if format_ == "npy":
        values, offsets = (np.load(path / "x" / f"{part}.npy") for part in ("values", "offsets"))
        assert np.load(path / "day.npy").dtype == np.dtype("M8[s]")
    else:
        from safetensors.numpy import load_file

        found = load_file(path)
        values, offsets = found["x/values"], found["x/offsets"]
    assert (values.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 3])
    assert offsets.dtype == np.int64
    (recorded,) = (c for c in read_manifest(tmp_path / "out").columns.values() if c.name == "x")
    assert (recorded.kind, recorded.mean_bytes, recorded.type_name) == ("list", 8, "int64")


def test_pt_chunks_hold_lists_and_dates(tmp_path: Path) -> None:
    source = {"sequences/x": [[1, 2], [3], []], "targets/day": np.arange(3).astype("M8[s]")}
    pack(source, tmp_path / "out", format="pt", chunk_samples=2)
    sequences, targets, *_ = torch.load(tmp_path / "out" / "chunk-000000.pt", weights_only=True)
    assert sequences["x/values"].tolist() == [1, 2, 3]
    assert sequences["x/offsets"].tolist() == [0, 2, 3]
    assert targets["day"].tolist() == [0, 1]
    store = feedline.open(tmp_path / "out")
    assert [sample["sequences/x"].tolist() for sample in store] == [[1, 2], [3], []]
    assert store[2]["targets/day"] == np.datetime64(2, "s")
    assert store[2]["sequence_ids"] == 2


def test_parquet_chunks_have_lists_bytes_texts_and_dates_of_its_own(tmp_path: Path) -> None:
    source = make_source("arrays", SAMPLES, tmp_path)
    source["at"] = np.arange(150).astype("M8[s]")
    source["for"] = np.arange(150).astype("m8[s]")
    pack(source, tmp_path / "out", format="parquet", chunk_samples=100)
    tables = [pq.read_table(path) for path in list_chunks(tmp_path / "out")]
    rows = [row for table in tables for row in table.to_pylist()]
    for row, wanted in zip(rows, EXPECTED, strict=True):
        assert row.pop("at") == datetime.fromtimestamp(wanted["item"], UTC).replace(tzinfo=None)
        assert row.pop("for") == timedelta(seconds=wanted["item"])
        assert row == {**wanted, "day": wanted["day"].item()}
    recorded = read_manifest(tmp_path / "out").columns
    assert recorded is not None
    assert recorded["at"].type_name == "datetime64[ms]"
    assert [recorded[name].kind for name in ("text", "image", "tokens")] == [
        "text",
        "bytes",
        "list",
    ]


def test_nothing_but_missing_values_is_changed_by_a_csv_file(tmp_path: Path) -> None:
    lines = ["name,n,day,note", "Ann,1,2020-01-01,", '"a, ""b""\nc",,2020-01-02,NA', "c,3,,d"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    pack(tmp_path / "a.csv", tmp_path / "out")
    assert read_samples(tmp_path / "out") == [
        {
            **{"name": "Ann", "n": 1, "n/is_missing": False},
            **{"day": np.datetime64("2020-01-01"), "day/is_missing": False, "note": ""},
        },
        {
            **{"name": 'a, "b"\nc', "n": 0, "n/is_missing": True},
            **{"day": np.datetime64("2020-01-02"), "day/is_missing": False, "note": "NA"},
        },
        {
            **{"name": "c", "n": 3, "n/is_missing": False},
            **{"day": np.datetime64("1970-01-01"), "day/is_missing": True, "note": "d"},
        },
    ]


LATE = {
    "null": ([{"x": 1, "y": 1}] * 3000, {"x": None, "y": 1}),
    "length": ([{"x": [1, 2], "y": 1}] * 3000, {"x": [3], "y": 1}),
    "empty": ([{"x": [1, 2], "y": 1}] * 3000, {"x": [], "y": 1}),
    "both": ([{"x": [1, 2], "y": 1}] * 3000, {"x": [3], "y": None}),
    "record": ([{"x": {"a": 1}, "y": 1}] * 3000, {"x": None, "y": 1}),
}


@pytest.mark.parametrize("kind", ["list", "jsonl", "parquet"])
@pytest.mark.parametrize("case", LATE)
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_only_late_rows_show_holds_for_all_chunks(
    tmp_path: Path, kind: str, case: str, shuffle: bool
) -> None:
    first, last = LATE[case]
    sources: list[Any] = []
    # The odd row is the last one of the source, or the first.
    for name, rows in (("late", [*first, last]), ("early", [last, *first])):
        source: Any = rows
        if kind != "list":
            source = tmp_path / f"{name}.{kind}"
            if kind == "jsonl":
                source.write_text("".join(json.dumps(row) + "\n" for row in rows))
            else:
                pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=500)
        sources.append(source)
        pack(source, tmp_path / name, chunk_samples=700, shuffle=shuffle)
    late, early = (feedline.open(tmp_path / name) for name in ("late", "early"))
    assert late.columns == early.columns
    names = list(late.columns)
    assert ("y/is_missing" in names) == (case == "both")
    if case in ("length", "empty", "both"):
        assert late.columns["x"].kind == "list"
    for name in names:
        if name.endswith("/is_missing"):
            assert np.concatenate([late[:][name]]).sum() == early[:][name].sum() == 1
    if not shuffle:
        assert read_samples(tmp_path / "late")[-1] == read_samples(tmp_path / "early")[0]


def test_a_run_that_started_over_and_was_interrupted_resumes(tmp_path: Path) -> None:
    """What late rows have shown is in the journal, so the next call need not find it again."""
    reads: list[int] = []

    class Source:
        """Records of which a late one is missing; the second reading is interrupted."""

        def __init__(self, stop_in: int | None) -> None:
            self.stop_in = stop_in

        def __iter__(self) -> Any:
            reads.append(len(reads))
            for number in range(5000):
                if self.stop_in == number and len(reads) == 2:
                    raise KeyboardInterrupt
                yield {"x": None if number == 2500 else [number], "item": number}

    options: dict[str, Any] = {"chunk_samples": 100, "num_threads": 1}
    pack(Source(None), tmp_path / "whole", **options)
    reads.clear()
    with pytest.raises(KeyboardInterrupt):
        pack(Source(4000), tmp_path / "out", **options)
    journal = (tmp_path / "out.partial" / "journal.jsonl").read_text().splitlines()
    assert json.loads(journal[0])["parameters"]["widened"] == {"lists": [], "missing": ["x"]}
    result = pack(Source(None), tmp_path / "out", **options)
    assert result.num_resumed_chunks
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


VALUES = {
    "text": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
    "list": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(
        lambda values: np.array(values, np.int32)
    ),
    "rows": st.integers(0, 3).map(lambda n: np.arange(n * 2, dtype=np.float32).reshape(n, 2)),
    "number": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "date": st.dates(),
    "moment": st.datetimes(),
    "span": st.timedeltas(timedelta(-9999), timedelta(9999)),
    "record": st.fixed_dictionaries({"a": st.text(max_size=2), "b": st.integers(0, 5)}),
}


def _as_stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return np.datetime64(value, "us")
    if isinstance(value, date):
        return np.datetime64(value, "D")
    if isinstance(value, timedelta):
        return np.timedelta64(value, "us")
    return value.tolist() if isinstance(value, np.ndarray) else value


@few_examples(1 / 2)
@given(data=st.data(), kind=st.sampled_from(sorted(VALUES)))
def test_values_of_every_kind_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    has_missing = data.draw(st.booleans())
    one = st.none() | VALUES[kind] if has_missing else VALUES[kind]
    values = [data.draw(VALUES[kind]), *data.draw(st.lists(one, max_size=12))]
    source: Any = {"x": values}
    if data.draw(st.booleans()):
        source = [{"x": value} for value in values]
    format_ = data.draw(st.sampled_from(["safetensors", "npy", "parquet"]))
    if kind == "list" and format_ == "parquet":
        # Only empty lists are an array without values, which it cannot hold.
        assume(any(value is not None and len(value) for value in values))
    options: dict[str, Any] = {"shuffle": False, "format": format_}
    cut = data.draw(st.sampled_from([{"chunk_samples": 3}, {"chunk_bytes": 40}, {}]))
    pack(source, folder / "out", **options, **cut)
    store = feedline.open(folder / "out")
    found = [sample.get("x") for sample in store]
    if kind == "record":
        found = [{"a": sample["x/a"], "b": sample["x/b"]} for sample in store]
    name = "x/a" if kind == "record" else "x"
    missing = [bool(sample.get(f"{name}/is_missing", False)) for sample in store]
    assert missing == [value is None for value in values]
    for value, here, is_missing in zip(values, found, missing, strict=True):
        if not is_missing:
            assert _as_stored(here) == _as_stored(value)
    assert feedline.verify(folder / "out").ok


@pytest.mark.parametrize("split", [None, 0.2])
def test_memory_threads_and_batches_do_not_change_a_shuffle_of_lists(
    tmp_path: Path, split: float | None
) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 400, 3000)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    tokens = Lists(rng.integers(0, 9, edges[-1]).astype(np.int16), edges)
    source = {"item": np.arange(3000), "tokens": tokens, "text": [str(n) for n in range(3000)]}
    options: dict[str, Any] = {"chunk_bytes": 50_000, "shuffle": True, "split": split, "seed": 3}
    pack(source, tmp_path / "large", **options)
    pack(source, tmp_path / "small", **options, memory_budget=2**20, num_threads=3)
    wanted = read_tree(tmp_path / "large")
    assert read_tree(tmp_path / "small") == wanted
    records = ({"item": n, "tokens": tokens[n], "text": str(n)} for n in range(3000))
    if split is None:
        # Blocks of a split depend on how large rows seem at first.
        pack(records, tmp_path / "records", **options)
        assert read_tree(tmp_path / "records") == wanted
    folders = [tmp_path / "large"] if split is None else sorted((tmp_path / "large").iterdir())
    items = []
    for folder in folders:
        store = feedline.open(folder)
        everything = store[:]
        items += everything["item"].tolist()
        assert everything["text"] == [str(n) for n in everything["item"]]
        for item, found in zip(everything["item"], everything["tokens"], strict=True):
            np.testing.assert_array_equal(found, tokens[int(item)])
    assert sorted(items) == list(range(3000))
    assert items != sorted(items)


def test_chunks_of_lists_are_cut_by_their_real_bytes(tmp_path: Path) -> None:
    sizes = [10, 990, 5000, 1, 400, 400, 400, 0]
    pack({"x": [bytes(size) for size in sizes]}, tmp_path / "out", chunk_bytes=1200)
    # Each has 8 bytes more, and one that is larger than a chunk has a chunk of its own.
    assert read_manifest(tmp_path / "out").samples.tolist() == [2, 1, 3, 2]
    assert [len(sample["x"]) for sample in feedline.open(tmp_path / "out")] == sizes
    for shuffle in (False, True):
        folder = tmp_path / f"equal{shuffle}"
        pack({"x": [bytes(92)] * 25}, folder, chunk_bytes=1000, shuffle=shuffle)
        assert read_manifest(folder).samples.tolist() == [10, 10, 5]


def test_a_chunk_that_does_not_fit_in_memory_is_refused(tmp_path: Path) -> None:
    source = {"x": [bytes(50_000)] * 100}
    with pytest.raises(InvalidValueError, match=r"100 samples have .* larger memory_budget"):
        pack(source, tmp_path / "out", chunk_samples=100, memory_budget=2**20)
    with pytest.raises(InvalidValueError, match="larger memory_budget"):
        pack({"x": [bytes(2**20)]}, tmp_path / "out", memory_budget=2**20)
    with pytest.raises(InvalidValueError, match="larger memory_budget"):
        pack(source, tmp_path / "out", chunk_bytes=2**20, memory_budget=2**20)
    assert list(tmp_path.iterdir()) == []


def test_columns_of_records_are_chosen_by_path_or_together(tmp_path: Path) -> None:
    for kind in ("arrays", "list", "jsonl", "parquet"):
        source = make_source(kind, SAMPLES, tmp_path / "source")
        columns = {"size": "meta/size", "from": "meta/source", "label": "label"}
        pack(source, tmp_path / kind, columns=columns)
        names = set(feedline.open(tmp_path / kind).columns)
        assert names == {"size/width", "size/height", "from", "label", "label/is_missing"}


def test_moments_with_a_zone_are_in_utc_and_units_are_kept_or_refined(tmp_path: Path) -> None:
    zone = timezone(timedelta(hours=2))
    source = {
        "zoned": [datetime(2020, 1, 1, 12, tzinfo=zone)],
        "hours": np.array(["2020-01-01T05"], "M8[h]"),
        "months": np.array(["2020-03"], "M8[M]"),
        "weeks": np.array([2], "m8[W]"),
        "nano": np.array(["2020-01-01T00:00:00.000000001"], "M8[ns]"),
        "not": np.array(["NaT"], "M8[s]"),
    }
    pack(source, tmp_path / "out")
    (sample,) = feedline.open(tmp_path / "out")
    assert sample["zoned"] == np.datetime64("2020-01-01T10:00:00", "us")
    assert sample["hours"] == np.datetime64("2020-01-01T05:00:00", "s")
    assert sample["months"] == np.datetime64("2020-03-01", "D")
    assert sample["weeks"] == np.timedelta64(14 * 86400, "s")
    assert sample["nano"] == source["nano"][0]
    assert np.isnat(sample["not"])
    with pytest.raises(PackError, match="is of type datetime64"):
        pack({"x": np.array([1], "M8[ps]")}, tmp_path / "other")


def test_masked_rows_are_missing_and_masked_parts_of_rows_are_refused(tmp_path: Path) -> None:
    rows = np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [1, 1]])
    pack({"x": rows}, tmp_path / "out")
    assert [s["x"].tolist() for s in feedline.open(tmp_path / "out")] == [[1, 2], [0, 0]]
    assert feedline.open(tmp_path / "out")[:]["x/is_missing"].tolist() == [False, True]
    with pytest.raises(PackError, match="masked values inside of rows"):
        pack({"x": np.ma.array([[1, 2]], mask=[[0, 1]])}, tmp_path / "other")


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        ({"x": [[1], [2, 3]], "x/values": [1, 2]}, {}, "'x/values' is needed for the lists"),
        ({"x": [1, None], "x/is_missing": [1, 2]}, {}, "'x/is_missing' must tell"),
        ({"x": Lists(np.arange(3), np.array([0, 9]))}, {}, "outside of its chunk"),
        ({"x": Lists(np.arange(3), np.array([2, 0]))}, {}, "outside of its chunk"),
        ({"x": np.zeros(3, complex)}, {}, "is complex128, which format='safetensors' cannot hold"),
        ({"x": ["a", 1]}, {}, "record 1: column 'x' is 1 (int)"),
        ({"x": np.array([["a"]])}, {}, "is of type <U1"),
        ({"x": {"a": [1], 2: [1]}}, {}, "has the key 2"),
        (
            {"sequence_ids": [[1], [2, 3]], "sequences/a": [1, 2]},
            {"format": "pt"},
            "must be one integer per row",
        ),
        (
            {"x": np.array(["NaT"], "M8[D]")},
            {"format": "parquet"},
            "NaT",
        ),
    ],
)
def test_what_cannot_be_held_is_refused(
    tmp_path: Path, source: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(FeedlineError) as caught:
        pack(source, tmp_path / "out", **options)
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_column_without_a_value_in_the_first_rows_takes_its_type_from_later_ones(
    tmp_path: Path,
) -> None:
    records = [{"x": None, "y": []}] * 2000 + [{"x": "a", "y": [1.5]}]
    pack(records, tmp_path / "out")
    store = feedline.open(tmp_path / "out")
    assert (str(store.columns["x"]), str(store.columns["y"])) == ("text", "list of float64")
    assert (store[2000]["x"], store[2000]["y"].tolist()) == ("a", [1.5])
    assert store[:]["x/is_missing"].sum() == 2000


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_column_whose_first_value_is_far_down_a_file_is_packed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    num_rows = 150_000
    with open(path, "w") as file:
        if kind == "csv":
            file.write("x,y\n" + "1,\n" * num_rows * 2 + "2,7\n" + "3,\n" * 5)
            num_rows *= 2
        else:
            file.write('{"x": 1, "y": null}\n{"x": 1}\n' * (num_rows // 2))
            file.write('{"x": 2, "y": 7}\n' + '{"x": 3}\n' * 5)
    pack(path, tmp_path / "out", columns=["x", "y"])
    store = feedline.open(tmp_path / "out")
    assert str(store.columns["y"]) == "int64"
    found = store[num_rows - 1 : num_rows + 2]
    assert (found["x"].tolist(), found["y"].tolist()) == ([1, 2, 3], [0, 7, 0])
    assert found["y/is_missing"].tolist() == [True, False, True]
    assert len(store) == num_rows + 6


def test_records_that_cannot_be_read_again_are_refused_when_that_is_needed(tmp_path: Path) -> None:
    class Once:
        """Looks as if it could be iterated again, but goes on where it was."""

        def __init__(self, records: list[Any]) -> None:
            self._records = iter(records)

        def __iter__(self) -> Any:
            yield from self._records

    pack(Once([{"x": n} for n in range(3000)]), tmp_path / "out")
    assert feedline.open(tmp_path / "out")[:]["x"].tolist() == list(range(3000))
    with pytest.raises(PackError, match="other records when it is iterated again"):
        pack(Once([{"x": n} for n in range(3000)] + [{"x": None}]), tmp_path / "other")
