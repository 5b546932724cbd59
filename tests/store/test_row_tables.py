"""The record batches of a file are read as one table, with the values that each has on its own."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import feedline
from examples import few_examples
from feedline.errors import StoreError
from feedline.feed.gathering import Workplace, chunking_of, gather
from feedline.feed.slab_jobs import cut
from feedline.plan import Block
from feedline.store import FolderStore, Lists, row_tables
from feedline.store.arrow_batches import Batches, _alike, _one_by_one
from feedline.store.arrow_messages import batches_of_file, batches_of_stream
from feedline.store.columns import make_out
from feedline.store.mapped import map_file

DAY = datetime.date(2026, 1, 1)
#: For each name, the type and the value of a sample.
KINDS: dict[str, tuple[Any, Any]] = {
    "int64": (pa.int64(), lambda n: n),
    "float16": (pa.float16(), lambda n: np.float16(n % 100)),
    "bool": (pa.bool_(), lambda n: n % 3 == 0),
    "text": (pa.string(), lambda n: f"é{n}" * (n % 4)),
    "large text": (pa.large_string(), lambda n: str(n)),
    "bytes": (pa.binary(), lambda n: bytes([n % 256]) * (n % 700)),
    "equal bytes": (pa.binary(), lambda n: bytes([n % 256]) * 300),
    "fixed": (pa.binary(5), lambda n: f"{n % 10**5:05}".encode()),
    "vector": (pa.list_(pa.float32(), 3), lambda n: [n, n + 1, n + 2]),
    "matrix": (pa.list_(pa.list_(pa.int16(), 2), 2), lambda n: [[n, 1], [2, n]]),
    "list": (pa.list_(pa.int32()), lambda n: [n] * (n % 5)),
    "large list": (pa.large_list(pa.float64()), lambda n: [n / 2] * (n % 3)),
    "list of vectors": (pa.list_(pa.list_(pa.int8(), 2)), lambda n: [[n % 100, 1]] * (n % 3)),
    "equal lists": (pa.list_(pa.uint8()), lambda n: [n % 256, 1]),
    "time": (pa.timestamp("us"), lambda n: datetime.datetime(2026, 1, 1, 0, n % 60)),
    "duration": (pa.duration("ms"), lambda n: datetime.timedelta(seconds=n)),
    "struct": (
        pa.struct([("id", pa.int32()), ("in", pa.struct([("text", pa.string())]))]),
        lambda n: {"id": n, "in": {"text": "t" * (n % 5)}},
    ),
    "text or null": (pa.string(), lambda n: None if n % 4 == 1 else str(n)),
    "list or null": (pa.list_(pa.int64()), lambda n: None if n % 5 == 2 else [n] * (n % 3)),
}
#: Types that are read batch by batch.
UNUSUAL: dict[str, tuple[Any, Any]] = {
    "int or null": (pa.int64(), lambda n: None if n % 4 == 1 else n),
    "word": (pa.dictionary(pa.int8(), pa.string()), lambda n: "abc"[n % 3]),
    "day": (pa.date32(), lambda n: DAY + datetime.timedelta(n)),
    "view": (pa.string_view(), lambda n: str(n) * 9),
    "list of bools": (pa.list_(pa.bool_()), lambda n: [n % 2 == 0] * (n % 3)),
}


def write(path: Path, kinds: dict[str, tuple[Any, Any]], sizes: Sequence[int], first: int) -> None:
    """Write an Arrow file or stream with a record batch of each size."""
    schema = pa.schema([(name, type_) for name, (type_, _) in kinds.items()])
    make = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, make(file, schema) as writer:
        for size in sizes:
            columns = [
                pa.array([value(n) for n in range(first, first + size)], type_)
                for type_, value in kinds.values()
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            first += size


def gathered(store: Any, indices: NDArray[np.int64], workplace: Workplace) -> dict[str, Any]:
    bounds = np.array([0, len(indices)])
    (job,) = cut(Block(first=0, indices=indices, bounds=bounds), chunking_of(store), 1)
    arrays = make_out(store.columns, len(indices), None)
    gather(store, job, arrays, workplace)
    return {name: arrays[name] for name in store.columns}


def by_chunk(store: Any, indices: NDArray[np.int64]) -> dict[str, Any]:
    """Return samples in the plain way: chunk by chunk, and then in order."""
    found: dict[str, list[Any]] = {name: [None] * len(indices) for name in store.columns}
    for chunk, (first, end) in enumerate(pairwise(store.edges.tolist())):
        at = np.flatnonzero((indices >= first) & (indices < end))
        if len(at):
            for name, values in store.read(chunk, indices[at] - first).items():
                for place, value in zip(at.tolist(), values.tolist(), strict=True):
                    found[name][place] = value
    return found


def listed(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in arrays.items()}


@pytest.mark.parametrize("ending", ["arrow", "feather"])
@few_examples(0.3)
@given(data=st.data())
def test_tables_have_the_values_of_their_chunks(
    ending: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    kinds = {name: KINDS[name] for name in names}
    folder = tmp_path_factory.mktemp("tables")
    first = 0
    for number in range(data.draw(st.integers(1, 3))):
        sizes = [*data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6)), 7]
        write(folder / f"{number}.{ending}", kinds, sizes, first)
        first += sum(sizes)
    store, workplace = feedline.open(folder), Workplace()
    most_rows = data.draw(st.sampled_from([1, 20, 2**18]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_tables, "_MOST_ROWS", most_rows)
        assert store.row_tables() is not None
    for _ in range(3):
        count = data.draw(st.integers(1, 60))
        seed = data.draw(st.integers(0, 99))
        indices = np.random.default_rng(seed).integers(0, first, count)
        assert listed(gathered(store, indices, workplace)) == by_chunk(store, indices)
        assert workplace.rows._tables is not None


@pytest.mark.parametrize("name", UNUSUAL)
def test_types_that_do_not_lie_in_the_file_as_they_are_used_are_read_batch_by_batch(
    name: str, tmp_path: Path
) -> None:
    kinds = {"id": KINDS["int64"], name: UNUSUAL[name]}
    # A file has one dictionary.
    write(tmp_path / "data.arrow", {"id": kinds["id"]} if name == "word" else kinds, [9, 4, 8], 0)
    if name == "word":
        table = pa.table({"id": range(21), name: pa.array(["a", "b", "c"] * 7).dictionary_encode()})
        (tmp_path / "data.arrow").unlink()
        with pa.ipc.new_file(str(tmp_path / "data.feather"), table.schema) as writer:
            writer.write_table(table, max_chunksize=8)
    store, workplace = feedline.open(tmp_path), Workplace()
    indices = np.random.default_rng(0).permutation(21)
    assert listed(gathered(store, indices, workplace)) == by_chunk(store, indices)
    assert workplace.rows._tables is None


def test_compressed_batches_are_read_one_by_one(tmp_path: Path) -> None:
    table = pa.table({"id": range(1000), "text": ["abc"] * 1000})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)
    store, workplace = feedline.open(tmp_path), Workplace()
    indices = np.random.default_rng(0).permutation(1000)
    assert gathered(store, indices, workplace)["id"].tolist() == indices.tolist()
    assert workplace.rows._tables is None


def test_selected_columns_and_masks_come_from_the_table(tmp_path: Path) -> None:
    kinds = {name: KINDS[name] for name in ("text or null", "int64", "struct")}
    write(tmp_path / "data.arrow", kinds, [10, 10, 3], 0)
    indices = np.arange(23)[::-1].copy()
    for names in (["struct/in/text"], ["text or null"], ["int64", "text or null/is_missing"]):
        for store in (
            feedline.open(tmp_path, columns=names),
            feedline.open(tmp_path).select(names),
            pickle.loads(pickle.dumps(feedline.open(tmp_path, columns=names))),
        ):
            workplace = Workplace()
            for _ in range(2):
                found = gathered(store, indices, workplace)
                assert listed(found) == by_chunk(store, indices)
                assert workplace.rows._tables is not None
                store.close()


def test_a_full_shuffle_of_very_many_chunks_is_not_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data.arrow", {"text": KINDS["text"]}, [2] * 5000, 0)
    store, workplace = feedline.open(tmp_path), Workplace()
    assert len(store.chunk_sizes) == 5000
    indices = np.random.default_rng(0).permutation(10_000)
    found = gathered(store, indices, workplace)["text"].tolist()
    assert found == [f"é{n}" * (n % 4) for n in indices.tolist()]
    assert not caplog.messages
    assert not store._open_chunks._chunks


def test_tables_that_do_not_fit_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tables, "_MOST_ROWS", 50)
    write(tmp_path / "data.arrow", {"bytes": KINDS["bytes"]}, [25] * 20, 0)
    # Two tables of 50 rows, each of which has two places of 8 bytes.
    store, workplace = FolderStore.of_file(tmp_path / "data.arrow", cache_bytes=2000), Workplace()
    for first in range(0, 500, 50):
        indices = np.arange(first, first + 50)
        assert listed(gathered(store, indices, workplace)) == by_chunk(store, indices)
        assert workplace.rows._tables is not None
        assert len(workplace.rows._tables.opened) <= 2
    indices = np.random.default_rng(0).permutation(500)
    assert listed(gathered(store, indices, workplace)) == by_chunk(store, indices)
    assert workplace.rows._tables is None


def test_a_damaged_batch_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "data.arrow"
    write(path, {"text": KINDS["large text"]}, [10] * 5, 0)
    place = int(Batches.of_stream(path, map_file(path)).buffers[2, 1, 0])  # type: ignore[index]
    data = bytearray(path.read_bytes())
    # An offset far outside.
    data[place + 16 : place + 24] = (2**60).to_bytes(8, "little")
    path.write_bytes(data)
    store, workplace = FolderStore.of_file(path), Workplace()
    indices = np.array([0, 45, 11, 39])
    found = gathered(store, indices, workplace)["text"].tolist()
    assert found == [str(n) for n in indices.tolist()]
    with pytest.raises(StoreError, match="group 2, row 5"):
        gathered(store, np.array([1, 25]), workplace)


def test_a_batch_that_claims_more_rows_than_its_file_has_bits_is_one_clear_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data.arrow"
    write(path, {"text": KINDS["large text"]}, [23] * 3, 0)
    data = path.read_bytes()
    first, body = (int(edges[1]) for edges in Batches.of_stream(path, map_file(path))[:2])
    head = data[first:body].replace((23).to_bytes(8, "little"), (2**52).to_bytes(8, "little"))
    path.write_bytes(data[:first] + head + data[body:])
    with pytest.raises(StoreError, match=r"data\.arrow"):
        gathered(FolderStore.of_file(path), np.array([30]), Workplace())


def test_lists_of_one_length_that_begin_anywhere_are_an_array(tmp_path: Path) -> None:
    lists = pa.array([[9, 9]] + [[n, n + 1] for n in range(20)], pa.list_(pa.int32()))
    batches = [pa.record_batch({"x": lists[1 + n : 6 + n]}) for n in range(0, 20, 5)]
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    store, workplace = feedline.open(tmp_path), Workplace()
    found = gathered(store, np.arange(20)[::-1].copy(), workplace)["x"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[n, n + 1] for n in reversed(range(20))]
    assert workplace.rows._tables is not None


@few_examples(0.3)
@given(
    st.lists(st.integers(0, 20), min_size=2, max_size=40),
    st.sampled_from(["arrow", "feather"]),
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True),
)
def test_messages_that_are_read_together_say_what_each_says(
    sizes: list[int], ending: str, names: list[str]
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data.{ending}"
        write(path, {name: KINDS[name] for name in names}, [3, *sizes], 0)
        bytes_ = map_file(path)
        if ending == "arrow":
            plain = _one_by_one(batches_of_stream(path, bytes_))
            found = Batches.of_stream(path, bytes_)
        else:
            plain = _one_by_one(batches_of_file(bytes_))
            found = Batches.of_file(bytes_)
        for part, expected in zip(found, plain, strict=True):
            assert np.array_equal(part, expected)  # type: ignore[arg-type]
        if all(sizes):
            messages = (
                batches_of_stream(path, bytes_) if ending == "arrow" else batches_of_file(bytes_)
            )
            assert _alike(bytes_, plain.firsts, next(messages)) is not None


def test_the_loader_gives_the_same_with_workers(tmp_path: Path) -> None:
    for number in range(3):
        write(
            tmp_path / f"{number}.arrow",
            {k: KINDS[k] for k in ("int64", "list", "equal bytes")},
            [20] * 5,
            100 * number,
        )
    options = {"batch_size": 16, "shuffle": True, "seed": 3}
    from feedline.torch import DataLoader

    def batches(**given: Any) -> list[Any]:
        loader = DataLoader(feedline.open(tmp_path), **options, **given)
        return [
            (b["int64"].tolist(), [x.tolist() for x in b["list"]], b["equal bytes"]) for b in loader
        ]

    plain = batches(num_threads=0)
    ids = [n for numbers, _, _ in plain for n in numbers]
    assert sorted(ids) == list(range(300))
    for numbers, lists, texts in plain:
        assert lists == [[n] * (n % 5) for n in numbers]
        assert texts == [bytes([n % 256]) * 300 for n in numbers]
    assert batches(num_workers=2) == plain
    assert batches(num_threads=3) == plain


def test_lists_of_a_table_are_lists(tmp_path: Path) -> None:
    write(tmp_path / "data.arrow", {"list": KINDS["list"]}, [5, 5], 0)
    assert isinstance(gathered(feedline.open(tmp_path), np.arange(10), Workplace())["list"], Lists)
